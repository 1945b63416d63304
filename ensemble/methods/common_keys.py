"""The keys that several families of methods have."""

from ensemble.keys import NOT_NEGATIVE, POSITIVE, Key, Rule, described

PRIOR, MAP, UNIFORM, PATHFINDER = NAMED = ("prior", "map", "uniform", "pathfinder")
"""Values of `init_from` that are no path."""

INIT_FROM = Key(
    "",
    "where members and chains start: at a run's members, or at weights in a file; chains also at "
    "prior or map; empty: anew, which of chains is prior",
    described("must be a workdir, an npz or a safetensors file; or empty"),
)
"""SGD leaves out the head, which is new for each member; member k starts as number k modulo those
that there are. Chain k starts at member k, or at the last draw of chain k."""

WEIGHTS_IN_FILES = (".npz", ".safetensors")
"""Ends of the names of files of weights."""


def is_file(start: str) -> bool:
    """Whether a value of `init_from` is a file of weights."""
    return start.endswith(WEIGHTS_IN_FILES)


STARTS = {
    "init_from": f"{INIT_FROM.rule.text}, which is {PRIOR}; or {MAP}, or for log densities "
    f"{UNIFORM} or {PATHFINDER}"
}
"""What is said of `init_from` for chains."""

NUM_CHAINS = Key(4, "chains in all", POSITIVE)

NUM_PREDICTIVE_DRAWS = Key(
    100,
    "kept draws of each chain that predict, at most, evenly spaced",
    POSITIVE,
    may_change=True,
)
"""They are fewer where their variables would take more than `ensemble.draws.store.MAX_BYTES`."""

STOP_AT = {
    "stop_at.rhat": Key(
        0.0,
        "the run ends when R-hat is below this and the ESS suffices; 0: never",
        Rule(lambda value: value == 0 or value > 1, "must be above 1, or 0 for never"),
        may_change=True,
    ),
    "stop_at.ess": Key(
        0.0,
        "the run ends when the bulk ESS is above this and R-hat suffices; 0: never",
        NOT_NEGATIVE,
        may_change=True,
    ),
}
"""Both are reached when sampling ends; 0 leaves one out. Samplers of networks need a bulk ESS of
100 anyway."""

INSTEAD_OF_MEMBERS = {"ensemble_size": "config.num_chains says how many chains"}
"""What to use in place of keys of SGD."""
