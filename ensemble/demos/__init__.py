"""Experiments on generated data, where the truth is known: one line of `commands/demo.py` each."""
