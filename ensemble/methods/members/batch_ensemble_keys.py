"""The keys of members that share weights: those of SGD, and what an estimator has of its own."""

from ensemble.keys import Block, Key, Rule, one_of
from ensemble.methods.members import sgd_keys

ADAPTERS = ("rank_one", "tabm", "tabm_mini")
INSTEAD = {
    "member_devices": "the estimators of a member lie on one device",
    "label_smoothing": "estimators learn the labels as they are",
    "beta_nll": "estimators learn the likelihood as it is",
    "init_from": "estimators begin anew",
}
"""Keys of SGD that members of estimators do not have, and why."""

BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name not in INSTEAD},
        "batch_ensemble.num_estimators": Key(
            4,
            "estimators of a member, which share its kernels",
            Rule(lambda value: 2 <= value <= 1024, "must be from 2 to 1024"),
        ),
        "batch_ensemble.adapters": Key(
            "rank_one",
            "what an estimator has of its own: factors of all kernels, and all biases (rank_one); "
            "these and the last layer (tabm); factors of the first layer's inputs, and the last "
            "layer (tabm_mini)",
            one_of(*ADAPTERS),
        ),
    },
    sgd_keys.BLOCK.conflicts,
    instead={**sgd_keys.BLOCK.instead, **INSTEAD},
)
