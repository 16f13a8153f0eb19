"""How long a test waits for what must come: only to end a test that hangs, on however busy a machine."""

PATIENCE = 1200.0  # seconds
