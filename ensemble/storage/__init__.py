"""What lies on disk: written whole, and read as if a stranger had written it."""
