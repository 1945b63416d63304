"""Metrics of predictions: each is a mean of terms [N], so one function makes every interval."""

from ensemble.metrics.interval import Estimate, interval
from ensemble.metrics.metric import METRICS, Metric, metrics_of, requested, values

__all__ = [
    "METRICS",
    "Estimate",
    "Metric",
    "interval",
    "metrics_of",
    "requested",
    "values",
]
