"""SGD: the members of a deep ensemble, side by side."""
