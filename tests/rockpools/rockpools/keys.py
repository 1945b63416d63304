"""Keys of the configuration, which begin with their tenant's name: nothing here imports JAX."""

import dataclasses

from ensemble.keys import NOT_NEGATIVE, POSITIVE, Block, Key
from ensemble.tasks.supervised_keys import BLOCK

SINES = Block({"sines.width": Key(64, "random sines of the inputs", POSITIVE, most=4096)})

EXPONENT = Key(0.0, "of the likelihood; 0: the likelihood is as it is", NOT_NEGATIVE)
POWER = dataclasses.replace(BLOCK, keys={**BLOCK.keys, "power.exponent": EXPONENT})
