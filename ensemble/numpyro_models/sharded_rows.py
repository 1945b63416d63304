"""Whether a model's rows may be split over devices: a check by numbers, before anything is drawn.

A mean over the rows, in a row's distribution, would on a shard be the mean of its rows: a wrong
density without an error. So rows are replaced by others, which must change no term of the rest; and
the density of all shards must be that of the whole model.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.util import compute_log_probs, constrain_fn, potential_energy

from ensemble.errors import InputError
from ensemble.numpyro_models.sharded_distributions import MARK, dim_of
from ensemble.numpyro_models.sharded_model import Rows, ShardedModel
from ensemble.sharding import transfer

_TOLERANCE = 1e-5  # Nats of a term, which the same program computes of the same numbers.
_NUM_CHECKED = 2  # Points.
_SHARE = 1e-4  # Of all terms' sizes together: what rounding may do to their sum.


def check_rows(model: ShardedModel, params: Mapping[str, Any]) -> bool:
    """Refuses a model whose rows are not independent given what they share.

    The whole model is computed on one device, three times for each point.

    Args:
        model: over any number of shards; over one everything is right.
        params: [P, ...] points, unconstrained, without padding. The first ones with a finite
            density are looked at.

    Returns:
        Whether there was such a point.

    Raises:
        InputError: with the site that depends on other rows.
    """
    marks: dict[str, tuple[str, int]] = {}

    @jax.jit
    def whole(params: Any, arrays: Any) -> Any:
        args, kwargs = model.arguments.having(arrays)
        with jax.default_matmul_precision("highest"):
            values = constrain_fn(model.model, args, kwargs, params)
            terms, sites = compute_log_probs(model.model, args, kwargs, values, sum_log_prob=False)
            total = -jnp.asarray(potential_energy(model.model, args, kwargs, params))
        for name, site in sites.items():
            if MARK in site.get("infer", {}):
                plate, _ = site["infer"][MARK]
                marks[name] = plate, dim_of(site, plate)
        return terms, total

    on_shards = jax.jit(lambda params, data: model.bind(data)(params))
    arrays = {name: np.asarray(leaf) for name, leaf in model.arguments.arrays.items()}
    num_points, num_checked = len(next(iter(params.values()))), 0
    for i in range(num_points):
        point = {name: np.asarray(leaf[i]) for name, leaf in params.items()}
        terms, total = transfer.fetch(whole(point, arrays))
        if not np.isfinite(total) or num_checked == _NUM_CHECKED:
            continue
        num_checked += 1
        for half in (0, 1):
            replaced = _replaced(point, model.rows, half), _replaced(arrays, model.data_rows, half)
            others, _ = transfer.fetch(whole(*replaced))
            for name, (plate, dim) in marks.items():
                _check_terms(name, plate, *(_rows(one[name], dim, half) for one in (terms, others)))
        padded = transfer.put(model.pad(point), model.shardings)
        found = float(transfer.fetch(on_shards(padded, model.data)))
        size = sum(float(np.sum(np.abs(term))) for term in terms.values())
        if not abs(found - total) <= _SHARE * (1 + size):
            raise InputError(
                f"the log density of all rows is {total:.6g} nats, the sum over the shards "
                f"{found:.6g}: the model uses how many rows an argument has, or counts them, and "
                "a shard has a part of them; give such numbers as arguments"
            )
    return num_checked > 0


def _check_terms(name: str, plate: str, before: np.ndarray, after: np.ndarray) -> None:
    if not np.allclose(before, after, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        raise InputError(
            f"site {name!r} of a row of {plate!r} depends on other rows, as by a mean over them, "
            "and a shard has a part of the rows; give such a statistic of data as an argument, or "
            "use numpyro.plate, which is not split"
        )


def _half(num_rows: int, half: int) -> np.ndarray:
    """The numbers of half of the rows, at random: no distance between rows keeps to one half."""
    order = np.random.default_rng(num_rows).permutation(num_rows)
    return np.sort(np.array_split(order, 2)[half if num_rows > 1 else 0])


def _replaced(
    arrays: Mapping[str, np.ndarray], rows_of: Mapping[str, Rows | None], half: int
) -> dict[str, np.ndarray]:
    """Arrays with the first row of one half in place of all rows of the other."""

    def one(leaf: np.ndarray, rows: Rows | None) -> np.ndarray:
        if rows is None:
            return leaf
        kept = _half(rows.size, half)
        numbers = np.full(rows.size, kept[0])
        numbers[kept] = kept
        return np.take(leaf, numbers, rows.axis)

    return {name: one(leaf, rows_of[name]) for name, leaf in arrays.items()}


def _rows(term: np.ndarray, dim: int, half: int) -> np.ndarray:
    """The terms of one half of the rows, which a negative axis counts."""
    return np.take(term, _half(term.shape[dim], half), dim)
