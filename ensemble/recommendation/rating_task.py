"""The task of factorising ratings: how does a user rate an item?

r_ij ~ N(U_i V_j' + u_i + v_j, sd^2) of the pairs that were rated, in units of the ratings' standard
deviation and around their mean, with the priors on U, V, u, v and on what the sd is made of.
Nothing here is as large as users times items.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ensemble.data.source import Examples, in_memory
from ensemble.likelihoods.numbers import SharedGaussian
from ensemble.recommendation import rating_likelihood
from ensemble.recommendation import recommend as recommendation
from ensemble.recommendation.baselines import RatingBiases, fit_item_means, fit_rating_biases
from ensemble.recommendation.datasets import RatingDataset
from ensemble.recommendation.watch_task import OWN, LearnedFactors
from ensemble.task import DrawSections, OwnLogLikelihood


@dataclasses.dataclass(frozen=True)
class RatingFactorisation(LearnedFactors):
    """Ratings, and the factors that are to explain them."""

    dataset: RatingDataset
    likelihood: SharedGaussian

    @property
    def num_train_examples(self) -> int:
        """Ratings to learn from."""
        return self.dataset.sizes["train"]

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """How often each training rating counts, [R] float32."""
        weights = self.dataset.weights
        return np.ones(self.num_train_examples, np.float32) if weights is None else weights

    @functools.cached_property
    def baselines(self) -> dict[str, RatingBiases]:
        """Simpler models of standardised ratings: biases of users and items, and items' means."""
        (pairs, ratings), (num_users, num_items) = in_memory(self.dataset, "train"), self.shape
        values = (ratings.astype(np.float64) - self.likelihood.shift) / self.likelihood.scale
        arguments = pairs, values, self.weights.astype(np.float64), num_users, num_items
        return {"biases": fit_rating_biases(*arguments), "popularity": fit_item_means(*arguments)}

    def own_log_likelihood(self, split: Examples, mesh: Mesh) -> OwnLogLikelihood:
        """The weighted sum over ratings, which are spread over the devices."""
        num_ratings = len(split.targets)
        is_by_blocks = rating_likelihood.is_by_blocks(num_ratings, *self.shape)

        def place() -> Any:
            means, sd = self._said_by(self.baselines["biases"], split.inputs)
            reference = log_densities(split.targets, means, sd).astype(np.float32)
            ratings = rating_likelihood.Ratings(*split, self.weights, reference)
            if is_by_blocks:
                return rating_likelihood.place_blocks(ratings, *self.shape, mesh)
            return rating_likelihood.place_pairs(ratings, mesh)

        def log_prob(params: Any, outputs: jax.Array, targets: jax.Array) -> jax.Array:
            return self.likelihood.log_prob(params[OWN], outputs, targets)

        def outputs(params: Any, pairs: jax.Array) -> jax.Array:
            return self.outputs({"params": params}, pairs)[1]

        if is_by_blocks:
            value_and_grad = rating_likelihood.by_blocks(log_prob, mesh)
        else:
            value_and_grad = rating_likelihood.by_pairs(log_prob, outputs, mesh)
        return OwnLogLikelihood(place, value_and_grad, "ratings", num_ratings)

    def draw_report(self) -> DrawSections:
        """What the draws recommend, beside the MAP and simpler models."""

        def sections(params: Any, maximum: Any) -> dict[str, Any]:
            scores = self.score_models(params, maximum)
            section = recommendation.recommendation_section(self.dataset, params, scores)
            return {"recommendation": section}

        return sections

    def score_models(self, draws: Any, map_params: Any) -> dict[str, dict[str, float]]:
        """Scores the posterior and simpler models on held-out ratings.

        Returns:
            RMSE, and log likelihood in nats a rating, in the ratings' units: of the mixture of the
            draws, of the MAP, of a bias for each user and item, and of each item's mean.
        """
        pairs, ratings = in_memory(self.dataset, "test")
        means, log_density = np.zeros(len(ratings)), np.full(len(ratings), -np.inf)
        num_draws = recommendation.num_of(draws)
        for k in range(num_draws):  # One at a time: all of them may be more than memory holds.
            mean, sd = self._said_by_draw(jax.tree.map(lambda leaf, k=k: leaf[k], draws), pairs)
            means += mean / num_draws
            one = log_densities(ratings, mean, sd) - np.log(num_draws)
            log_density = np.logaddexp(log_density, one)
        found = {"posterior": (means, log_density)}
        mean, sd = self._said_by_draw(map_params, pairs)
        found["map"] = mean, log_densities(ratings, mean, sd)
        for name, model in self.baselines.items():
            mean, sd = self._said_by(model, pairs)
            found[name] = mean, log_densities(ratings, mean, sd)
        return {
            name: {
                "log_likelihood": float(log_density.mean()),
                "rmse": float(np.sqrt(np.mean((mean - ratings) ** 2))),
            }
            for name, (mean, log_density) in found.items()
        }

    def _said_by_draw(self, params: Mapping[str, Any], pairs: np.ndarray) -> tuple[Any, Any]:
        """Means and standard deviations [P] of ratings by one draw."""
        predicted = _predict(self, params, pairs)
        return np.asarray(predicted["loc"], np.float64), np.asarray(predicted["scale"], np.float64)

    def _said_by(self, model: RatingBiases, pairs: np.ndarray) -> tuple[np.ndarray, float]:
        """Means [P] and the standard deviation of ratings by a simpler model."""
        mean = model.user_bias[pairs[:, 0]] + model.item_bias[pairs[:, 1]]
        shift, scale = self.likelihood.shift, self.likelihood.scale
        return shift + scale * mean, scale * model.sd


def log_densities(ratings: np.ndarray, means: np.ndarray, sd: Any) -> np.ndarray:
    """Log densities [P] of ratings by normal distributions, float64 nats."""
    return -0.5 * (((ratings - means) / sd) ** 2 + np.log(2 * np.pi)) - np.log(sd)


@functools.partial(jax.jit, static_argnums=0)
def _predict(task: RatingFactorisation, params: Any, pairs: Any) -> Any:
    return task.predict({"params": params}, pairs)
