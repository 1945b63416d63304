"""The implementations in the package, for the type checker: each function says what fits what."""

from ensemble.likelihood import Likelihood
from ensemble.likelihoods.categorical import Categorical
from ensemble.network import Network
from ensemble.networks.functions import FunctionNetwork
from ensemble.networks.linen import LinenNetwork
from ensemble.networks.matrix_factorisation import MatrixFactorisation
from ensemble.networks.nnx_modules import NNXNetwork
from ensemble.sources import Source
from ensemble.sources.movielens import WatchDataset
from ensemble.sources.on_disk import OnDisk
from ensemble.task import DensityTask, Learned, PredictingTask, TargetDensity, Task
from ensemble.tasks.densities import Density
from ensemble.tasks.factorisation.watch_task import Factorisation, Factors
from ensemble.tasks.supervised import Supervised
from ensemble.tasks.target import Target


def tasks(supervised: Supervised, watches: Factorisation, target: Target) -> list[Task]:
    """All that a method can be given."""
    return [supervised, watches, target]


def learned(supervised: Supervised, watches: Factorisation) -> list[Learned]:
    """What SGD and samplers take."""
    return [supervised, watches]


def predictive(supervised: Supervised, factors: Factors) -> list[PredictingTask]:
    """What is restored from a workdir."""
    return [supervised, factors]


def sampled(target: Target) -> DensityTask:
    """What a random walk takes."""
    return target


def densities(target: Target, density: Density) -> list[TargetDensity]:
    """What the walker takes."""
    return [target, density]


def sources(watches: WatchDataset, mapped: OnDisk) -> list[Source]:
    """Data in memory and elsewhere."""
    return [watches, mapped]


def networks(
    linen: LinenNetwork, nnx: NNXNetwork, pair: FunctionNetwork, factors: MatrixFactorisation
) -> list[Network]:
    """Networks, whatever library wrote them."""
    return [linen, nnx, pair, factors]


def likelihoods(categorical: Categorical) -> list[Likelihood]:
    """What outputs say of targets."""
    return [categorical]
