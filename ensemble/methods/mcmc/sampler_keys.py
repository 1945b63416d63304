"""The keys of the samplers by all the data, whose steps are draws."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from ensemble import registry
from ensemble.keys import (
    BELOW_ONE,
    MAX_MEMBERS,
    MAX_STEPS,
    NOT_NEGATIVE,
    POSITIVE,
    Block,
    Conflict,
    Key,
    Rule,
    one_of,
)
from ensemble.methods.common_keys import (
    INIT_FROM,
    INSTEAD_OF_MEMBERS,
    NUM_CHAINS,
    NUM_PREDICTIVE_DRAWS,
    PRIOR,
    STARTS,
    STOP_AT,
    is_file,
)


class Traits(NamedTuple):
    """What sets the samplers apart, beside how they move.

    Attributes:
        may_be_dense: whether the mass matrix may be dense, or of low rank.
        may_split: whether parameters may stay on their shards, and are not joined to one vector.
        tunes_at_once: whether the warm-up is one piece that yields no draws.
        may_be_free: whether chains may be at different draws, so that none waits for another.
    """

    may_be_dense: bool = True
    may_split: bool = True
    tunes_at_once: bool = False
    may_be_free: bool = False


SAMPLERS = {
    "hmc": Traits(),
    "nuts": Traits(may_be_free=True),
    "mclmc": Traits(may_be_dense=False, may_split=False, tunes_at_once=True),
    "adjusted_mclmc": Traits(may_be_dense=False, may_split=False),
    "tempering": Traits(may_be_dense=False, may_split=False),
}
_DENSE = [name for name, traits in SAMPLERS.items() if traits.may_be_dense]
MASSES = ("identity", "diagonal", "low_rank", "dense", "kronecker")


def _conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    found, method = likelihood_conflicts(values), values["method"]
    num_chains, mass = values["num_chains"], values["sampler.mass"]
    thin, num_samples = values["sampler.thin"], values["sampler.num_samples"]
    durations = ("sampler.num_warmup", "sampler.num_burn_in", "sampler.num_samples")
    num_draws = sum(values[key] for key in durations)
    if num_chains > MAX_MEMBERS:
        found.append(
            Conflict(
                ("num_chains",),
                f"config.num_chains={num_chains} must be at most {MAX_MEMBERS} with "
                f"config.method={method!r}; sample fewer",
            )
        )
    if num_draws > MAX_STEPS:
        found.append(
            Conflict(
                durations,
                f"config.sampler has {num_draws} draws of each chain in all, which must be at most "
                f"{MAX_STEPS}; lower sampler.num_samples",
            )
        )
    if thin > num_samples:
        found.append(
            Conflict(
                ("sampler.thin", "sampler.num_samples"),
                f"config.sampler.thin={thin} keeps none of "
                f"config.sampler.num_samples={num_samples} draws; lower it",
            )
        )
    if mass in ("low_rank", "dense") and not SAMPLERS[method].may_be_dense:
        found.append(
            Conflict(
                ("sampler.mass",),
                f"config.sampler.mass={mass!r} is for {' and '.join(_DENSE)}; with {method} use "
                "'diagonal'",
            )
        )
    return found


def likelihood_conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """A likelihood that has no posterior."""
    from ensemble import likelihoods  # They import JAX; the keys do not.

    name = values.get("likelihood", "")
    if name not in registry.LIKELIHOODS or likelihoods.named(name).has_density:
        return []  # One that is chosen by the data is looked at again when it is known.
    line = (
        f"config.likelihood={name!r} has no density, and config.method={values['method']!r} "
        "samples a posterior, which needs one: use config.method='sgd', or a likelihood such as "
        "'gaussian'"
    )
    return [Conflict(("likelihood",), line)]


_AT_LEAST_2 = Rule(lambda value: value >= 2, "must be at least 2")
_DURATION = "config.sampler.num_samples says how long"
_SAMPLER = {
    "step_size": Key(0.01, "step size of the integrator when the warm-up starts", POSITIVE),
    "num_leapfrog_steps": Key(
        32,
        "steps of the integrator in a draw; nuts, and adjusted_mclmc by its mass, choose theirs",
        POSITIVE,
        most=2**20,
    ),
    "jitter": Key(
        0.2,
        "share by which the length of trajectories varies, of hmc and adjusted_mclmc",
        BELOW_ONE,
    ),
    "num_warmup": Key(
        500,
        "draws that adapt step size and mass; of mclmc, steps that tune it",
        NOT_NEGATIVE,
        most=2**20,  # A list says what happens at each.
    ),
    "num_burn_in": Key(0, "draws after the warm-up that do not count either", NOT_NEGATIVE),
    "num_samples": Key(1000, "draws of each chain that count", POSITIVE, may_change=True),
    "thin": Key(10, "one draw in so many is kept on disk, and can predict", POSITIVE),
    "target_acceptance": Key(
        0.8,
        "acceptance rate that the warm-up aims at",
        Rule(lambda value: 0 < value < 1, "must be between 0 and 1"),
    ),
    "mass": Key(
        "identity", "form of the mass matrix; kronecker is for logistic regression", one_of(*MASSES)
    ),
}

BLOCK = Block(
    {
        "num_chains": NUM_CHAINS,
        "num_predictive_draws": NUM_PREDICTIVE_DRAWS,
        "init_from": INIT_FROM,
        "temperature": Key(1.0, "what the log likelihood is divided by; 1 is Bayes", POSITIVE),
        **{f"sampler.{name}": key for name, key in _SAMPLER.items()},
        **STOP_AT,
        "stop_at.predictive_error": Key(
            0.0,
            "the run ends when log predictive densities are known to within so many nats, and the "
            "others are reached; 0: never",
            NOT_NEGATIVE,
            may_change=True,
        ),
    },
    _conflicts,
    instead={
        **INSTEAD_OF_MEMBERS,
        "num_epochs": _DURATION,
        "num_steps": _DURATION,
        "weight_decay": "config.prior says how small parameters are",
        "beta_nll": "a posterior has one likelihood, whose gradients nothing weights",
        "dtype": "log densities of all the data differ by less than half precision rounds them",
    },
    rules=STARTS,
    empty={"init_from": PRIOR},
    leaves_out={"init_from": is_file},
)

TEMPERING_BLOCK = dataclasses.replace(
    BLOCK,
    keys={
        **BLOCK.keys,
        "ladder.num_replicas": Key(
            12, "temperatures of a chain, from the prior to the posterior", _AT_LEAST_2, most=1024
        ),
        "ladder.reference_sd": Key(
            10.0,
            "of a log density without a prior, standard deviation of the normal density about its "
            "start that replicas come from",
            POSITIVE,
        ),
    },
)
"""The keys of tempering, whose chains are ladders of replicas that move as those of hmc do."""
