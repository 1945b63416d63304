"""How members move: by SGD, by Markov chain Monte Carlo."""
