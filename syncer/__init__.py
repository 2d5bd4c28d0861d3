"""syncer."""
