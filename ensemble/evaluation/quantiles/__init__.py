"""What an evaluation computes of quantiles."""
