"""The keys of MC dropout: those of SGD, and in how many passes a member predicts."""

from ensemble.keys import Block, Key, Rule
from ensemble.methods.members import sgd_keys

BLOCK = Block(
    {
        **sgd_keys.BLOCK.keys,
        "mc_dropout.num_passes": Key(
            20,
            "passes with dropout by which a member predicts",
            Rule(lambda value: 2 <= value <= 10000, "must be from 2 to 10000"),
            may_change=True,
        ),
    },
    sgd_keys.BLOCK.conflicts,
    leaves_out=sgd_keys.BLOCK.leaves_out,
    instead=sgd_keys.BLOCK.instead,
)
