"""What chains leave: draws on disk, what these predict, diagnostics."""
