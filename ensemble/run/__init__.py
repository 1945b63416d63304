"""The one loop, and what it reports on the way."""
