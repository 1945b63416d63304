"""Searches for the families of networks that predict a table best, within a budget of time."""
