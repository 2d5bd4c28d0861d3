"""How fast syncer is, beside references that are measured in the same run."""
