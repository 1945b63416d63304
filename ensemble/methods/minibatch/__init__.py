"""Stochastic gradient MCMC: chains on a posterior that see a batch of the data at every step."""
