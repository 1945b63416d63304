"""The runtime: it places, moves, records, saves, restores and enlarges the members of any method.

`algorithm` says what a method is; `loop` reads from top to bottom.
"""
