"""Ensembles as scikit-learn estimators: fit, predict, and all that scikit-learn builds on them.

https://scikit-learn.org/stable/developers/develop.html has the rules that this file keeps.
"""

from ensemble.sklearn.classifier import EnsembleClassifier
from ensemble.sklearn.regressor import EnsembleRegressor

__all__ = ["EnsembleClassifier", "EnsembleRegressor"]
