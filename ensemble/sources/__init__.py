"""Data in: sets by name, a user's own, splits and batch order."""
