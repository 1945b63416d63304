"""What three methods predict of one data set: a network, an ensemble, and a posterior.

All of it is a pure function of one data set, which is vmapped over many: members are trained by the
steps of `ensemble.methods.members`, chains moved by the kernels of `ensemble.methods.mcmc`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ensemble.method import Status
from ensemble.methods.mcmc.kernels import Settings, make_sampler
from ensemble.methods.members.member import (
    TrainState,
    apply_member,
    create_member,
    update_member,
)
from ensemble.task import Aux
from examples.coverage.known_truth import NUM_EXAMPLES, TRUTHS, WAVES, Curve, Model, draw_curve

NUM_MEMBERS, NUM_STEPS, LEARNING_RATE = 8, 1000, 0.02
NUM_CHAINS, NUM_WARMUP, NUM_DRAWS, THIN = 4, 100, 120, 4
SAMPLER = Settings(
    "hmc", step_size=0.02, num_leapfrog_steps=40, num_warmup=NUM_WARMUP, mass="identity"
)
NETWORK, ENSEMBLE, POSTERIOR = "network", "ensemble", "posterior"
METHODS = (NETWORK, ENSEMBLE, POSTERIOR)
NUM_HELD_OUT = 19
"""Examples that conformal intervals are fitted on: with 19 they hold exactly 90% on average."""
_DATA, _MEMBERS, _CHAINS = range(3)  # Streams of a data set's key.


class Job(NamedTuple):
    """One data set to be learned.

    Attributes:
        truth: its place in `TRUTHS`.
        number: of the data set.
        num_learned: how many of its examples are learned; the rest is held out.
    """

    truth: Any
    number: Any
    num_learned: Any


class Fit(NamedTuple):
    """What was found for a data set.

    Attributes:
        curve: the data set and its truth.
        predicted: by method the distributions of its members, or of its draws, [M, G + H]: at the
            points, and at the last H examples, which may have been held out.
        num_failed: [] members that were not finite at some step.
        trace: [C, T, 3] of the chains: what they predict at the first, middle and last point.
        num_divergent: [] draws of all chains.
    """

    curve: Curve
    predicted: dict[str, dict[str, jax.Array]]
    num_failed: jax.Array
    trace: jax.Array
    num_divergent: jax.Array


def fit(model: Model, rng_key: jax.Array, job: Job, points: jax.Array) -> Fit:
    """Learns one data set by all methods.

    Args:
        model: that all of them have.
        rng_key: of the experiment.
        job: which data set, and how much of it.
        points: [G] inputs to predict at.
    """
    own_key = jax.random.fold_in(jax.random.fold_in(rng_key, job.truth), job.number)
    key_data, key_members, key_chains = (
        jax.random.fold_in(own_key, stream) for stream in (_DATA, _MEMBERS, _CHAINS)
    )
    curve = draw_curve(model, key_data, job.truth == TRUTHS.index(WAVES), points)
    weights = (jnp.arange(NUM_EXAMPLES) < job.num_learned).astype(jnp.float32)
    asked = jnp.concatenate([points, curve.inputs[-NUM_HELD_OUT:]])

    def learn(rng_key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        state = _train(model, rng_key, curve, weights)
        return model.predict(state.params, asked), state.status

    def sample(rng_key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        return _sample(model, rng_key, curve, weights, asked)

    members, status = jax.vmap(learn)(_keys(key_members, NUM_MEMBERS))
    draws, is_divergent = jax.vmap(sample)(_keys(key_chains, NUM_CHAINS))
    kept = jax.tree.map(lambda leaf: leaf[:, ::THIN].reshape(-1, len(asked)), draws)
    predicted = {
        NETWORK: jax.tree.map(lambda leaf: leaf[:1], members),
        ENSEMBLE: members,
        POSTERIOR: kept,
    }
    watched = jnp.array([0, len(points) // 2, len(points) - 1])
    trace = draws["loc"][..., watched]
    return Fit(curve, predicted, jnp.sum(status != Status.ACTIVE), trace, jnp.sum(is_divergent))


def _keys(rng_key: jax.Array, number: int) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(rng_key, jnp.arange(number))


def _train(model: Model, rng_key: jax.Array, curve: Curve, weights: jax.Array) -> TrainState:
    """Climbs from a draw of the prior to a maximum of the posterior density, by Adam."""
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, NUM_STEPS))
    start = {"params": model.draw(rng_key)}
    state = create_member(rng_key, start, model.network.apply, optimizer)
    weight = jnp.sum(weights)

    def objective(variables: Any, inputs: Any, targets: Any, _: Any) -> tuple[jax.Array, Aux]:
        log_likelihood = model.log_likelihood(variables["params"], inputs, targets)
        return log_likelihood, Aux({}, {})

    def step(_: Any, state: TrainState) -> TrainState:
        output = apply_member(state, objective, curve.inputs, curve.targets, weights, rng_key)
        prior, prior_gradients = jax.value_and_grad(model.log_prior)(state.params)
        gradients = jax.tree.map(
            lambda ours, prior: (ours - prior) / weight, output.gradients, prior_gradients
        )
        return update_member(state, gradients, (output.loss - prior) / weight, {})

    return jax.lax.fori_loop(0, NUM_STEPS, step, state)


def _sample(
    model: Model, rng_key: jax.Array, curve: Curve, weights: jax.Array, asked: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    """What the draws of one chain predict, [T, P], and which of them are divergent, [T]."""

    def log_density(params: Any) -> jax.Array:
        log_likelihood = model.log_likelihood(params, curve.inputs, curve.targets)
        return jnp.sum(weights * log_likelihood) + model.log_prior(params)

    sampler = make_sampler(SAMPLER, log_density)
    key_start, key_moves = jax.random.split(rng_key)

    def draw(chain: Any, t: jax.Array) -> Any:
        chain, info = sampler.step(chain, t)
        return chain, (model.predict(chain.state.position, asked), info.is_divergent)

    # The warm-up's draws in the same loop: the sampler is compiled once.
    steps = jnp.arange(NUM_WARMUP + NUM_DRAWS)
    _, drawn = jax.lax.scan(draw, sampler.init(key_moves, model.draw(key_start)), steps)
    return jax.tree.map(lambda leaf: leaf[NUM_WARMUP:], drawn)
