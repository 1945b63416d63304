"""The keys of matrix factorisation, which learns who watches what."""

from ensemble import registry
from ensemble.keys import POSITIVE, Block, Key
from ensemble.tasks.supervised_keys import DATA, prior_conflicts

_MODELS = set(registry.TASKS["factorisation"].models)
_WATCHES = [name for name, one in registry.SOURCES.items() if _MODELS & set(one.models)]

BLOCK = Block(
    {**DATA, "num_factors": Key(8, "length of the embeddings of users and movies", POSITIVE)},
    prior_conflicts,
    rules={"dataset": f"must be watches: {', '.join(_WATCHES)}"},
)
