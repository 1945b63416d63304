"""Who watches what: a matrix factorisation, and what it recommends."""
