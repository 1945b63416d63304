"""Experiments, each with its command, its time and its result: `python -m ensemble train --config=NAME`."""
