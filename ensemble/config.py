"""The configuration: every key, with its default.

A configuration is an `ml_collections.ConfigDict`; the files in `configs/` start from
`default_config()` and override. `config_rules.validate` checks whatever arrives.
"""

import difflib
from collections.abc import Mapping
from typing import Any

import ml_collections
from ml_collections import config_dict

FORMAT = 1
"""Version of everything written to a workdir: config, checkpoints, report."""

SAMPLERS = ("hmc", "nuts", "mclmc")
RANDOM_WALK = "rwm"
METHODS = ("sgd", *SAMPLERS, RANDOM_WALK)
WALK_SHAPES = ("scalar", "diagonal", "dense")
MASSES = ("identity", "diagonal", "dense", "kronecker")
PRIOR, MAP = "prior", "map"  # Values of `init_from`; any other is a workdir.
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "warmup_cosine")

MAY_CHANGE = frozenset(
    {
        "num_epochs",
        "num_steps",
        "hmc.num_samples",
        "rwm.num_samples",
        "stop_at.rhat",
        "stop_at.ess",
        "ensemble_size",
        "num_devices",
        "data_dir",
        "log_every_steps",
        "eval_every_epochs",
        "plot_every_epochs",
        "checkpoint_every_epochs",
        "keep_checkpoints",
    }
)
"""Keys that may differ between two runs of one workdir."""


def default_config() -> ml_collections.ConfigDict:
    """Returns every key with its default value; a key's type is the default's type."""
    config = ml_collections.ConfigDict()
    # What is learned, and from what.
    config.dataset = "digits"  # A name of ensemble.sources, npz:PATH or folder:PATH.
    config.data_dir = ""  # Of prepared TFDS sets; empty: $TFDS_DATA_DIR or ~/tensorflow_datasets.
    config.hold_out = True  # False: learn validation and calibration data too, carve nothing.
    config.model = "cnn"  # A name in the registry of `models`.
    config.seed = 0
    # Who learns it, where.
    config.method = "sgd"
    config.ensemble_size = 8  # Members in all, whatever the number of devices.
    config.num_devices = config_dict.placeholder(int)  # None: every core, or every accelerator.
    # For how long: exactly one of the two; None or 0 leaves one out.
    config.num_epochs = config_dict.placeholder(int)
    config.num_steps = config_dict.placeholder(int)
    # Batches.
    config.batch_size = 128  # Examples that one member sees in a step.
    config.batching = "shared"  # 'shared': one order for all members; 'independent': one each.
    config.augment = ml_collections.ConfigDict({"shift": 0, "flip": False})  # Pixels; left-right.
    config.class_weights = "none"  # 'none', 'balanced', or one weight per class: '1,2,0.5'.
    config.label_smoothing = 0.0
    # Optimisation.
    config.optimizer = "sgd"
    config.learning_rate = 0.1  # The schedule's peak.
    config.momentum = 0.9  # Of sgd; adam and adamw keep optax's b1 and b2.
    config.weight_decay = 0.0  # On every parameter: L2 for sgd and adam, decoupled for adamw.
    config.schedule = "constant"
    config.warmup_fraction = 0.05  # Of all steps, for warmup_cosine.
    config.prior = "none"  # Or such as 'normal(1)', by parameter group: ensemble/priors.py.
    config.early_stopping_epochs = 0  # Without a better validation NLL, per member; 0: never.
    config.on_nonfinite = "freeze"  # 'freeze' the member and go on, or 'stop' the run.
    # Sampling: of the methods hmc, nuts and mclmc, whose steps are draws.
    config.num_chains = 4  # In all, whatever the number of devices; for samplers the ensemble size.
    config.init_from = "prior"  # 'prior', 'map', or a workdir: chain k starts from its member k.
    config.temperature = 1.0  # Of the likelihood; 1 is Bayes, and what is not is reported.
    config.num_factors = 8  # D of matrix_factorisation, whose data are watches.
    config.hmc = ml_collections.ConfigDict(
        {
            "step_size": 0.01,  # At the start of the warm-up.
            "num_leapfrog_steps": 32,  # Of a draw of hmc and mclmc; nuts chooses its own.
            "jitter": 0.2,  # Share by which hmc's length varies.
            "num_warmup": 500,  # Draws that adapt step size and mass; mclmc: steps that tune it.
            "num_burn_in": 0,  # Draws after the warm-up that do not count either.
            "num_samples": 1000,  # Draws of each chain that count.
            "thin": 10,  # Every so many of them are kept; all of them count in predictions.
            "target_acceptance": 0.8,
            "mass": "identity",  # Or 'diagonal', 'dense'; 'kronecker', for logistic regression.
        }
    )
    # Random walks: of the method rwm, whose steps are those of every chain.
    config.density = "gaussian_mixture"  # A name in the registry of `ensemble.tasks.densities`.
    config.rwm = ml_collections.ConfigDict(
        {
            "scale": 1.0,  # Standard deviation of the moves at the start of the warm-up.
            "shape": "scalar",  # Or 'diagonal', 'dense': what the warm-up can make of the moves.
            "num_warmup": 2400,  # Steps that tune the moves; 0 for none. Even, as is the next.
            "num_samples": 10_000,  # Steps of each chain that count.
        }
    )
    # Both reached, sampling ends; 0 leaves one out. Anyway hmc, nuts and mclmc need a bulk ESS of
    # 100, and rwm an R-hat below 1.1.
    config.stop_at = ml_collections.ConfigDict({"rhat": 0.0, "ess": 0.0})  # Below; above, in bulk.
    # What is written, how often. An epoch of a sampler is `log_every_steps` draws.
    config.log_every_steps = 50
    config.eval_every_epochs = 1
    config.plot_every_epochs = 10
    config.checkpoint_every_epochs = 1
    config.keep_checkpoints = 3
    return config


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns `{'a.b': value}` of a nested mapping; tuples become lists, as JSON has them."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping | ml_collections.ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def unknown_key(key: str, known: Mapping[str, Any]) -> str:
    """Returns the line that names an unknown key and the nearest or all of the known ones."""
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(sorted(known))}"
    return f"config.{key} is not a key of the configuration; {hint}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns 'key: old -> new' for each key that differs and may not change in a workdir.

    A key that is newer than the workdir has its default there.
    """
    defaults, before, after = flatten(default_config()), flatten(old), flatten(new)
    pairs = {
        key: (before.get(key, defaults.get(key)), after.get(key, defaults.get(key)))
        for key in sorted(before.keys() | after.keys())
    }
    return [
        f"{key}: {was!r} -> {becomes!r}"
        for key, (was, becomes) in pairs.items()
        if key not in MAY_CHANGE and was != becomes
    ]
