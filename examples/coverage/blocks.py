"""Many data sets at once: one compiled program learns a block of them, spread over the devices."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from numpy.typing import NDArray

from ensemble.likelihoods.gaussian import SharedGaussian
from ensemble.metrics import regression
from ensemble.sharding import processes, transfer
from ensemble.sharding.mesh import create_mesh, named_sharding
from examples.coverage import fits, known_truth
from examples.coverage.fits import Fit, Job

BLOCK = 40
"""Data sets that are learned at once: so few that their arrays stay in the processor's cache."""


class Learned(NamedTuple):
    """What was learned of S data sets, on the host.

    Attributes:
        fit: of `fits.fit`, every leaf [S, ...], but without its predictions.
        ends: by method the 5%, 50% and 95% quantiles of a target [3, S, G + H].
    """

    fit: Fit
    ends: dict[str, NDArray]

    def part(self, rows: slice) -> "Learned":
        """Some of the data sets."""
        fit = jax.tree.map(lambda leaf: leaf[rows], self.fit)
        return Learned(fit, {name: one[:, rows] for name, one in self.ends.items()})


def learn(
    seed: int,
    jobs: Sequence[Job],
    points: NDArray,
    levels: NDArray,
    note: Callable[[int], None],
) -> Learned:
    """Learns data sets by all methods.

    Args:
        seed: of everything.
        jobs: which data sets.
        points: [G] inputs to predict at.
        levels: [Q] of the quantiles.
        note: is told how many of the jobs are done.
    """
    model, devices = known_truth.make_model(), processes.devices()
    place = named_sharding(create_mesh(math.gcd(BLOCK, len(devices)), 1, devices), "member")
    inputs = jnp.asarray(points, jnp.float32)
    root = jax.random.key(seed)
    program = jax.jit(jax.vmap(lambda job: fits.fit(model, root, job, inputs)), out_shardings=place)
    # Evaluated very often, to find quantiles by halving.
    mixture_cdf = jax.jit(
        lambda parts, y: model.likelihood.cdf(parts, y, jnp, jax.scipy.special).mean(axis=0)
    )
    done: list[Learned] = []
    for first in range(0, len(jobs), BLOCK):
        block = list(jobs[first : first + BLOCK])
        rows = slice(len(block))
        block += [block[-1]] * (BLOCK - len(block))  # All of one size, for one program.
        stacked = jax.tree.map(lambda *numbers: np.array(numbers, np.int32), *block)
        found = program(transfer.put(stacked, place))
        ends = {
            name: _quantiles(model.likelihood, mixture_cdf, one, levels)
            for name, one in found.predicted.items()
        }
        done.append(Learned(transfer.fetch(found._replace(predicted={})), ends).part(rows))
        note(first + rows.stop)
    return Learned(
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *[one.fit for one in done]),
        {name: np.concatenate([one.ends[name] for one in done], axis=1) for name in done[0].ends},
    )


def _quantiles(
    likelihood: SharedGaussian, cdf: Any, predicted: dict[str, jax.Array], levels: NDArray
) -> NDArray:
    """Quantiles [Q, S, P] of the mixtures of members or draws [S, M, P]."""
    parts = {name: jnp.moveaxis(one, 1, 0) for name, one in predicted.items()}
    low, high = (np.asarray(end, np.float64) for end in likelihood.bracket(parts, jnp))
    return regression.quantiles(lambda y: np.asarray(cdf(parts, y)), low, high, levels)
