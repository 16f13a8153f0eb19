"""Files: tables of texts read, explanations saved, and everything written whole or not at all."""
