"""The deadline of tests that wait: long enough for a busy machine, only there to end a test that hangs."""

DEADLINE_SECONDS = 1200.0  # seconds
