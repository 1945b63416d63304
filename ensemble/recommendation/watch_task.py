"""The task of matrix factorisation: which of all items has a user watched?

It is a classification of pairs of a user and an item, so that all that is known of classifiers
holds: predictions, scores, reports. Its likelihood is of the whole matrix, though, and the users'
parameters lie beside their rows: `ensemble.recommendation.watch_likelihood`. Ratings are numbers,
of the pairs that there are: `ensemble.recommendation.rating_task`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np
import scipy.sparse
from jax.sharding import Mesh

from ensemble.config import flatten
from ensemble.data.catalogue import load, models_of
from ensemble.data.source import Examples, Request, Source
from ensemble.errors import InputError
from ensemble.likelihoods import from_dict
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.network import Traits, Variables
from ensemble.priors import Prior, log_prior, parse_prior, sample_prior
from ensemble.recommendation import recommend as recommendation
from ensemble.recommendation import watch_likelihood
from ensemble.recommendation.baselines import Excess, fit_biases
from ensemble.recommendation.datasets import HELD_OUT, RatingDataset, WatchDataset
from ensemble.recommendation.matrix_factorisation import MatrixFactorisation
from ensemble.recommendation.ratings import RatingsKeys
from ensemble.sharding import transfer
from ensemble.sharding.layout import Layout
from ensemble.sharding.mesh import DATA
from ensemble.storage.memory import check_memory
from ensemble.task import Aux, Defaults, DrawSections, OwnLogLikelihood, Scored
from ensemble.tasks.learning_data import (
    check_params,
    describe,
    described_dataset,
    make_likelihood,
)

OWN = "likelihood"
"""The entry of the parameters that holds the likelihood's own, where it has any."""
RATINGS, WATCHES = "gaussian_homoscedastic", "categorical"
"""Values of `config.likelihood`: ratings are learned, or who has watched what."""
_START = 0.1  # Standard deviation of the embeddings where a search for the MAP starts.


