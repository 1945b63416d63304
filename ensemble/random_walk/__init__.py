"""Random walks: very many chains on a density, of which only sums are kept."""
