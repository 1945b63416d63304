"""What chains predict by the draws that they keep: each of these is an estimator of its chain."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs, Source
from ensemble.draws.store import LOG_PROB, Draws
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.runtime.predict import MAX_BATCH_SIZE, joined
from ensemble.sharding import processes

_SINGLE_BYTES = 1 << 28
"""The size of predictions of single estimators before they are pooled."""
_MAX_BATCHES = 16  # Of inputs in memory meanwhile.

_Predicted = tuple[list[int], Arrays, np.ndarray, list[Arrays]]
"""Predictions of a split by some draws: their numbers; arrays [C, K, N, ...] of the estimators that
they have become; numbers [K] of draws that each of these stands for; `Predictive.scores` of each
draw by name, means [C] over the examples."""


class DrawPredictions:
    """Predictions of splits by the draws on disk.

    As draws are added, those that have predicted are not asked again until their spacing grows, as
    of `Draws.predicting`: then all predict anew. Every process must ask; the main one reads the
    draws.

    Args:
        likelihood: Likelihood of the task.
        dataset: Data of the task.
        most: Most draws of a chain that predict, `config.max_draws_per_chain`.
        predict: Function `(params, split) -> arrays [C, N, ...]` of the parameters [C, ...] of one
            draw, nested dicts on the host.
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
        """Returns the predictions of a split by all chains."""
        _, arrays, counts, _ = self._up_to_date(name, draws)
        num_chains = len(next(iter(arrays.values())))
        merged = {
            key: one.astype(np.float32, copy=False) for key, one in pytrees.merged(arrays).items()
        }
        return self._likelihood.predictive(merged, member_of(num_chains, len(counts)))

    def average_draw(self, name: str, draws: Draws) -> dict[str, np.ndarray]:
        """Returns the mean `Predictive.scores` [C] of single draws on a split, by name."""
        scores = self._up_to_date(name, draws)[-1]
        return {key: np.mean([one[key] for one in scores], axis=0) for key in scores[0]}

    def _up_to_date(self, name: str, draws: Draws) -> _Predicted:
        numbers = processes.from_main(lambda: draws.predicting(self._most).tolist())
        nothing: _Predicted = [], {}, np.zeros(0, int), []
        found = self._known.get(name, nothing)
        if found[0] != numbers[: len(found[0])]:
            found = nothing
        new = numbers[len(found[0]) :]
        params = _read(draws, new) if new else {}
        targets = self._dataset.targets(name) if new else ()
        for k, number in enumerate(new):
            known, arrays, counts, scores = found
            predicted = self._predict(pytrees.at(params, np.s_[:, k]), name)
            score = self._score(dict(predicted), targets, np.ones(len(targets), bool))
            own = pytrees.at(predicted, np.s_[:, None])
            if arrays:
                own = {key: np.concatenate([arrays[key], one], 1) for key, one in own.items()}
            pooled = self._likelihood.pooled({**arrays, **own}, np.append(counts, 1))
            found = [*known, number], *pooled, [*scores, jax.tree.map(np.asarray, score)]
        self._known[name] = found
        return found


def _read(draws: Draws, numbers: Sequence[int]) -> Any:
    """Reads parameters [C, K, ...] of draws, on the main process for all."""
    kept = draws.positions(np.array(numbers))[0] if processes.is_main() else {}
    shapes = processes.from_main(lambda: jax.tree.map(np.shape, kept))
    like = jax.tree.map(
        lambda shape: np.zeros(shape, np.float32), shapes, is_leaf=lambda x: not isinstance(x, dict)
    )
    return processes.tree_from_main(kept or like)


def predict_in_passes(
    predict: Callable[..., Arrays],
    inputs: Inputs,
    shape: tuple[int, int],
    likelihood: Likelihood,
) -> Predictive:
    """Predicts inputs by the estimators of members, pooled for some examples at a time.

    Args:
        predict: Function from inputs [N, ...] to arrays [M * K, N, ...].
        inputs: Inputs [N, ...].
        shape: Numbers (M, K) of members and of estimators of each.
        likelihood: Likelihood that makes the predictive, and pools estimators.
    """
    num_members, num_each = shape
    if num_each == 1:
        return likelihood.predictive(predict(inputs))
    counts = np.ones(num_each, int)
    start = 0
    size = MAX_BATCH_SIZE
    parts: list[Arrays] = []
    while start < len(inputs):
        here = slice(start, min(start + size, len(inputs)))
        arrays = predict(inputs[here])
        of_batch = sum(one[:, :1].nbytes for one in arrays.values()) * MAX_BATCH_SIZE
        start = here.stop
        size = MAX_BATCH_SIZE * min(max(1, _SINGLE_BYTES // of_batch), _MAX_BATCHES)
        single = {name: one.reshape(*shape, *one.shape[1:]) for name, one in arrays.items()}
        pooled = pytrees.merged(likelihood.pooled(single, counts)[0])
        parts.append({k: one.astype(np.float32, copy=False) for k, one in pooled.items()})
    found = joined(parts, len(inputs))
    num_estimators = len(next(iter(found.values())))
    return likelihood.predictive(found, member_of(num_members, num_estimators // num_members))


def draw_scores(likelihood: Likelihood, predicted: Arrays, targets: Any, mask: Any) -> Arrays:
    """Computes means [C] over N examples of the scores of one draw of every chain.

    Args:
        likelihood: Likelihood of the task.
        predicted: Predictions [C, N, ...].
        targets: Targets [N].
        mask: Mask [N], false for padding.

    Returns:
        `Predictive.scores`, by name.
    """
    return {
        name: jnp.sum(jnp.where(mask, one, 0), axis=-1) / jnp.sum(mask)
        for name, one in likelihood.each_score(predicted, targets).items()
    }


def member_of(num_members: int, num_estimators: int) -> np.ndarray | None:
    """Numbers estimators by their member, as `Predictive` has it, for as many estimators of
    each member."""
    if num_estimators == 1:
        return None
    return np.repeat(np.arange(num_members), num_estimators)


def draw_scalars(
    likelihood: Likelihood, examples: np.ndarray, predicted: Arrays, targets: Any, mask: Any
) -> Arrays:
    """Computes what is recorded of the predictions of a draw of every chain.

    Args:
        likelihood: Likelihood of the task.
        examples: Numbers [n] of some examples.
        predicted: Predictions [C, N, ...].
        targets: Targets [N].
        mask: Mask [N], false for padding.

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
