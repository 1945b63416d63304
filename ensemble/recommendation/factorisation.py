"""The task of matrix factorisation: which items has a user watched, or how does a user rate them?

The log-odds of user i watching item j, or the rating in units of the ratings' standard deviation
and around their mean, is x_ij = U_i V_j' + u_i + v_j, with priors on U, V, u and v:

    W_ij ~ Bernoulli(sigmoid(x_ij)) of all pairs,    or    r_ij ~ N(x_ij, sd^2) of the rated ones.

It is supervised learning of pairs of a user and an item, but for its likelihood. That of watches is
of the whole matrix, with users' parameters beside their rows: `watch_likelihood`. For ratings
nothing is as large as users times items: `rating_likelihood`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from ensemble.config import flatten
from ensemble.data.catalogue import load, models_of
from ensemble.data.source import Examples, Request, in_memory
from ensemble.errors import InputError
from ensemble.likelihoods import from_dict
from ensemble.network import Variables
from ensemble.priors import parse_prior
from ensemble.recommendation import rating_likelihood, scores, watch_likelihood
from ensemble.recommendation.baselines import rating_baselines, watch_baselines
from ensemble.recommendation.dataset import RATINGS
from ensemble.sharding import transfer
from ensemble.sharding.layout import Layout
from ensemble.sharding.mesh import DATA
from ensemble.task import DrawSections, OwnLogLikelihood
from ensemble.tasks.learning_data import check_params, described_dataset, make_likelihood
from ensemble.tasks.supervised import Supervised

_MOST = 2**24
"""Users or items: pairs to predict are float32, as all inputs of networks."""
_START = 0.1  # Standard deviation of the embeddings where a search for the MAP starts.


@dataclasses.dataclass(frozen=True)
class MatrixFactorisation:
    """The network, from pairs of a user and an item to log-odds or standardised ratings.

    Attributes:
        shape: Numbers of users N and of items M.
        num_factors: Length D of the embeddings.
        num_outputs: 2, logits of a pair that is not watched and that is; or 1, the rating.
    """

    shape: tuple[int, int]
    num_factors: int
    num_outputs: int
    takes_raw_inputs = True

    def init(self, rng_key: jax.Array, inputs: Any) -> Variables:
        """Starts small random factors, for at zero all of them are alike, and no biases."""
        params = {}
        keys = jax.random.split(rng_key)
        for kind, key, size in zip(("user", "movie"), keys, self.shape, strict=True):
            shape = size, self.num_factors
            params[f"{kind}_embeddings"] = _START * jax.random.normal(key, shape)
            params[f"{kind}_bias"] = jnp.zeros(size)
        return {"params": params}

    def apply(
        self, variables: Variables, inputs: jax.Array, train: bool = False, rng_key: Any = None
    ) -> tuple[jax.Array, Variables]:
        """Maps pairs [P, 2], the numbers of a user and of an item, to outputs [P, K]."""
        params = variables["params"]
        users, items = inputs.astype(jnp.int32).T
        products = params["user_embeddings"][users] * params["movie_embeddings"][items]
        found = products.sum(axis=-1) + params["user_bias"][users] + params["movie_bias"][items]
        if self.num_outputs == 1:
            return found[:, None], {}
        return jnp.stack([jnp.zeros_like(found), found], axis=-1), {}

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses pairs [P, 2] that are not numbers of users and of items."""
        is_unknown = (inputs < 0) | (inputs >= self.shape) | (inputs != np.floor(inputs))
        if is_unknown.any():
            row, column = np.argwhere(is_unknown)[0]
            raise InputError(
                f"{('user', 'item')[column]} {inputs[row, column]} is unknown: use a whole number "
                f"from 0 to {self.shape[column] - 1}"
            )


