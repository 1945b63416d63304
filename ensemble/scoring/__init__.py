"""How predictions are scored: what an ensemble says of a split, and every score of it, stated once.

A likelihood makes a `View` of predictions and targets. A `Score` says which terms of a view it is
made of, and a `Combine` how terms become a value, an interval and a difference. The report of a
training and an evaluation are sections of the same views.
"""
