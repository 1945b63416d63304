"""Programs that use the package and are no part of it."""
