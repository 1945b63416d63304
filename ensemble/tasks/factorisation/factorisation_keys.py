"""The keys of matrix factorisation, which learns who watches what."""

from ensemble.keys import POSITIVE, Block, Key
from ensemble.tasks.supervised_keys import DATA, prior_conflicts

BLOCK = Block(
    {**DATA, "num_factors": Key(8, "length of the embeddings of users and movies", POSITIVE)},
    prior_conflicts,
)
