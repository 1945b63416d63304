"""The keys of snapshots: those of SGD, with cycles in place of a schedule."""

from ensemble.keys import Block, Key, Rule
from ensemble.methods.members import sgd_keys

_NUM_CYCLES = "snapshots.num_cycles"
_NOT_OF_CYCLES = ("schedule", "warmup_fraction", "early_stopping_epochs", "member_devices")


BLOCK = Block(
    {
        **{name: key for name, key in sgd_keys.BLOCK.keys.items() if name not in _NOT_OF_CYCLES},
        _NUM_CYCLES: Key(
            5,
            "cycles in which the learning rate falls to 0, and variables are kept",
            Rule(lambda value: 2 <= value <= 100, "must be from 2 to 100"),
        ),
    },
    sgd_keys.BLOCK.conflicts,
    leaves_out=sgd_keys.BLOCK.leaves_out,
    instead=sgd_keys.BLOCK.instead,
)
