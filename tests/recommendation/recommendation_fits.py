"""What fits the contracts, for the type checker."""

from ensemble.data import Source
from ensemble.network import Network
from ensemble.recommendation.dataset import InteractionDataset
from ensemble.recommendation.factorisation import Factorisation, MatrixFactorisation
from ensemble.task import Learned


def learned(task: Factorisation) -> Learned:
    """What samplers take."""
    return task


def sources(interactions: InteractionDataset) -> Source:
    """The data."""
    return interactions


def networks(network: MatrixFactorisation) -> Network:
    """The network."""
    return network
