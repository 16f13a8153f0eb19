"""Contract tests: the laws of CONTRIBUTING.md, for every registered name and every model family."""
