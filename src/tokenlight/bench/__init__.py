"""The benchmark: suites say what is measured, a runner measures it in parts, engines share them out."""
