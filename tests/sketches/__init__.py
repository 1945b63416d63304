"""The shortest implementations of the contracts that do something; `make lint` checks them."""
