"""How often intervals cover and how often findings are false, where the truth is known."""
