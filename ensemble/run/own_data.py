"""A program's own arrays, and the defaults of a run on them: those of a bundled configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import likelihoods, registry
from ensemble.config import RUN, all_keys, flatten, method_block, task_block
from ensemble.configs import arrays, images
from ensemble.sources.data_forms import as_arrays
from ensemble.sources.image_form import is_channels_first

_SMALLEST_IMAGE = 8
"""Pixels of the smaller side from which on pictures go to a CNN."""


def with_defaults(given: Mapping[str, Any], data: Any) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Completes a program's configuration for its data.

    What is left out has the value of `configs/images.py` where inputs are pictures, else of
    `configs/arrays.py`, if the run has such a key: the model, how long to train, and where neither
    `optimizer` nor `learning_rate` is set, which suit each other only, all the rest. The likelihood
    is `gaussian` where the data have `targets`.

    Args:
        given: some of the keys, or all, flat.
        data: in any of the forms of `ensemble.sources.data_forms`.

    Returns:
        The configuration, flat, and the data with the keys of `ensemble.sources.own_arrays`.
    """
    name = given.get("likelihood", "")
    kind = None
    if name in registry.LIKELIHOODS:
        kind = "labels" if likelihoods.named(name).takes_logits else "targets"
    found = as_arrays(data, kind)
    if given.keys() >= all_keys().keys():
        return given, found
    method = given.get("method", RUN.keys["method"].default)
    if not isinstance(method, str) or method not in registry.METHODS:
        return given, found  # Which is refused where all keys are checked.
    learned = task_block(registry.task_of({**given, "method": method}))
    own = {**RUN.keys, **learned.keys, **method_block(method).keys}
    defaults = {key: value for key, value in bundled(_shape(found)).items() if key in own}
    if "optimizer" not in own or given.keys() & {"optimizer", "learning_rate"}:
        kept = ("model", "num_epochs")
        defaults = {key: value for key, value in defaults.items() if key in kept}
    if any(key.endswith("targets") for key in found):
        defaults["likelihood"] = "gaussian"
    if "num_steps" in given:  # Only one of the two says how long.
        defaults.pop("num_epochs", None)
    if given.get("hold_out") is False:  # There is no validation split to look at.
        defaults.pop("early_stopping_epochs", None)
    return {**defaults, **given}, found


def _shape(data: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of one example."""
    inputs = next((one for key, one in data.items() if key.endswith("inputs")), ())
    try:
        return np.shape(inputs)[1:]
    except ValueError:  # Ragged, which is refused where the data are checked.
        return ()


def bundled(shape: Sequence[int]) -> dict[str, Any]:
    """What a bundled configuration says for examples of a shape, beside the data's name."""
    chosen = flatten((images if len(shape) > 1 else arrays).get_config())
    sides = shape[1:] if is_channels_first(shape) else shape[:2]
    if len(shape) > 1 and min(sides) < _SMALLEST_IMAGE:
        chosen["model"] = "mlp"
    keys = all_keys()
    return {
        key: value
        for key, value in chosen.items()
        if value != keys[key].default and key != "dataset"
    }
