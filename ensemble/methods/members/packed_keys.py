"""The keys of packed ensembles: those of SGD, and how a network is divided among estimators."""

from ensemble.keys import POSITIVE, Block, Key, Rule
from ensemble.methods.members.batch_ensemble_keys import INSTEAD
from ensemble.methods.members.sgd_keys import BLOCK as SGD

BLOCK = Block(
    {
        **{name: key for name, key in SGD.keys.items() if name not in INSTEAD},
        "packed.num_estimators": Key(
            4,
            "estimators of a member, which divide its units",
            Rule(lambda value: 2 <= value <= 1024, "must be from 2 to 1024"),
        ),
        "packed.alpha": Key(
            2.0,
            "how many times as wide as the network all estimators are together",
            POSITIVE,
            most=1024,
        ),
        "packed.gamma": Key(
            1,
            "groups of an estimator's hidden layers after the first, which do not mix",
            POSITIVE,
            most=1024,
        ),
    },
    SGD.conflicts,
    instead={**SGD.instead, **INSTEAD},
)
