"""What fits the contracts, for the type checker."""

from ensemble.data import Source
from ensemble.network import Network
from ensemble.recommendation.dataset import InteractionDataset
from ensemble.recommendation.factorisation import Factorisation, MatrixFactorisation
from ensemble.tasks.supervised import Supervised


def learned(task: Factorisation) -> Supervised:
    """What samplers take."""
    return task


def sources(interactions: InteractionDataset) -> Source:
    """The data."""
    return interactions


def networks(network: MatrixFactorisation) -> Network:
    """The network."""
    return network
