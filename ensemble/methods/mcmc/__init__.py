"""Markov chain Monte Carlo on the posterior of a task."""
