"""What the JSON files of a workdir must hold: a workdir may come from anybody, damaged or forged.

A file that passes can be used without a further look. Everything here raises `ValueError`.
"""

import collections
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ensemble import likelihoods, registry
from ensemble.config import all_keys, ask_for, flatten
from ensemble.errors import Unregistered, in_one_line
from ensemble.network_keys import NUM_QUANTILES
from ensemble.priors import families
from ensemble.storage import old
from ensemble.storage.packages import Tenant, missing, needed_for_reading, remedy

MAX_BYTES = 100_000_000
"""The most bytes of a JSON file; ours have some kilobytes."""
_MAX_DEPTH = 20
_MAX_VALUES = 2**31  # Of one example.
_MAX_FLOAT = 3e38  # Of float32.
_MAX_NUMBER = 2**53  # JSON's whole numbers are doubles to many programs.


_SECONDS = ("seconds_before", "seconds_training", "member_examples")
_MAY_BE_NULL = ("seconds_to_first_step",)
"""What a checkpoint keeps of the clock of a run."""


def parse(content: bytes) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        ValueError: it is none, or nested as nothing of ours is.
    """
    try:
        value = json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    _check_values(value, _MAX_DEPTH)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose keys must differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = collections.Counter(key for key, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise ValueError(f"it has the key {twice!r} twice")
    return found


def checksum(content: Mapping[str, Any]) -> int:
    """CRC-32 of what is written as JSON, the same when it is read."""
    written = json.loads(to_json(content))
    return zlib.crc32(json.dumps(written, sort_keys=True).encode())


def to_json(content: Mapping[str, Any]) -> str:
    """Returns a mapping as JSON; NaN and infinities become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _check_values(value: Any, depth: int) -> None:
    """Refuses deep nesting, numbers that are none or too long, and text that is none."""
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for one in value:
            _check_values(one, depth - 1)
    elif isinstance(value, str):
        value.encode()  # Half a character, which JSON can hold, has no encoding.
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds {value}, which we write as null")
    elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ValueError("it holds a number of too many digits")


def checked_config(config: Any, packages: Sequence[Tenant] = ()) -> dict[str, Any]:
    """Returns the configuration of a run, with the keys that such a run has.

    Args:
        config: that was read.
        packages: what its config.json says of packages, for the message where one is missing.

    Raises:
        Unregistered: it has names that are not known here.
    """
    if not isinstance(config, dict):
        raise ValueError("its config is no object")
    config = old.in_todays_words(config)
    absent = missing(packages)
    unknown = _unknown_names(config)
    if absent and (unknown or needed_for_reading(absent)):
        raise Unregistered(remedy(absent))
    if unknown:
        raise Unregistered(
            f"{in_one_line(', '.join(unknown))} is not known to this process: import what "
            "registers it first (--config=FILE runs the file that does), or use the version that "
            "wrote the run"
        )
    return dict(old.validate_stored(config).to_dict())


def _unknown_names(config: dict[str, Any]) -> list[str]:
    """What a configuration says of methods, likelihoods and such that are not registered here."""
    values = flatten(config)
    ask_for(values)
    keys = all_keys()
    unknown = [f"config.{key}" for key in values if key not in keys]
    for key in ("method", "likelihood", "optimizer", "schedule"):
        if isinstance(values.get(key), str) and not keys[key].rule.holds(values[key]):
            unknown.append(f"config.{key}={values[key]!r}")
    if isinstance(values.get("prior"), str):
        named = families(values["prior"])
        unknown += [f"{one!r} in config.prior" for one in named if one not in registry.PRIORS]
    return unknown


def checked_report(report: dict[str, Any], packages: Sequence[Tenant] = ()) -> dict[str, Any]:
    """Returns a report whose entries that programs read are as they must be.

    Args:
        report: that was read.
        packages: as of `checked_config`.
    """
    report = dict(report)
    if old.is_sealed(report, "checksum") and report.pop("checksum", None) != checksum(report):
        raise ValueError("its checksum does not agree with its content")
    report = old.with_notes(report) | {"config": checked_config(report["config"], packages)}
    num_members = _whole(report, "num_members")
    live, failed = report["live_members"], report["failed_members"]
    numbers = range(num_members)
    if not isinstance(live, list) or not live or not all(_is_whole(k) for k in live):
        raise ValueError("live_members must be whole numbers")
    if sorted(set(live)) != live or live[-1] >= num_members:
        raise ValueError(f"live_members must be of {numbers}, in order")
    if not isinstance(failed, dict) or not all(
        k.isdecimal() and len(k) < 10 and int(k) in numbers and isinstance(why, str)
        for k, why in failed.items()
    ):
        raise ValueError(f"failed_members must name reasons of {numbers}")
    _check_notes(report)
    if registry.METHODS[report["config"]["method"]].predicts:
        if registry.predicts(report["config"]):
            check_description(report["dataset"], report["config"]["likelihood"])
        _check_posterior(report.get("posterior"))
    return report


