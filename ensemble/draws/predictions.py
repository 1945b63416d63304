"""What chains predict by the draws that they keep: each of these is an estimator of its chain."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.data.source import Inputs, Source
from ensemble.draws.store import LOG_PROB, Draws
from ensemble.likelihoods.likelihood import Likelihood
from ensemble.likelihoods.predictive import Arrays, Predictive
from ensemble.runtime.predict import MAX_BATCH_SIZE
from ensemble.sharding import processes

_SINGLE_BYTES = 1 << 28
"""The size of predictions of single estimators before they are pooled."""
_MAX_BATCHES = 16  # Of inputs in memory meanwhile.
_SINGLE = np.ones(1, int)


class _Predicted(NamedTuple):
    """Predictions of a split by some draws.

    Attributes:
        numbers: Their numbers.
        arrays: Arrays [C, K, N, ...] of the estimators that they have become.
        counts: Numbers [K] of draws that each of these stands for.
        scores: `Predictive.scores` of each draw by name, means [C] over the examples.
    """

    numbers: list[int]
    arrays: Arrays
    counts: np.ndarray
    scores: list[Arrays]


@dataclasses.dataclass(frozen=True)
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

    likelihood: Likelihood
    dataset: Source
    most: int
    predict: Callable[[Any, str], Arrays]
    _known: dict[str, _Predicted] = dataclasses.field(default_factory=dict)

    def of_split(self, name: str, draws: Draws) -> Predictive:
        """Returns the predictions of a split by all chains."""
        return _of_all(self.likelihood, self._up_to_date(name, draws).arrays)

    def average_draw(self, name: str, draws: Draws) -> dict[str, np.ndarray]:
        """Returns the mean `Predictive.scores` [C] of single draws on a split, by name."""
        scores = self._up_to_date(name, draws).scores
        found: Arrays = jax.tree.map(lambda *each: np.mean(each, axis=0), *scores)
        return found

    def _up_to_date(self, name: str, draws: Draws) -> _Predicted:
        numbers = processes.from_main(lambda: draws.predicting(self.most).tolist())
        known = self._known.get(name)
        if known is None or known.numbers != numbers[: len(known.numbers)]:
            known = _Predicted([], {}, np.zeros(0, int), [])
        _, arrays, counts, scores = known
        new = numbers[len(known.numbers) :]
        params = _read(draws, new) if new else {}
        targets = self.dataset.targets(name) if new else ()
        for k in range(len(new)):
            predicted = self.predict(pytrees.at(params, np.s_[:, k]), name)
            mask = np.ones(len(targets), bool)
            score = _draw_scores(self.likelihood, dict(predicted), targets, mask)
            scores.append(jax.tree.map(np.asarray, score))
            own, one = self.likelihood.pooled(pytrees.at(predicted, np.s_[:, None]), _SINGLE)
            if arrays:
                own = jax.tree.map(lambda *each: np.concatenate(each, axis=1), arrays, own)
            arrays, counts = self.likelihood.pooled(own, np.append(counts, one))
        self._known[name] = known = _Predicted(numbers, arrays, counts, scores)
        return known


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
    if shape[1] == 1:
        return likelihood.predictive(predict(inputs))
    # Of float32, about as many as the network's outputs.
    of_batch = 4 * math.prod(shape) * likelihood.num_outputs * MAX_BATCH_SIZE
    size = MAX_BATCH_SIZE * min(max(1, _SINGLE_BYTES // of_batch), _MAX_BATCHES)
    parts = []
    for start in range(0, len(inputs), size):
        arrays = predict(inputs[start : start + size])
        single = {name: one.reshape(*shape, *one.shape[1:]) for name, one in arrays.items()}
        parts.append(likelihood.pooled(single, np.ones(shape[1], int))[0])
    joined = jax.tree.map(lambda *each: np.concatenate(each, axis=2), *parts)
    return _of_all(likelihood, joined)


def _of_all(likelihood: Likelihood, arrays: Arrays) -> Predictive:
    """Makes the predictive of arrays [M, K, N, ...], of K estimators of each member."""
    num_members, number = next(iter(arrays.values())).shape[:2]
    merged = {k: v.astype(np.float32, copy=False) for k, v in pytrees.merged(arrays).items()}
    member_of = None if number == 1 else np.repeat(np.arange(num_members), number)
    found: Predictive = likelihood.predictive(merged, member_of)
    return found


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


_draw_scores = jax.jit(draw_scores, static_argnums=0)


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
    nll = likelihood.each_score(some, pytrees.at(targets, examples))["nll"]
    return {
        **{name: scores[name] for name in likelihood.traced},
        LOG_PROB + "{:02d}": -nll,
    }
