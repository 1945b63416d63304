"""Members of a deep ensemble side by side: the engine that moves them, and SGD."""
