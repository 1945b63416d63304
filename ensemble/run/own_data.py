"""A program's own arrays, and the defaults of a run on them: those of a bundled configuration."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import likelihoods, registry
from ensemble.config import RUN, all_keys, flatten, method_block, model_block, task_block
from ensemble.errors import shown
from ensemble.sources.catalogue import kind_of_target
from ensemble.sources.image_form import is_channels_first
from ensemble.tasks.supervised_keys import AUTO

logger = logging.getLogger("ensemble")

_SMALLEST_IMAGE = 8
"""Pixels of the smaller side from which on pictures go to a CNN."""


def with_defaults(given: Mapping[str, Any], data: Any) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Completes a program's configuration for its data.

    What is left out has the value of `configs/images.py` where inputs are pictures, of
    `configs/tabular.py` where they are data frames, else of `configs/arrays.py`, if the run has
    such a key: the model, how long to train, and where neither `optimizer` nor `learning_rate` is
    set, which suit each other only, all the rest. The likelihood is `gaussian` where the data have
    `targets`.

    Args:
        given: some of the keys, or all, flat.
        data: in any of the forms of `ensemble.sources.data_forms`.

    Returns:
        The configuration, flat, and the data with the keys of `ensemble.sources.own_arrays`.
    """
    name, kind = given.get("likelihood", ""), None
    if name in registry.LIKELIHOODS:
        kind = "labels" if likelihoods.named(name).takes_logits else "targets"
    from ensemble.sources.data_forms import as_arrays, has_tables  # Where a program has data alone.

    found = as_arrays(data, kind, given.get("target") or "")
    likelihood = _LIKELIHOODS["targets" if _has_numbers(found) else "labels"]
    if name == AUTO:
        given = {**given, "likelihood": likelihood}
    if given.keys() >= all_keys().keys():
        return given, found
    method = given.get("method", RUN.keys["method"].default)
    if not isinstance(method, str) or method not in registry.METHODS:
        return given, found  # Which is refused where all keys are checked.
    learned = task_block(registry.task_of({**given, "method": method}))
    is_table = has_tables(found)
    chosen = bundled(() if is_table else _shape(found), is_table)
    of_model = model_block(given.get("model", chosen.get("model"))).keys
    own = {**RUN.keys, **learned.keys, **method_block(method).keys, **of_model}
    defaults = {key: value for key, value in chosen.items() if key in own}
    if "optimizer" not in own or given.keys() & {"optimizer", "learning_rate"}:
        kept = {"model", "num_epochs", *of_model}
        defaults = {key: value for key, value in defaults.items() if key in kept}
    if _has_numbers(found):
        defaults["likelihood"] = likelihood
    if "num_steps" in given:  # Only one of the two says how long.
        defaults.pop("num_epochs", None)
    if given.get("hold_out") is False:  # There is no validation split to look at.
        defaults.pop("early_stopping_epochs", None)
    return {**defaults, **given}, found


def with_likelihood(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settles the likelihood 'auto' of a table in files: by the column to learn.

    Args:
        given: some of the keys, or all, flat.

    Raises:
        UserError: the data are no table, or cannot be read.
    """
    if given.get("likelihood") != AUTO:
        return given
    kind = kind_of_target(given.get("dataset", ""), given.get("target") or "")
    chosen = _LIKELIHOODS[kind]
    what = "classes" if kind == "labels" else "numbers"
    logger.info(
        "The column %s holds %s: config.likelihood is %r; set it if you mean another.",
        shown(given["target"]),
        what,
        chosen,
    )
    return {**given, "likelihood": chosen}


_LIKELIHOODS = {"labels": "categorical", "targets": "gaussian"}


def _has_numbers(data: Mapping[str, Any]) -> bool:
    return any(key.endswith("targets") for key in data)


def _shape(data: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of one example."""
    inputs = next((one for key, one in data.items() if key.endswith("inputs")), ())
    try:
        return np.shape(inputs)[1:]
    except ValueError:  # Ragged, which is refused where the data are checked.
        return ()


def bundled(shape: Sequence[int], is_table: bool) -> dict[str, Any]:
    """What a bundled configuration says for examples of a shape, beside what the data are."""
    from ensemble.configs import arrays, images, tabular  # Of a program's own data alone.

    vectors = tabular if is_table else arrays
    chosen = flatten((images if len(shape) > 1 else vectors).get_config())
    sides = shape[1:] if is_channels_first(shape) else shape[:2]
    if len(shape) > 1 and min(sides) < _SMALLEST_IMAGE:
        chosen["model"] = "mlp"
    keys = all_keys()
    return {
        key: value
        for key, value in chosen.items()
        if value != keys[key].default and key not in ("dataset", "likelihood")
    }