@dataclasses.dataclass(frozen=True)
class Factorisation(Supervised):
    """An `InteractionDataset`, and the factors that are to explain it."""

    dataset: Any
    network: MatrixFactorisation
    likelihood: Any
    is_softmax_regression = False

    @property
    def of_ratings(self) -> bool:
        """Whether ratings are learned."""
        return self.network.num_outputs == 1

    @property
    def num_train_examples(self) -> int:
        """Ratings to learn from, or pairs that are known to be watched or not."""
        if self.of_ratings:
            return self.sizes["train"]
        return int(np.count_nonzero(self.dataset.signs))

    @functools.cached_property
    def baselines(self) -> dict[str, dict[str, Any]]:
        """Parameters of simpler models, `biases` and `popularity`."""
        if not self.of_ratings:
            return watch_baselines(self.dataset.signs)
        pairs, ratings = in_memory(self.dataset, "train")
        values = (ratings.astype(np.float64) - self.likelihood.shift) / self.likelihood.scale
        weights = self.dataset.weights.astype(np.float64)
        return rating_baselines(pairs, values, weights, self.network.shape)

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood:
        """The likelihood of all training pairs, relative to that of the biases.

        It is nearer to zero then, where float32 keeps more.
        """
        return self._of_ratings(split, mesh) if self.of_ratings else self._of_watches(mesh)

    def _of_watches(self, mesh: Mesh) -> OwnLogLikelihood:
        """The likelihood of the whole matrix, with users' parameters beside their rows."""
        num_users = self.network.shape[0]
        signs = self.dataset.signs
        num_places = transfer.padded_size(num_users, mesh, DATA)
        log_probs = watch_likelihood.make_log_probs(mesh)

        def place() -> Any:
            biases = self.baselines["biases"]
            reference = watch_likelihood.user_log_likelihoods(biases, signs)
            return watch_likelihood.place(signs, reference, mesh)

        return OwnLogLikelihood(
            place,
            watch_likelihood.make_value_and_grad(mesh),
            parts="users",
            num_parts=num_users,
            layout=Layout(watch_likelihood.USERS, num_users, num_places),
            predict=lambda params, inputs: {"log_probs": log_probs(params, inputs)},
        )

    def _of_ratings(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood:
        """The weighted sum over ratings, which are spread over the devices."""
        shape = self.network.shape
        num_ratings = len(split.targets)
        is_by_blocks = rating_likelihood.is_by_blocks(num_ratings, *shape)

        def place() -> Any:
            biases = jax.tree.map(lambda leaf: np.asarray(leaf)[None], self.baselines["biases"])
            reference = np.asarray(scores.mixture(self, biases, split)[1])
            ratings = rating_likelihood.Ratings(*split, self.dataset.weights, reference)
            if is_by_blocks:
                return rating_likelihood.place_blocks(ratings, *shape, mesh)
            return rating_likelihood.place_pairs(ratings, mesh)

        if is_by_blocks:
            value_and_grad = rating_likelihood.by_blocks(self.likelihood, mesh)
        else:
            value_and_grad = rating_likelihood.by_pairs(self.likelihood, self.network, mesh)
        return OwnLogLikelihood(place, value_and_grad, "ratings", num_ratings)

    def fault(self, variables: Variables | None) -> str:
        """Nothing in products and sums makes what is not finite."""
        return ""

    def draw_report(self) -> DrawSections:
        """Returns the function that makes the section `recommendation` of the draws."""
        return lambda params, maximum: {"recommendation": scores.section(self, params, maximum)}


def create(config: ml_collections.FrozenConfigDict, data: Any) -> Factorisation:
    """Makes the task of a run.

    Args:
        config: Configuration of the run.
        data: Data of a program, by `given_interactions`; None: `config.dataset` names them.

    Raises:
        InputError: The configuration does not suit the task, or the data cannot be used.
    """
    if data is None and config.model not in models_of(config.dataset):
        raise InputError(
            f"config.model={config.model!r} needs who watched or rated what, which "
            f"{config.dataset} does not say; set config.dataset to such as ratings:FILE.csv, "
            "movielens/1m-ratings or watches:1000x600"
        )
    flat = flatten(config)
    priors = parse_prior(config.prior)
    allowed = {
        "likelihood": ("categorical", RATINGS),
        "sampler.mass_matrix": ("identity", "diagonal"),
        "train_on_all": (False,),
    }
    for key, values in allowed.items():
        if flat[key] not in values:
            choices = " or ".join(map(repr, values))
            raise InputError(f"config.{key}={flat[key]!r} must be {choices} for a factorisation")
    if any(one.is_over_fan_in for one in priors):
        raise InputError(
            f"config.prior={config.prior!r} has a fan-in, which a factorisation has not; set "
            "'normal(1)'"
        )
    request = Request(config.data_dir or None, config.seed, own=flat, prepares=True)
    dataset: Any = load(config.dataset, request) if data is None else data.source(request)
    likelihood: Any = make_likelihood(dataset, config)
    shape = dataset.interactions.shape
    if max(shape) > _MOST:
        raise InputError(f"{dataset.name} has over {_MOST:,} users or items; leave some out")
    network = MatrixFactorisation(shape, config.num_factors, likelihood.num_outputs)
    return Factorisation(dataset, network, likelihood, priors)


def restore(
    config: Mapping[str, Any], description: Mapping[str, Any], params: Any
) -> Factorisation:
    """Makes the task of a workdir, to predict with; the arguments are `supervised.restore`'s.

    Raises:
        InputError: The parameters are not those of the configuration.
    """
    likelihood: Any = from_dict(config["likelihood"], description)
    num_users, num_items = (params[f"{kind}_bias"].shape[1] for kind in ("user", "movie"))
    shape = num_users, num_items
    network = MatrixFactorisation(shape, config["num_factors"], likelihood.num_outputs)
    task = Factorisation(described_dataset(description), network, likelihood)
    check_params(params, task.params_shapes(), config, task)
    return task
