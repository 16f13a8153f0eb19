"""The recipe that made the embedded models: prepare, train, export, measure."""
