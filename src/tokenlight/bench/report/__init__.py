"""Reports on runs: our numbers next to the published ones, in words, tables and figures."""
