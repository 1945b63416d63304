"""What chains predict by the draws that they keep: each of these is an estimator of its chain."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs, Source
from ensemble.draws.store import LOG_PROB, MAX_BYTES, Draws
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.notes import note
from ensemble.runtime.predict import predict_pooled
from ensemble.sharding import processes


class _Predicted(NamedTuple):
    """What draws have said of a split.

    Attributes:
        numbers: of these draws.
        arrays: [C, K, N, ...] of the estimators that they have become; none of no draws.
        counts: [K] of the draws that an estimator stands for.
        scores: of each draw, `Predictive.scores` by name, means [C] over the examples.
    """

    numbers: list[int]
    arrays: Arrays
    counts: np.ndarray
    scores: list[dict[str, np.ndarray]]


class DrawPredictions:
    """Predictions of splits by the draws on disk.

    As draws are added, those that have predicted are not asked again until their spacing grows, as
    of `Draws.predicting`: then all predict anew. Every process must ask; the main one reads the
    draws.

    Args:
        likelihood: of the task.
        dataset: of the task.
        most: draws of a chain that predict, `config.max_draws_per_chain`.
        predict: called as `predict(params, split)` with the parameters [C, ...] of one draw, nested
            dicts on the host; returns arrays [C, N, ...].
    """

    def __init__(
        self,
        likelihood: Likelihood,
        dataset: Source,
        most: int,
        predict: Callable[[Any, str], Arrays],
    ):
        self._likelihood = likelihood
        self._dataset = dataset
        self._most = most
        self._predict = predict
        self._known: dict[str, _Predicted] = {}
        self._score = jax.jit(functools.partial(draw_scores, likelihood))

    def of_split(self, name: str, draws: Draws) -> Predictive:
        """What the chains say of a split."""
        return as_members(self._likelihood, self._up_to_date(name, draws).arrays)

    def average_draw(self, name: str, draws: Draws) -> dict[str, np.ndarray]:
        """The mean `Predictive.scores` [C] of single draws on a split, by name."""
        scores = self._up_to_date(name, draws).scores
        return {key: np.mean([one[key] for one in scores], axis=0) for key in scores[0]}

    def note_fewer(self, draws: Draws) -> None:
        """Says that fewer draws predict than are kept and asked for; the main process's."""
        num_kept = len(draws.kept)
        if draws.num_that_fit < min(num_kept, self._most):
            note(
                f"{len(draws.predicting(self._most))} of the {num_kept} draws that each chain "
                f"keeps predict: the variables of more would take over {MAX_BYTES >> 20} MB."
            )

    def _up_to_date(self, name: str, draws: Draws) -> _Predicted:
        numbers = processes.from_main(lambda: draws.predicting(self._most).tolist())
        before = self._known.get(name)
        if before is None or before.numbers != numbers[: len(before.numbers)]:
            before = _Predicted([], {}, np.zeros(0, int), [])
        new = numbers[len(before.numbers) :]
        if new:
            before = self._with_draws(name, before, new, draws)
        self._known[name] = before
        return before

    def _with_draws(
        self, name: str, before: _Predicted, new: list[int], draws: Draws
    ) -> _Predicted:
        kept = draws.positions(np.array(new))[0] if processes.is_main() else {}
        shapes = processes.from_main(lambda: jax.tree.map(np.shape, kept))
        params = processes.tree_from_main(
            kept
            or jax.tree.map(
                lambda shape: np.zeros(shape, np.float32),
                shapes,
                is_leaf=lambda one: not isinstance(one, dict),
            )
        )
        targets = self._dataset.targets(name)
        rows = targets, np.ones(len(targets), bool)
        arrays, counts, scores = before.arrays, before.counts, list(before.scores)
        for k in range(len(new)):
            predicted = self._predict(pytrees.at(params, np.s_[:, k]), name)
            scores.append(jax.tree.map(np.asarray, self._score(dict(predicted), *rows)))
            own = pytrees.at(predicted, np.s_[:, None])
            if arrays:
                own = {key: np.concatenate([arrays[key], one], 1) for key, one in own.items()}
            arrays, counts = self._likelihood.pooled({**arrays, **own}, np.append(counts, 1))
        return _Predicted(before.numbers + new, arrays, counts, scores)


def predict_in_passes(
    predict: Callable[..., Arrays],
    inputs: Inputs,
    shape: tuple[int, int],
    likelihood: Likelihood,
) -> Predictive:
    """What members say of inputs by their estimators, pooled for some examples at a time.

    Args:
        predict: of inputs [N, ...], arrays [M * K, N, ...].
        inputs: [N, ...].
        shape: (M, K), members and estimators of each.
        likelihood: makes the predictive, and pools estimators.
    """
    num_members, num_each = shape
    if num_each == 1:
        return likelihood.predictive(predict(inputs))
    counts = np.ones(num_each, int)
    arrays = predict_pooled(predict, inputs, shape, lambda one: likelihood.pooled(one, counts)[0])
    num_estimators = len(next(iter(arrays.values())))
    return likelihood.predictive(arrays, member_of(num_members, num_estimators // num_members))


def draw_scores(likelihood: Likelihood, predicted: Arrays, targets: Any, mask: Any) -> Arrays:
    """Means [C] over N examples of the scores of one draw of every chain.

    Args:
        likelihood: of the task.
        predicted: [C, N, ...].
        targets: [N].
        mask: [N], of the examples that are no padding.

    Returns:
        `Predictive.scores`, by name.
    """
    return {
        name: jnp.sum(jnp.where(mask, one, 0), axis=-1) / jnp.sum(mask)
        for name, one in likelihood.each_score(predicted, targets).items()
    }


def as_members(likelihood: Likelihood, arrays: Arrays) -> Predictive:
    """Estimators [C, K, N, ...] of chains as predictions [C * K, N, ...], float32."""
    flat = {name: one.astype(np.float32, copy=False) for name, one in arrays.items()}
    return likelihood.predictive(
        pytrees.merged(flat), member_of(*next(iter(arrays.values())).shape[:2])
    )


def member_of(num_members: int, num_estimators: int) -> np.ndarray | None:
    """Numbers estimators by their member, as `Predictive` has it, for as many estimators of
    each member."""
    if num_estimators == 1:
        return None
    return np.repeat(np.arange(num_members), num_estimators)


def draw_scalars(
    likelihood: Likelihood, examples: np.ndarray, predicted: Arrays, targets: Any, mask: Any
) -> Arrays:
    """What is recorded of the predictions of a draw of every chain.

    Args:
        likelihood: of the task.
        examples: [n], numbers of some examples.
        predicted: [C, N, ...].
        targets: [N].
        mask: [N], of the examples that are no padding.

    Returns:
        Scores [C], and log-probabilities [C, n] of the targets of these examples, by a name with a
        place for their numbers.
    """
    scores = draw_scores(likelihood, predicted, targets, mask)
    some = pytrees.at(predicted, np.s_[:, examples])
    targets = jax.tree.map(operator.itemgetter(examples), targets)
    return {
        **{name: scores[name] for name in likelihood.traced},
        LOG_PROB + "{:02d}": -likelihood.each_score(some, targets)["nll"],
    }
