"""Where do 90% intervals hold 90%? `python -m examples.coverage` finds out where it is known."""
