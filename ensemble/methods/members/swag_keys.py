"""The keys of SWAG: those of SGD, with what is collected in place of a schedule."""

from ensemble.keys import Block, Key, Rule
from ensemble.methods.members import sgd_keys

_NOT_OF_SWAG = ("schedule", "warmup_fraction", "early_stopping_epochs", "member_devices")
_SHARE = Rule(lambda value: 0 < value < 1, "must be above 0 and below 1")

BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name not in _NOT_OF_SWAG},
        "swag.num_iterates": Key(
            20,
            "iterates whose mean and covariance make the draws",
            Rule(lambda value: 2 <= value <= 1000, "must be from 2 to 1000"),
        ),
        "swag.fraction": Key(0.25, "share of the steps, at the end, that they are from", _SHARE),
        "swag.rate": Key(
            0.5,
            "share of learning_rate that it falls to before the first iterate, and keeps",
            Rule(lambda value: 0 < value <= 1, "must be above 0 and at most 1"),
        ),
        "swag.num_draws": Key(
            20,
            "sets of variables that are drawn",
            Rule(lambda value: 2 <= value <= 1000, "must be from 2 to 1000"),
        ),
    },
    sgd_keys.BLOCK.conflicts,
    leaves_out=sgd_keys.BLOCK.leaves_out,
    instead=sgd_keys.BLOCK.instead,
)
