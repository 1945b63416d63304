"""Every picture, from numbers alone."""