def checked_meta(meta: Any) -> dict[str, Any]:
    """Returns what a checkpoint says beside its arrays, with entries as they must be."""
    if not isinstance(meta, dict):
        raise ValueError("it is no object")
    _check_values(meta, _MAX_DEPTH)
    config = checked_config(meta["config"])
    has_members = registry.METHODS[config["method"]].predicts
    needed_counters = ("step", "num_members") if has_members else ("step",)
    for key, needed in (("counters", needed_counters), ("sizes", ())):
        counts = meta[key]
        if not isinstance(counts, dict) or not all(_is_whole(one) for one in counts.values()):
            raise ValueError(f"its {key} must be whole numbers")
        if not counts.keys() >= set(needed):
            raise ValueError(f"its {key} must have {', '.join(needed)}")
    clock = meta["clock"]
    if not isinstance(clock, dict) or not clock.keys() <= {*_SECONDS, *_MAY_BE_NULL}:
        raise ValueError(f"its clock must be of {', '.join((*_SECONDS, *_MAY_BE_NULL))}")
    if not all(
        _is_number(one) and (one is not None or k in _MAY_BE_NULL) for k, one in clock.items()
    ):
        raise ValueError("its clock must be of numbers")
    meta = old.with_notes(meta)
    _check_notes(meta)
    if registry.predicts(config):
        check_description(meta["dataset"], config["likelihood"])
    return {**meta, "config": config}


def _check_notes(stored: Mapping[str, Any]) -> None:
    notes = stored["notes"]
    if not isinstance(notes, list) or not all(isinstance(one, str) for one in notes):
        raise ValueError("notes must be texts")


def check_description(description: Any, likelihood: str) -> None:
    """Refuses what does not describe a task as `Task.describe` does.

    Args:
        description: that was read.
        likelihood: by name, whose part of the description is checked too.
    """
    if not isinstance(description, dict):
        raise ValueError("its dataset is no object")
    for key in ("name", "fingerprint"):
        if not isinstance(description[key], str):
            raise ValueError(f"dataset.{key} must be text")
    if not isinstance(description.get("test_fingerprint"), str | None):
        raise ValueError("dataset.test_fingerprint must be text")
    shape = description["input_shape"]
    if not isinstance(shape, list) or not shape or not all(_is_whole(n) and n > 0 for n in shape):
        raise ValueError("dataset.input_shape must be positive whole numbers")
    if len(shape) > 4 or math.prod(shape) > _MAX_VALUES:
        raise ValueError(f"dataset.input_shape {shape} is larger than an example can be")
    if description["dtype"] not in ("uint8", "float32", "int32"):
        raise ValueError("dataset.dtype must be uint8, float32 or int32")
    for key in ("shift", "scale", *({"squash"} & description.keys())):
        _check_broadcastable(description[key], shape, key)
    if "quantiles" in description:
        _check_quantiles(description["quantiles"], shape)
    if "table" in description:
        from ensemble.storage.table_schema import check_table  # Most data are no tables.

        check_table(description["table"], shape)
    if "features" in description:
        _check_features(description["features"])
    counts = description["num_examples"]
    if not isinstance(counts, dict) or not all(_is_whole(count) for count in counts.values()):
        raise ValueError("dataset.num_examples must be whole numbers")
    likelihoods.described(likelihood, description)


def _check_broadcastable(values: Any, shape: list[int], key: str) -> None:
    try:
        array = np.asarray(values, np.float32)
        fits = np.broadcast_shapes(array.shape, tuple(shape)) == tuple(shape)
    except (TypeError, ValueError):
        fits = False
    if not fits or not np.isfinite(array).all():
        raise ValueError(f"dataset.{key} must be finite numbers, for examples {shape}")


def _check_quantiles(values: Any, shape: list[int]) -> None:
    try:
        array = np.asarray(values, np.float32)
        fits = [*array.shape] == [*shape, NUM_QUANTILES] and np.isfinite(array).all()
    except (TypeError, ValueError):
        fits = False
    if not fits or (np.diff(array) < 0).any():
        raise ValueError(f"dataset.quantiles must be ascending, of each of {shape} features")


def _check_features(features: Any) -> None:
    """Refuses what does not describe the features of a backbone."""
    if not isinstance(features, dict):
        raise ValueError("dataset.features is no object")
    for key in ("shift", "scale", "probe"):
        values = features[key]
        if not isinstance(values, list) or not values or not all(map(_is_finite, values)):
            raise ValueError(f"dataset.features.{key} must be numbers")
    if len(features["shift"]) != len(features["scale"]):
        raise ValueError("dataset.features must have as many of shift as of scale")


def _check_posterior(posterior: Any) -> None:
    """Refuses an entry `posterior` that lacks what is found of it."""
    if posterior is None:
        return
    if not isinstance(posterior, Mapping):
        raise ValueError("its posterior is no object")
    for key in ("num_samples", "num_chains"):
        _whole(posterior, key)
    for key in ("rhat_max", "ess_bulk_min"):
        if not _is_number(posterior[key]):
            raise ValueError(f"posterior.{key} must be a number, or null")


def _whole(values: Mapping[str, Any], key: str) -> int:
    if not _is_whole(values[key]):
        raise ValueError(f"{key} must be a whole number")
    return int(values[key])


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: Any) -> bool:
    return _is_number(value) and value is not None and abs(value) < _MAX_FLOAT


def _is_number(value: Any) -> bool:
    """Whether it is a number, or null: one that was not finite."""
    return isinstance(value, int | float | None) and not isinstance(value, bool)
