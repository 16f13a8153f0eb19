"""Models, values and checks that several tests share."""
