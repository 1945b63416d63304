"""One network, or a few, that learn what an ensemble predicts."""
