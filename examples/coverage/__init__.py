"""`python -m examples.coverage` finds where 90% intervals hold 90%? `python -m examples.coverage`
finds out where it is known."""
