"""What one forward pass leaves behind: sites, recording, tape, attention maps."""
