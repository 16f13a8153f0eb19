"""Reports on runs: our numbers beside the published ones, in words, tables and figures."""
