"""Counts of animals in rock pools: a tenant of every kind for flax-ensembles."""
