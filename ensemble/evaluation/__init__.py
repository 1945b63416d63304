"""Evaluation of a trained ensemble: scores, shift, out-of-distribution data, a report."""
