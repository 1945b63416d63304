"""The keys of cross-fitted members: those of SGD, and the folds."""

from ensemble.keys import POSITIVE, Block, Key, Rule
from ensemble.methods.members import sgd_keys

FOLDS, PATIENCE = "cross_fitted.folds", "cross_fitted.patience"
_NOT_OF_FOLDS = ("batching", "early_stopping_epochs", "init_from", "member_devices")


BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name not in _NOT_OF_FOLDS},
        FOLDS: Key(
            0,
            "folds of the training rows, of which a member holds one out; 1: all the same tenth; "
            "0: eight, of 50,000 rows or more one",
            Rule(lambda value: 0 <= value <= 100, "must be from 0 to 100"),
        ),
        PATIENCE: Key(40, "epochs without a better loss on rows held out that end it", POSITIVE),
    },
    sgd_keys.BLOCK.conflicts,
    instead={
        **sgd_keys.BLOCK.instead,
        "early_stopping_epochs": f"config.{PATIENCE} says when members stop",
        "init_from": "given weights may have learned what members hold out",
    },
)
