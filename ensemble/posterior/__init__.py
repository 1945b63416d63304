"""Bayesian posteriors: log densities over sharded data, as samplers want them."""
