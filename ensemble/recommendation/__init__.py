"""Who watches what, or rates what how: a matrix factorisation, and what it recommends."""
