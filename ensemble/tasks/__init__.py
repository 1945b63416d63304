"""What is learned: data, network, likelihood and prior, or a density alone."""
