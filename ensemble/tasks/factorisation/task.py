"""The task of matrix factorisation: which of all movies has a user watched?

It is a classification of pairs of a user and a movie, so that all that is known of classifiers
holds: predictions, scores, reports. Its likelihood is of the whole matrix, though, and the users'
parameters lie beside their rows: `ensemble.tasks.factorisation.watch_likelihood`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from ensemble.config import flatten
from ensemble.errors import UserError
from ensemble.network import Traits
from ensemble.networks.matrix_factorisation import MatrixFactorisation
from ensemble.sources.movielens import HELD_OUT
from ensemble.sources.watches import WatchDataset
from ensemble.storage.memory import check_memory
from ensemble.tasks.factorisation.baselines import fit_biases
from ensemble.tasks.factorisation.watch_likelihood import user_log_likelihoods
from ensemble.tasks.supervised import Supervised, make_likelihood

MODEL = "matrix_factorisation"
_START = 0.1  # Standard deviation of the embeddings where a search for the MAP starts.


@dataclasses.dataclass(frozen=True)
class Factorisation(Supervised):
    """A watch matrix W, and the factors that are to explain it.

    W_ij ~ Bernoulli(sigmoid(U_i V_j' + u_i + v_j)), independently, with the priors on U, V, u, v.

    Attributes:
        dataset: a `WatchDataset`.
        num_factors: D.
    """

    num_factors: int = 8

    @property
    def observed(self) -> np.ndarray:
        """W [N, M] uint8: 1 where user i has watched movie j, 2 where that is held out."""
        assert isinstance(self.dataset, WatchDataset)
        return self.dataset.observed

    @functools.cached_property
    def num_train_examples(self) -> int:
        """Entries of W that are known."""
        return int(np.count_nonzero(self.observed != HELD_OUT))

    @functools.cached_property
    def biases(self) -> dict[str, np.ndarray]:
        """The MAP of u [N] and v [M] alone, without factors: a baseline."""
        user_bias, movie_bias = fit_biases(self.observed)
        return {"user_bias": user_bias, "movie_bias": movie_bias}

    @functools.cached_property
    def reference(self) -> np.ndarray:
        """Log likelihoods [N] of the users by the biases alone, float64 nats.

        The posterior's log density is relative to their sum: nearer to zero, float32 keeps more.
        """
        return reference_of(self.observed, self.biases)

    @property
    def traits(self) -> Traits:
        """The factors have no state and draw no noise."""
        return Traits(has_state=False, is_random=False)

    def init_params(self, rng_key: jax.Array) -> Any:
        """Small random factors, for at zero all of them are alike, and no biases."""
        num_users, num_movies = self.observed.shape
        shapes = factor_shapes(num_users, num_movies, self.num_factors)
        key_users, key_movies = jax.random.split(rng_key)
        users = jax.random.normal(key_users, shapes["user_embeddings"])
        movies = jax.random.normal(key_movies, shapes["movie_embeddings"])
        return {
            "user_embeddings": _START * users,
            "user_bias": jax.numpy.zeros(shapes["user_bias"]),
            "movie_embeddings": _START * movies,
            "movie_bias": jax.numpy.zeros(shapes["movie_bias"]),
        }


def factor_shapes(num_users: int, num_movies: int, num_factors: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters of a factorisation."""
    return {
        "user_embeddings": (num_users, num_factors),
        "user_bias": (num_users,),
        "movie_embeddings": (num_movies, num_factors),
        "movie_bias": (num_movies,),
    }


def reference_of(observed: np.ndarray, biases: Mapping[str, np.ndarray]) -> np.ndarray:
    """Log likelihoods [N] of users by biases alone, float64 nats."""
    num_users, num_movies = observed.shape
    no_factors = {"user_embeddings": (num_users, 1), "movie_embeddings": (num_movies, 1)}
    zeros = {name: np.zeros(shape) for name, shape in no_factors.items()}
    return user_log_likelihoods({**zeros, **biases}, observed)


def create_factorisation(
    config: ml_collections.FrozenConfigDict, dataset: WatchDataset, priors: Any
) -> Factorisation:
    """Makes the task, if the configuration suits it.

    Raises:
        UserError: it does not, or the chains would not fit in memory.
    """
    flat = flatten(config)
    for key, allowed, holds in (  # Where this holds, the configuration has the other keys.
        ("model", MODEL, lambda value: value == MODEL),
        ("hmc.mass", "identity", lambda value: value == "identity"),
        ("hold_out", "True", bool),
        ("prior", "without a fan-in", lambda value: not any(p.is_over_fan_in for p in priors)),
    ):
        if not holds(flat[key]):
            raise UserError(f"config.{key}={flat[key]!r} must be {allowed} for {dataset.name}")
    _check_memory(config, dataset)
    return Factorisation(
        dataset,
        MatrixFactorisation(),
        make_likelihood(dataset),
        priors,
        config.num_factors,
    )


def _check_memory(config: ml_collections.FrozenConfigDict, dataset: WatchDataset) -> None:
    """Refuses chains that memory cannot hold.

    Raises:
        UserError: with the bytes that they would take.
    """
    num_params = (config.num_factors + 1) * sum(dataset.observed.shape)
    # Positions, gradients and momenta before, during and after a trajectory; and what is kept.
    num_copies = 8 + config.log_every_steps // config.hmc.thin + 1
    check_memory(
        4 * num_copies * config.num_chains * num_params,
        f"{config.num_chains} chains of {num_params:,} parameters",
        "config.num_chains, config.num_factors or config.log_every_steps",
    )
