"""The recording of one forward pass: sites, recording, tape, attention maps."""
