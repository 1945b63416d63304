"""What chains predict by the draws that they keep: each of these is an estimator of its chain."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import target_rows
from ensemble.batched_prediction import Keep, in_memory, predict_pooled
from ensemble.draws.store import MAX_BYTES, Draws
from ensemble.likelihood import Arrays, Likelihood
from ensemble.notes import note
from ensemble.sharding import processes
from ensemble.source import Inputs, Source
from ensemble.storage.predictions import MemberPredictions


class _Predicted(NamedTuple):
    """What draws have said of a split.

    Attributes:
        numbers: of these draws.
        arrays: [C, K, N, ...] of the estimators that they have become; none of no draws.
        counts: [K] of the draws that an estimator stands for.
        scores: of each draw, `Likelihood.draw_scores` by name, means [C] over the examples.
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
        most: draws of a chain that predict, `config.num_predictive_draws`.
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

    def of_split(self, name: str, draws: Draws) -> MemberPredictions:
        """What the chains say of a split."""
        return as_members(self._up_to_date(name, draws).arrays)

    def average_draw(self, name: str, draws: Draws) -> dict[str, np.ndarray]:
        """The mean `Likelihood.draw_scores` [C] of single draws on a split, by name."""
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
        params = processes.arrays_from_main(
            draws.positions(np.array(new))[0] if processes.is_main() else None
        )
        targets = self._dataset.targets(name)
        rows = target_rows.on_devices(targets), np.ones(len(targets), bool)
        arrays, counts, scores = before.arrays, before.counts, list(before.scores)
        for k in range(len(new)):
            predicted = self._predict(jax.tree.map(lambda leaf, k=k: leaf[:, k], params), name)
            scores.append(jax.tree.map(np.asarray, self._score(dict(predicted), *rows)))
            own = {key: one[:, None] for key, one in predicted.items()}
            if arrays:
                own = {key: np.concatenate([arrays[key], one], 1) for key, one in own.items()}
            arrays, counts = self._likelihood.pooled({**arrays, **own}, np.append(counts, 1))
        return _Predicted(before.numbers + new, arrays, counts, scores)


def predict_in_passes(
    predict: Callable[[Inputs], dict[str, np.ndarray]],
    inputs: Inputs,
    shape: tuple[int, int],
    pooled: Callable[[Arrays, np.ndarray], tuple[Arrays, np.ndarray]],
    keep: Keep = in_memory,
) -> MemberPredictions:
    """What members say of inputs by their estimators, pooled for some examples at a time.

    Args:
        predict: of inputs [N, ...], arrays [M * K, N, ...].
        inputs: [N, ...].
        shape: (M, K), members and estimators of each.
        pooled: `Likelihood.pooled`.
        keep: where predictions are to be, if there are several estimators of a member.
    """
    num_members, num_each = shape
    if num_each == 1:
        return MemberPredictions(predict(inputs))
    counts = np.ones(num_each, int)
    arrays = predict_pooled(predict, inputs, shape, lambda one: pooled(one, counts)[0], keep)
    num_estimators = len(next(iter(arrays.values())))
    return MemberPredictions(arrays, member_of(num_members, num_estimators // num_members))


def draw_scores(
    likelihood: Likelihood, predicted: Mapping[str, jax.Array], targets: Any, mask: Any
) -> dict[str, jax.Array]:
    """Means [C] over N examples of the scores of one draw of every chain.

    Args:
        likelihood: of the task.
        predicted: [C, N, ...].
        targets: [N].
        mask: [N], of the examples that are no padding.

    Returns:
        `Likelihood.draw_scores`, by name.
    """
    scores = likelihood.example_scores(predicted, targets)

    def mean(name: str) -> jax.Array:
        counts = target_rows.scored(name, targets, mask)
        return jnp.sum(jnp.where(counts, scores[name], 0), axis=-1) / jnp.sum(counts)

    return {name: mean(name) for name in likelihood.draw_scores}


def as_members(arrays: Arrays) -> MemberPredictions:
    """Estimators [C, K, N, ...] of chains as predictions [C * K, N, ...], float32."""
    flat = {
        name: one.reshape(-1, *one.shape[2:]).astype(np.float32, copy=False)
        for name, one in arrays.items()
    }
    return MemberPredictions(flat, member_of(*next(iter(arrays.values())).shape[:2]))


def member_of(num_members: int, num_estimators: int) -> np.ndarray | None:
    """Numbers estimators by their member, as `MemberPredictions` has it, for as many estimators of
    each member."""
    if num_estimators == 1:
        return None
    return np.repeat(np.arange(num_members), num_estimators)