@dataclasses.dataclass(frozen=True)
class Factors(Defaults):
    """Factors that predict, without the watches that they have learned.

    Attributes:
        dataset: pairs of a user and an item, or none.
        likelihood: of a pair: whether the user has watched the item, or the rating.
    """

    dataset: Source
    likelihood: Likelihood

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of what was learned, JSON-ready."""
        return {**describe(self.dataset), **self.likelihood.to_dict()}

    def predict(
        self, variables: Variables, inputs: jax.Array, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """The predictive distribution of pairs [P, 2]; there is no noise."""
        return self.likelihood.predict(*self.outputs(variables, inputs))

    def outputs(
        self, variables: Variables, inputs: jax.Array
    ) -> tuple[Mapping[str, Any], jax.Array]:
        """The likelihood's own parameters, and outputs [P, K] of pairs [P, 2]."""
        network = MatrixFactorisation(self.likelihood.num_outputs)
        return variables["params"].get(OWN, {}), network.apply(variables, inputs)[0]

    def without_examples(self) -> "Factors":
        """The same task for predictions alone."""
        return Factors(described_dataset(self.describe()), self.likelihood)

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses pairs [P, 2] that are not numbers of users and of items."""
        MatrixFactorisation().check_inputs(inputs, params)


@dataclasses.dataclass(frozen=True)
class LearnedFactors(Factors):
    """Interactions of users and items, and the factors that are to explain them.

    Attributes:
        dataset: the interactions.
        priors: on the parameters, by `ensemble.priors.parse_prior`.
        num_factors: D.
    """

    dataset: WatchDataset | RatingDataset
    priors: tuple[Prior, ...] = ()
    num_factors: int = 8

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of users and of items."""
        return len(self.dataset.names.user_ids), len(self.dataset.names.titles)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Pairs of each split, `train` first."""
        return self.dataset.sizes

    def scored(self) -> Scored:
        """The pairs and their likelihood."""
        return Scored(self.dataset, self.likelihood)

    # Parameters.

    @property
    def traits(self) -> Traits:
        """The factors have no state and draw no noise."""
        return Traits(has_state=False, is_random=False)

    def init_variables(self, rng_key: jax.Array) -> Variables:
        """Small random factors, for at zero all of them are alike, and no biases."""
        num_users, num_movies = self.shape
        shapes = factor_shapes(num_users, num_movies, self.num_factors)
        key_users, key_movies = jax.random.split(rng_key)
        users = jax.random.normal(key_users, shapes["user_embeddings"].shape)
        movies = jax.random.normal(key_movies, shapes["movie_embeddings"].shape)
        params = {
            "user_embeddings": _START * users,
            "user_bias": jax.numpy.zeros(num_users),
            "movie_embeddings": _START * movies,
            "movie_bias": jax.numpy.zeros(num_movies),
        }
        own = self.likelihood.init(rng_key)
        return {"params": {**params, **({OWN: own} if own else {})}}

    def params_shapes(self) -> dict[str, Any]:
        """The shapes of all parameters."""
        return {**factor_shapes(*self.shape, self.num_factors), **own_shapes(self.likelihood)}

    def log_prior(self, params: Any) -> jax.Array:
        """Returns log p(params) up to a constant, nats."""
        return log_prior(self.priors, params)

    def sample_prior(self, rng_key: jax.Array) -> Any:
        """Draws parameters from the prior."""
        return sample_prior(rng_key, self.priors, self.params_shapes())

    # The likelihood.

    def log_likelihood(
        self,
        variables: Variables,
        inputs: jax.Array,
        targets: jax.Array,
        train: bool = False,
        rng_key: jax.Array | None = None,
    ) -> tuple[jax.Array, Aux]:
        """Log probability [P] of targets of pairs [P, 2]."""
        own, outputs = self.outputs(variables, inputs)
        log_prob = self.likelihood.log_prob(own, outputs, targets)
        return log_prob, Aux(self.likelihood.predict(own, outputs), {}, outputs)


@dataclasses.dataclass(frozen=True)
class Factorisation(LearnedFactors):
    """A watch matrix W, and the factors that are to explain it.

    W_ij ~ Bernoulli(sigmoid(U_i V_j' + u_i + v_j)), independently, with the priors on U, V, u, v.
    The log likelihood of a watch is multiplied by its weight, if it has one.
    """

    dataset: WatchDataset

    @property
    def observed(self) -> np.ndarray:
        """W [N, M] uint8: 1 where user i has watched item j, 2 where that is held out."""
        return self.dataset.observed

    @functools.cached_property
    def excess(self) -> Excess:
        """By how much the weights [N, M] of watches exceed 1; None: all entries count once."""
        weights = self.dataset.weights
        if weights is None:
            return None
        users, movies = self.dataset.splits["train"].inputs.T
        entries = weights.astype(np.float64) - 1, (users, movies)
        return scipy.sparse.csr_array(entries, shape=self.observed.shape)

    @functools.cached_property
    def num_train_examples(self) -> int:
        """Entries of W that are known."""
        return int(np.count_nonzero(self.observed != HELD_OUT))

    @functools.cached_property
    def biases(self) -> dict[str, np.ndarray]:
        """The MAP of u [N] and v [M] alone, without factors: a baseline."""
        user_bias, movie_bias = fit_biases(self.observed, self.excess)
        return {"user_bias": user_bias, "movie_bias": movie_bias}

    @functools.cached_property
    def reference(self) -> np.ndarray:
        """Log likelihoods [N] of the users by the biases alone, float64 nats.

        The posterior's log density is relative to their sum: nearer to zero, float32 keeps more.
        """
        return reference_of(self.observed, self.biases, self.excess)

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood:
        """The likelihood of the whole matrix, with users' parameters beside their rows."""
        num_users = len(self.observed)
        num_places = transfer.padded_size(num_users, mesh, DATA)
        log_probs = watch_likelihood.make_log_probs(mesh)
        return OwnLogLikelihood(
            place=lambda: watch_likelihood.place(self.observed, self.reference, mesh, self.excess),
            value_and_grad=watch_likelihood.make_value_and_grad(mesh),
            parts="users",
            num_parts=num_users,
            layout=Layout(watch_likelihood.USERS, num_users, num_places, "row"),
            predict=lambda params, inputs: {"log_probs": log_probs(params, inputs)},
        )

    def draw_report(self) -> DrawSections:
        """What the draws recommend, beside the MAP and simpler models."""

        def sections(params: Any, maximum: Any) -> dict[str, Any]:
            scores = recommendation.score_models(self, params, maximum)
            section = recommendation.recommendation_section(self.dataset, params, scores)
            return {"recommendation": section}

        return sections


def factor_shapes(
    num_users: int, num_movies: int, num_factors: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of all parameters of a factorisation."""
    shapes = {
        "user_embeddings": (num_users, num_factors),
        "user_bias": (num_users,),
        "movie_embeddings": (num_movies, num_factors),
        "movie_bias": (num_movies,),
    }
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


def own_shapes(likelihood: Likelihood) -> dict[str, Any]:
    """The shapes of the likelihood's own parameters, if it has any, by the entry they are in."""
    own = jax.eval_shape(likelihood.init, jax.eval_shape(jax.random.key, 0))
    return {OWN: own} if own else {}


def reference_of(
    observed: np.ndarray, biases: Mapping[str, np.ndarray], excess: Excess = None
) -> np.ndarray:
    """Log likelihoods [N] of users by biases alone, float64 nats."""
    num_users, num_movies = observed.shape
    no_factors = {"user_embeddings": (num_users, 1), "movie_embeddings": (num_movies, 1)}
    zeros = {name: np.zeros(shape) for name, shape in no_factors.items()}
    return watch_likelihood.user_log_likelihoods({**zeros, **biases}, observed, excess)


def ratings_keys(config: Mapping[str, Any]) -> RatingsKeys:
    """What a configuration, nested or not, says of interactions; that of an old run says less."""
    return RatingsKeys(config.get("split_by", "random"), of_ratings=config["likelihood"] == RATINGS)


def create(config: ml_collections.FrozenConfigDict, data: Any) -> LearnedFactors:
    """Makes the task of a run, if the configuration suits it.

    Args:
        config: of the run.
        data: what a program has handed over instead of `config.dataset`.

    Raises:
        InputError: it does not, or the chains would not fit in memory.
    """
    if data is None and config.model not in models_of(config.dataset):
        raise InputError(
            f"config.model={config.model!r} needs who watched or rated what, which "
            f"{config.dataset} does not say; set config.dataset to such as ratings:FILE.csv, "
            "movielens/1m-ratings or watches:1000x600"
        )
    request = Request(
        config.data_dir or None,
        config.seed,
        not config.train_on_all,
        own=ratings_keys(config),
        prepares=True,
    )
    dataset: Any = load(config.dataset, request) if data is None else data.source(request)
    flat, priors = flatten(config), parse_prior(config.prior)
    for key, allowed, holds in (
        ("likelihood", f"{WATCHES}, or {RATINGS} for ratings,", (RATINGS, WATCHES).__contains__),
        ("sampler.mass_matrix", "identity or diagonal", ("identity", "diagonal").__contains__),
        ("train_on_all", "False", lambda value: not value),
        ("prior", "without a fan-in", lambda value: not any(p.is_over_fan_in for p in priors)),
    ):
        if not holds(flat[key]):
            raise InputError(f"config.{key}={flat[key]!r} must be {allowed} for {dataset.name}")
    likelihood = make_likelihood(dataset, config)
    kind: type[LearnedFactors] = Factorisation
    if config.likelihood == RATINGS:
        # It is made of this module's.
        from ensemble.recommendation.rating_task import RatingFactorisation as kind
    task = kind(dataset, likelihood, priors, config.num_factors)
    _check_memory(config, task.shape)
    return task


def restore(config: Mapping[str, Any], description: Mapping[str, Any], params: Any) -> Factors:
    """Makes the task of a workdir, to predict with; the arguments are `TaskEntry.restore`'s.

    Raises:
        InputError: the parameters are not those of a factorisation.
    """

    def length(name: str) -> int:
        shape = np.shape(params.get(name, ()))
        return shape[1] if len(shape) == 2 else 0

    sizes = length("user_bias"), length("movie_bias")
    return restore_of_size(config, description, params, *sizes)


def restore_of_size(
    config: Mapping[str, Any],
    description: Mapping[str, Any],
    params: Any,
    num_users: int,
    num_movies: int,
) -> Factors:
    """Makes the task of a workdir that has so many users and items.

    Raises:
        InputError: it has others.
    """
    likelihood = from_dict(config["likelihood"], description)
    task = Factors(described_dataset(description), likelihood)
    shapes = factor_shapes(num_users, num_movies, config["num_factors"])
    check_params(params, {**shapes, **own_shapes(likelihood)}, config, task)
    return task


def _check_memory(config: ml_collections.FrozenConfigDict, shape: tuple[int, int]) -> None:
    """Refuses chains that memory cannot hold.

    Raises:
        InputError: with the bytes that they would take.
    """
    num_params = (config.num_factors + 1) * sum(shape)
    # Positions, gradients and momenta before, during and after a trajectory; and what is kept.
    num_copies = 8 + config.log_every_steps // config.sampler.thinning + 1
    check_memory(
        4 * num_copies * config.num_chains * num_params,
        f"{config.num_chains} chains of {num_params:,} parameters",
        "config.num_chains, config.num_factors or config.log_every_steps",
    )
