"""The configuration of a run: its keys, their rules, and the pieces that it names.

A configuration is an `ml_collections.ConfigDict` that starts empty (`default_config`); `build`
checks it and adds the defaults. `builtin` declares the keys, `pieces` says where the code is.
Nothing here imports JAX.
"""

from ensemble.config.build import (
    Config,
    Run,
    build,
    by_path,
    checked,
    default_config,
    differences,
    fields_for,
    flatten,
    predicts,
    settings,
    task_of,
    trait,
    with_defaults,
)

FORMAT = 3
"""Version of everything written to a workdir: config, checkpoints, results."""

__all__ = [
    "FORMAT",
    "Config",
    "Run",
    "build",
    "by_path",
    "checked",
    "default_config",
    "differences",
    "fields_for",
    "flatten",
    "predicts",
    "settings",
    "task_of",
    "trait",
    "with_defaults",
]
