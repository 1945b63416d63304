"""What chains leave: draws on disk, running sums, diagnostics."""
