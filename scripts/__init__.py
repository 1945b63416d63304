"""Launchers, and what draws the pictures of the docs with a browser; nothing here is installed."""
