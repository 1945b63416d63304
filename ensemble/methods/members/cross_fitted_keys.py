"""The keys of cross-fitted members: those of SGD, and the folds."""

from collections.abc import Mapping
from typing import Any

from ensemble.keys import POSITIVE, Block, Conflict, Key, Rule, one_of
from ensemble.methods.members import sgd_keys
from ensemble.methods.members.batch_ensemble_keys import ADAPTERS

FOLDS, PATIENCE = "cross_fitted.folds", "cross_fitted.patience"
NUM_ESTIMATORS, ADAPTERS_KEY = "cross_fitted.num_estimators", "cross_fitted.adapters"
_NOT_OF_FOLDS = (
    *("batching", "early_stopping_epochs", "gradient_clip", "init_from", "member_devices"),
)


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found = sgd_keys.BLOCK.conflicts(values)
    number = values[NUM_ESTIMATORS]
    for key in ("label_smoothing", "beta_nll"):
        if number > 1 and values.get(key):
            line = f"config.{key}={values[key]} is for single networks"
            found.append(
                Conflict((NUM_ESTIMATORS, key), f"{line}; config.{NUM_ESTIMATORS}={number}")
            )
    return found


BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name not in _NOT_OF_FOLDS},
        FOLDS: Key(
            0,
            "folds of the training rows, of which a member holds one out; 1: all the same tenth; "
            "0: eight, of 50,000 rows or more one",
            Rule(lambda value: 0 <= value <= 100, "must be from 0 to 100"),
        ),
        NUM_ESTIMATORS: Key(
            1,
            "estimators of a member, which share its kernels",
            Rule(lambda value: 1 <= value <= 1024, "must be from 1 to 1024"),
        ),
        ADAPTERS_KEY: Key(
            "tabm_mini", "what an estimator has of its own, of several", one_of(*ADAPTERS)
        ),
        PATIENCE: Key(40, "epochs without a better loss on rows held out that end it", POSITIVE),
    },
    _conflicts,
    instead={
        **sgd_keys.BLOCK.instead,
        "early_stopping_epochs": f"config.{PATIENCE} says when members stop",
        "gradient_clip": "gradients are always shortened to a norm of 1",
        "init_from": "given weights may have learned what members hold out",
    },
)
