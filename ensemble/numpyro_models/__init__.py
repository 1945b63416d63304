"""Models of NumPyro, and log densities of a program, that samplers take as they are."""
