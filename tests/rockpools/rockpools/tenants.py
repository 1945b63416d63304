"""The entries, which name the code: nothing here imports JAX."""

from ensemble.entries import (
    LikelihoodEntry,
    MethodEntry,
    NetworkEntry,
    PriorEntry,
    ScoreEntry,
    SourceEntry,
    TaskEntry,
)

ZERO_INFLATED_POISSON = LikelihoodEntry("rockpools.zero_inflated_poisson:ZeroInflatedPoisson")
LOGISTIC = PriorEntry("rockpools.logistic_prior:Logistic")
POOLS = SourceEntry("rockpools.pools:load_pools")
SINES = NetworkEntry("rockpools.sines:Sines", "rockpools.keys:SINES")
SAME_START = MethodEntry(
    "rockpools.same_start:SameStart",
    "ensemble.methods.members.sgd_keys:BLOCK",
    tasks=("supervised",),
    fitted="ensemble.methods.members.member:fitted",
)
POWER = TaskEntry(
    "rockpools.power:create",
    "rockpools.keys:POWER",
    "ensemble.tasks.supervised:restore",
    key="power.exponent",
    methods=("sgd", "same_start"),
)
BIAS = ScoreEntry("rockpools.bias:bias")
