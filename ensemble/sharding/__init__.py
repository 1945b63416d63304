"""Devices and processes: what runs where, and how arrays get there and back."""
