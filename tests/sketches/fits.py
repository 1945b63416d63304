"""The implementations in the package, for the type checker: each function says what fits what."""

from ensemble.likelihood import Likelihood
from ensemble.likelihoods.categorical import Categorical
from ensemble.network import Network
from ensemble.networks.functions import FunctionNetwork
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.nnx_modules import NNXNetwork
from ensemble.sources import Source
from ensemble.sources.on_disk import OnDisk
from ensemble.task import Learned, Task
from ensemble.tasks.supervised import Supervised


def tasks(supervised: Supervised) -> list[Task]:
    """All that a method can be given."""
    return [supervised]


def learned(supervised: Supervised) -> list[Learned]:
    """What SGD and samplers take."""
    return [supervised]


def sources(mapped: OnDisk) -> list[Source]:
    """Data that are not in memory."""
    return [mapped]


def networks(linen: LinenNetwork, nnx: NNXNetwork, pair: FunctionNetwork) -> list[Network]:
    """Networks, whatever library wrote them."""
    return [linen, nnx, pair]


def likelihoods(categorical: Categorical) -> list[Likelihood]:
    """What outputs say of targets."""
    return [categorical]
