"""What fits the contracts, for the type checker."""

from ensemble.data import Source
from ensemble.network import Network
from ensemble.recommendation.datasets import WatchDataset
from ensemble.recommendation.matrix_factorisation import MatrixFactorisation
from ensemble.recommendation.watch_task import Factorisation, Factors
from ensemble.task import Learned, PredictingTask


def learned(watches: Factorisation) -> Learned:
    """What samplers take."""
    return watches


def predictive(factors: Factors) -> PredictingTask:
    """What is restored from a workdir."""
    return factors


def sources(watches: WatchDataset) -> Source:
    """The data."""
    return watches


def networks(factors: MatrixFactorisation) -> Network:
    """The network."""
    return factors
