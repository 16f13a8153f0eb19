"""The campaign: commands are killed, starved, cut off and lied to, and must hold. See ``__main__.py``."""
