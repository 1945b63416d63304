"""The shortest tenants of the contracts that do something; `make lint` checks their types."""
