"""The task of matrix factorisation: which items has a user watched, or how does a user rate them?

The log-odds of user i watching item j, or the rating in units of the ratings' standard deviation
and around their mean, is x_ij = U_i V_j' + u_i + v_j, with priors on U, V, u and v:

    W_ij ~ Bernoulli(sigmoid(x_ij)) of all pairs,    or    r_ij ~ N(x_ij, sd^2) of the rated ones.

It is supervised learning of pairs of a user and an item, but for the likelihood of watches, and of
ratings that are a good share of all pairs. That is computed by blocks of users times all items,
with users' parameters next to their rows: `likelihood`. For ratings nothing is as large as users
times items.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array, lax, random
from jax.sharding import Mesh
from numpy.typing import NDArray

from ensemble.config import Config, flatten
from ensemble.data.catalogue import load, models_of
from ensemble.data.source import Examples, Request
from ensemble.errors import InputError
from ensemble.likelihoods import from_dict
from ensemble.likelihoods.numbers import MIN_SCALE
from ensemble.methods.log_density import make_log_density, sum_of_examples
from ensemble.methods.start import find_map
from ensemble.metrics.ranking import auroc
from ensemble.network import Variables
from ensemble.priors import parse_prior
from ensemble.pytrees import ByName
from ensemble.recommendation import likelihood
from ensemble.recommendation.dataset import RATINGS
from ensemble.recommendation.likelihood import USERS, outputs_of
from ensemble.report.table import Section, grid
from ensemble.sharding.transfer import with_own_gradient
from ensemble.task import DrawSections, OwnLogLikelihood
from ensemble.tasks.supervised import OWN, Supervised, described_dataset, make_likelihood

NUM_RECOMMENDED = 20
_USERS_PER_BLOCK = 256


def of_users(draws: Any, users: slice) -> ByName:
    """Draws [K, ...] of the parameters of all items and of some users alone."""
    return {**draws, **{name: draws[name][:, users] for name in USERS}}


def score(task: Any, draws: Any) -> dict[str, float]:
    """Scores a mixture of draws on the pairs that a `Factorisation` holds out.

    Args:
        task: `Factorisation` that was learned.
        draws: Parameters [K, ...].

    Returns:
        Log likelihood in nats a pair; and AUC and recall@20 of watches, or RMSE of ratings.
    """
    test = task.dataset.splits["test"]
    mean, log_density = (np.asarray(one, np.float64) for one in _mixture(task, draws, test))
    found = {"log_likelihood": log_density.mean()}
    if task.of_ratings:
        found["rmse"] = np.mean((mean - test.targets) ** 2) ** 0.5
    else:
        signs = task.dataset.signs
        relevant = np.zeros(signs.shape, bool)
        relevant[tuple(test.inputs[test.targets == 1].T)] = True
        recalled = []
        for start in range(0, len(signs), _USERS_PER_BLOCK):
            users = slice(start, start + _USERS_PER_BLOCK)
            best = _best(of_users(draws, users), signs[users] > 0)
            recalled.append(recalls(np.asarray(best), relevant[users]))
        found["auc"] = auroc(mean, test.targets == 1).mean()
        found[f"recall_at_{NUM_RECOMMENDED}"] = np.concatenate(recalled).mean()
    return {name: float(value) for name, value in found.items()}


@partial(jax.jit, static_argnums=0)
def _mixture(task, draws, split) -> tuple[Array, Array]:
    """Predictions of the pairs [P] of a split by the mixture of draws.

    Returns:
        Means of ratings, or probabilities of watching; and log densities of the targets, nats.
    """

    def add(total, params):
        log_prob, aux = task.log_likelihood({"params": params}, *split)
        found = aux.predicted
        mean = found["loc"] if task.of_ratings else jnp.exp(found["log_probs"][:, 1])
        return (total[0] + mean, jnp.logaddexp(total[1], log_prob)), None

    number = len(draws["user_bias"])
    zeros = jnp.zeros(len(split.targets))
    mean, log_density = lax.scan(add, (zeros, zeros - jnp.inf), draws)[0]
    return mean / number, log_density - jnp.log(number)


@jax.jit
def _best(draws, seen: Array) -> Array:
    """Numbers of the items recommended to users [B, k] who have seen some, bool [B, M].

    They are the likeliest by the mixture of draws; of equal ones the first.
    """

    def add(total: Array, params) -> tuple[Array, None]:
        return total + jax.nn.sigmoid(outputs_of(params)), None

    total, _ = lax.scan(add, jnp.zeros(seen.shape), draws)
    number = min(NUM_RECOMMENDED, seen.shape[1])
    return lax.top_k(jnp.where(seen, -jnp.inf, total), number)[1]


def recalls(best: NDArray, relevant: NDArray) -> NDArray[np.float64]:
    """Recall of the items recommended to each user (Liang et al. 2018, arXiv:1802.05814, 4.2).

    Of a user with relevant items R and k recommendations, the share |R & best| / min(k, |R|), which
    is 1 at best.

    Args:
        best: Numbers of the items that are recommended, int [N, k], of those that were not seen.
        relevant: Whether an item that was not seen is watched, too, bool [N, M].

    Returns:
        Recalls of the users who have relevant items, [U], in the order of the users.
    """
    hits = np.take_along_axis(relevant, best, axis=1).sum(axis=1)
    counts = relevant.sum(axis=1)
    has_some = counts > 0
    return hits[has_some] / np.minimum(best.shape[1], counts[has_some])


_TITLES = {"log_likelihood": "nats", "auc": "AUC", "recall_at_20": "recall@20", "rmse": "RMSE"}


def _contents(report: ByName) -> list[str]:
    """Shows the draws that were kept next to simpler models, by the pairs that were held out."""
    found = report["recommendation"]["held_out"]
    rows = [[model, *(f"{one:.4f}" for one in found[model].values())] for model in found]
    return ["", grid(["held out", *(_TITLES[name] for name in found["posterior"])], rows)]


SECTION = Section(_contents)


_START = 0.1  # Standard deviation of the embeddings where a search for the MAP starts.
_PAIRS_PER_RATING = 64  # With more pairs for each rating, blocks of all pairs are slower.
_MAX_PAIRS = 2**28  # Of 8 bytes each, for ratings to be learned by blocks.
_ALLOWED = {
    "likelihood": ("categorical", RATINGS),
    "sampler.mass_matrix": ("identity", "diagonal"),
    "train_on_all": (False,),
}


@dataclass(frozen=True)
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

    def init(self, rng_key: Array, inputs: Any) -> Variables:
        """Starts small random factors, for at zero all of them are alike, and no biases."""
        params = {}
        keys = random.split(rng_key)
        for kind, key, size in zip(("user", "movie"), keys, self.shape, strict=True):
            embeddings = random.normal(key, (size, self.num_factors))
            params[f"{kind}_embeddings"] = _START * embeddings
            params[f"{kind}_bias"] = jnp.zeros(size)
        return {"params": params}

    def apply(
        self, variables: Variables, inputs: Array, train: bool = False, rng_key: Any = None
    ) -> tuple[Array, Variables]:
        """Maps pairs [P, 2], the numbers of a user and of an item, to outputs [P, K]."""
        users, items = likelihood.join_biases(variables["params"])
        rows, columns = inputs.astype(jnp.int32).T
        return self.logits(jnp.sum(users[rows] * items[columns], axis=-1)), {}

    def logits(self, found: Array) -> Array:
        """Makes outputs [P, K] of log-odds or standardised ratings [P]."""
        if self.num_outputs == 1:
            return found[:, None]
        return jnp.stack([jnp.zeros_like(found), found], axis=-1)

    def check_inputs(self, inputs: np.ndarray, params: Any) -> None:
        """Refuses pairs [P, 2] that are not numbers of users and of items."""
        if ((inputs < 0) | (inputs >= self.shape)).any():
            raise InputError(
                "pairs have an unknown user or item: use whole numbers from 0, below the "
                f"{self.shape[0]} users and the {self.shape[1]} items"
            )


@dataclass(frozen=True)
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

    def biases(self, mesh: Mesh) -> Any:
        """Parameters of the same model without factors, with priors N(0, 1), at the maximum."""
        network = replace(self.network, num_factors=0)
        simple = replace(self, network=network, priors=parse_prior("normal(1)"))
        train = self.dataset.splits["train"]
        return find_map(simple, make_log_density(simple, train, mesh))

    @cached_property
    def popularity(self) -> ByName:
        """Parameters of the model for which all users are alike, without factors.

        The probability of watching an item is (watched + 1) / (known + 2), by Laplace's rule of
        succession; its rating is the mean of its ratings and of one that is average.
        """
        num_users, num_items = self.network.shape
        own = {}
        if self.of_ratings:
            pairs, ratings = self.dataset.splits["train"]
            items = pairs[:, 1]
            weights = self.dataset.weights
            values = (ratings - self.likelihood.shift) / self.likelihood.scale
            sums = np.bincount(items, weights * values, num_items)
            bias = sums / (np.bincount(items, weights, num_items) + 1)
            sd = np.average((values - bias[items]) ** 2, weights=weights) ** 0.5
            raw, start = np.log(np.expm1([max(sd - MIN_SCALE, MIN_SCALE), 1 - MIN_SCALE]))
            own = {OWN: {"raw_scale": raw - start}}
        else:
            watched, others = np.log(likelihood.count(self.dataset.signs) + 1)
            bias = watched - others
        return {
            "user_embeddings": np.zeros((num_users, 0)),
            "user_bias": np.zeros(num_users),
            "movie_embeddings": np.zeros((num_items, 0)),
            "movie_bias": bias,
            **own,
        }

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood:
        """The likelihood of all training pairs, relative to that of a simpler model.

        It is nearer to zero then, where float32 keeps more. That of watches, and of ratings that
        are a good share of all pairs, is computed by blocks of users, with users' parameters next
        to their rows; that of other ratings by pairs.
        """
        num_users, num_items = shape = self.network.shape
        noise = self.likelihood
        weights = self.dataset.weights
        most_pairs = min(_PAIRS_PER_RATING * len(weights), _MAX_PAIRS)
        if self.of_ratings and num_users * num_items > most_pairs:
            # Mean log density, were all ratings from one normal distribution.
            reference = -scipy.stats.norm.entropy(scale=noise.scale)

            def of_pairs(variables, inputs, targets: Array):
                log_prob, aux = self.log_likelihood(variables, inputs, targets[:, 0])
                return targets[:, 1] * (log_prob - reference), aux

            weighted: Any = SimpleNamespace(prepare=lambda pairs: pairs, log_likelihood=of_pairs)
            targets = np.stack([split.targets, weights], axis=1)
            return sum_of_examples(weighted, Examples(split.inputs, targets), mesh)

        of_block = likelihood.of_ratings if self.of_ratings else likelihood.of_watches
        by_blocks = likelihood.make_value_and_grad(of_block, mesh)

        def place():
            if not self.of_ratings:
                signs = self.dataset.signs
                return likelihood.place([signs], likelihood.of_popularity(signs), mesh)
            cells: Any = np.zeros((2, *shape), np.float32)
            cells[:, *split.inputs.T] = (split.targets - noise.shift) / noise.scale, weights
            return likelihood.place(cells, 0, mesh)

        def of_ratings(params, placed) -> Array:
            """Makes the log likelihood of that of noise N(0, 1) and the noise that is learned."""
            factors = {**params}
            sd = noise.parameters(factors.pop(OWN), jnp.zeros(1))["scale"]
            fit = with_own_gradient(by_blocks, placed)(factors)
            return fit / sd**2 + weights.sum() * (0.5 - jnp.log(sd))

        value_and_grad = jax.value_and_grad(of_ratings) if self.of_ratings else by_blocks
        layout, _ = likelihood.layout_of(shape, mesh)
        outputs = likelihood.make_outputs(mesh)

        def predict(params, pairs: Array) -> dict[str, Array]:
            found = self.network.logits(outputs(params, pairs.astype(jnp.int32)))
            return self.likelihood.predict(params.get(OWN, {}), found)

        return OwnLogLikelihood(place, value_and_grad, "users", num_users, layout, predict)

    def draw_report(self, mesh: Mesh) -> DrawSections:
        """Returns the function that makes the section `recommendation` of the draws."""
        # Every process finds the biases, as it finds the MAP.
        biases = self.biases(mesh)

        def sections(draws, maximum) -> ByName:
            held_out = {"posterior": score(self, draws)}
            models = {"map": maximum, "biases": biases, "popularity": self.popularity}
            for name, params in models.items():
                alone = jax.tree.map(lambda leaf: np.asarray(leaf)[None], params)
                held_out[name] = score(self, alone)
            return {"recommendation": {"held_out": held_out}}

        return sections


def create(config: Config, data: Any) -> Factorisation:
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
    for key, values in _ALLOWED.items():
        if flat[key] not in values:
            raise InputError(
                f"config.{key}={flat[key]!r} must be {' or '.join(map(repr, values))} for a "
                "factorisation"
            )
    if any(one.is_over_fan_in for one in priors):
        raise InputError(f"config.prior={config.prior!r} has a fan-in; set 'normal(1)'")
    request = Request(config.data_dir or None, config.seed, own=flat)
    dataset: Any = load(config.dataset, request) if data is None else data.source(request)
    shape = dataset.shape
    found: Any = make_likelihood(dataset, config)
    network = MatrixFactorisation(shape, config.num_factors, found.num_outputs)
    return Factorisation(dataset, network, found, priors)


def restore(config: ByName, description: ByName, params: Any) -> Factorisation:
    """Makes the task of a workdir, to predict with; the arguments are `supervised.restore`'s."""
    found: Any = from_dict(config["likelihood"], description)
    shape = params["user_bias"].shape[1], params["movie_bias"].shape[1]
    network = MatrixFactorisation(shape, config["num_factors"], found.num_outputs)
    return Factorisation(described_dataset(description), network, found)
