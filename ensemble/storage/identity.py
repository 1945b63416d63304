"""Which run a part of a workdir belongs to.

A run gets an identity when it begins: a random number, and a digest of all that its numbers depend
on. config.json has it, and so does every other part. Readers compare: what belongs to another run
is named, and not used. A workdir that is moved, or copied whole, stays whole.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

import jax

from ensemble.config import FORMAT, all_keys, flatten
from ensemble.errors import UserError, in_one_line

UNKNOWN = "unknown"
"""The identity of what belongs to no known run."""

_FLAGS = (
    "jax_default_dtype_bits",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)
"""Settings of JAX that change a run's numbers."""

_DIGITS = 32


def flags() -> dict[str, Any]:
    """What JAX is set to here, of that which changes numbers."""
    return {name: getattr(jax.config, name) for name in _FLAGS if hasattr(jax.config, name)}


def unusual() -> list[str]:
    """Settings of JAX here that may make a sound checkpoint look damaged."""
    usual = {"jax_default_prng_impl": "threefry2x32"}
    now = flags()
    return [
        f"{name.upper()}={now[name]}" for name, value in usual.items() if now.get(name) != value
    ]


def create(config: Mapping[str, Any], fingerprint: str | None) -> dict[str, Any]:
    """The entry `identity` of the config.json of a run that begins.

    Args:
        config: of the run.
        fingerprint: of its data; None where it has none.
    """
    keys = all_keys()
    entry = {
        "run": secrets.token_hex(_DIGITS // 2),
        "fingerprint": fingerprint,
        "jax": flags(),
        "keys": [key for key in flatten(config) if not (key in keys and keys[key].may_change)],
    }
    return {**entry, "digest": _digest(config, entry)}


def read(entry: Any, config: Mapping[str, Any]) -> str:
    """The identity that a config.json says.

    Args:
        entry: of config.json.
        config: beside it, as it was read.

    Raises:
        ValueError: the entry is none, or one of them was changed since the run began.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("jax"), dict):
        raise ValueError("its identity is no object")
    if not isinstance(entry["keys"], list) or not all(isinstance(k, str) for k in entry["keys"]):
        raise ValueError("identity.keys must be texts")
    for name in ("run", "digest"):
        if not isinstance(entry[name], str) or len(entry[name]) != _DIGITS:
            raise ValueError(f"identity.{name} must have {_DIGITS} digits")
    if entry["digest"] != _digest(config, entry):
        raise ValueError("it was changed after the run began, which it no longer describes")
    return f"{entry['run']}-{entry['digest']}"


def check(part: Any, found: Any, expected: str) -> None:
    """Refuses a part of another run.

    Args:
        part: its path.
        found: the identity in it.
        expected: of the run.

    Raises:
        UserError: they differ.
    """
    if found != expected:
        raise UserError(
            f"{part} belongs to {_name(found)}, and config.json there to {_name(expected)}; put "
            "back what belongs to it, or choose another --workdir"
        )


def check_flags(path: Any, then: Mapping[str, Any]) -> None:
    """Refuses to go on with a run where JAX computes other numbers than when it began.

    Args:
        path: of the workdir.
        then: `flags` when it began.

    Raises:
        UserError: a setting differs.
    """
    now = json.loads(json.dumps(flags()))
    changed = [
        f"{name.upper()}={value} (now {now[name]})"
        for name, value in then.items()
        if name in now and now[name] != value
    ]
    if changed:
        raise UserError(
            f"{path} holds a run that began with {', '.join(changed)}, which changes its numbers; "
            "set that as it was, or choose another --workdir"
        )


def _digest(config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """The digest of what may not change in a workdir: the keys that the entry names, and the entry
    itself."""
    values = flatten(config)
    fixed = {key: values.get(key) for key in entry["keys"]}
    rest = {key: value for key, value in entry.items() if key != "digest"}
    content = _canonical([FORMAT, fixed, rest])
    return hashlib.blake2b(content, digest_size=_DIGITS // 2).hexdigest()


def _canonical(value: Any) -> bytes:
    """A value as bytes, the same before it is written as JSON and after it is read."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else value  # 1 and 1.0 are the same setting.

    return json.dumps(plain(json.loads(json.dumps(value))), sort_keys=True).encode()


def _name(found: Any) -> str:
    if found == UNKNOWN:
        return "no known run (nothing in it says which)"
    return f"run {in_one_line(found, 8)}"
