"""Worker of rwm: one sampler, timed.

    python benchmarks/rwm_peers.py NAME NUM_CHAINS NUM_SAMPLES

NUM_SAMPLES are draws of each chain. The samplers; the peers have the published scale of .1, which
makes no difference to their speed:

- ours: `Walker` of tuned scale; `ours_8192` moves as many numbers at a time on accelerators too, as
  on CPUs;
- numpy, jax: the published generators, their log density and their one key included;
- scan: the plain way, of sound keys: `lax.scan` of a step, sums of x and x^2 beside it;
- blackjax: its `additive_step_random_walk`, `vmap` over chains in a `lax.scan`, the same sums.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SCALE = 0.1
NUM_WARMUP = 960


def seconds_of(run: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def time_twice(run: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the first run, which compiles, and of the second."""
    return {"first_seconds": seconds_of(run), "seconds": seconds_of(run)}


def ours(num_chains: int, num_samples: int, accelerator_lanes: int = 0) -> dict[str, float]:
    """This project's walk; moments, quantiles and R-hat are within the time."""
    from ensemble.sharding import startup

    startup.configure()
    import jax
    import ml_collections

    from ensemble.random_walk import densities, walker
    from ensemble.random_walk.method import summarise
    from ensemble.runtime.algorithm import Start
    from ensemble.runtime.devices import Devices

    walker.ACCELERATOR_LANES = accelerator_lanes or walker.ACCELERATOR_LANES
    sampler = {"num_warmup": NUM_WARMUP, "step_size": SCALE, "mass_matrix": "identity"}
    config = ml_collections.ConfigDict({"seed": 0, "num_chains": num_chains, "sampler": sampler})
    devices = jax.devices()
    placed = Devices(1, devices, groups=len(devices))
    walk = walker.Walker(config, densities.GAUSSIAN_MIXTURE, placed)
    members: Any = None
    found: dict[str, float] = {}

    def run(first: int) -> None:
        nonlocal members
        members = members or walk.start(Start())
        members, _ = walk.advance(members, None, first, num_samples)
        host = walk.to_host(members.state)
        num_draws = first + num_samples
        summary = summarise(host, num_draws, walk.num_superchains)
        names = ("mean", "mcse_mean", "variance", "mcse_variance", "ess", "rhat", "nested_rhat")
        found.update({name: float(summary[name][0]) for name in names})
        found["acceptance"] = float(host.chains.accepted.mean() / num_draws)

    first_seconds = seconds_of(lambda: run(0))  # Compiles, and warms up.
    return {"first_seconds": first_seconds, "seconds": seconds_of(lambda: run(num_samples))} | found


def numpy(num_chains: int, num_samples: int) -> dict[str, float]:
    """Runs the published program in NumPy."""
    from scipy.special import logsumexp
    from scipy.stats import norm

    def mixture_logpdf(x):
        loc = np.array([[-2, 0, 3.2, 2.5]]).T
        scale = np.array([[1.2, 1, 5, 2.8]]).T
        weights = np.array([[0.2, 0.3, 0.1, 0.4]]).T
        log_probs = norm(loc, scale).logpdf(x)
        return -logsumexp(np.log(weights) - log_probs, axis=0)

    def rw_metropolis_sampler(logpdf, initial_position):
        position = initial_position
        log_prob = logpdf(initial_position)
        yield position
        while True:
            move_proposals = np.random.normal(0, 0.1, size=initial_position.shape)  # noqa: NPY002
            proposal = position + move_proposals
            proposal_log_prob = logpdf(proposal)
            log_uniform = np.log(np.random.rand(*initial_position.shape))  # noqa: NPY002
            do_accept = log_uniform < proposal_log_prob - log_prob
            position = np.where(do_accept, proposal, position)
            log_prob = np.where(do_accept, proposal_log_prob, log_prob)
            yield position

    samples = rw_metropolis_sampler(mixture_logpdf, np.zeros((1, num_chains)))

    def run() -> None:
        for _ in range(num_samples):
            next(samples)

    return time_twice(run)


def published_jax(num_chains: int, num_samples: int) -> dict[str, float]:
    """Runs the published program in JAX."""
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import logsumexp
    from jax.scipy.stats import norm

    def mixture_logpdf(x):
        loc = jnp.array([[-2, 0, 3.2, 2.5]]).T
        scale = jnp.array([[1.2, 1, 5, 2.8]]).T
        weights = jnp.array([[0.2, 0.3, 0.1, 0.4]]).T
        log_probs = norm.logpdf(x, loc, scale)
        return -logsumexp(jnp.log(weights) - log_probs, axis=0)

    @functools.partial(jax.jit, static_argnums=1)
    def rw_metropolis_kernel(rng_key, logpdf, position, log_prob):
        move_proposals = jax.random.normal(rng_key, shape=position.shape) * 0.1
        proposal = position + move_proposals
        proposal_log_prob = logpdf(proposal)
        log_uniform = jnp.log(jax.random.uniform(rng_key, shape=position.shape))
        do_accept = log_uniform < proposal_log_prob - log_prob
        position = jnp.where(do_accept, proposal, position)
        log_prob = jnp.where(do_accept, proposal_log_prob, log_prob)
        return position, log_prob

    position = jnp.zeros((1, num_chains))
    keys = jax.random.split(jax.random.key(0), 1024)

    def run() -> None:
        x = position
        log_prob = mixture_logpdf(position)
        for i in range(num_samples):
            x, log_prob = rw_metropolis_kernel(keys[i % 1024], mixture_logpdf, x, log_prob)
        jax.block_until_ready(x)

    return time_twice(run)


def _time_scan(step: Callable[..., Any], start: Any, position_of: Any, num_samples: int) -> Any:
    """Times a scan of `step(state, key)`, with the sums of x and x^2 of each chain beside it."""
    import jax
    import jax.numpy as jnp

    def body(carry, t):
        state, first, second = carry
        state = step(state, jax.random.fold_in(jax.random.key(0), t))
        x = position_of(state)
        return (state, first + x, second + x * x), None

    @jax.jit
    def sample(state):
        zeros = jnp.zeros_like(position_of(state))
        return jax.lax.scan(body, (state, zeros, zeros), jnp.arange(num_samples))[0]

    return time_twice(lambda: jax.block_until_ready(sample(start)))


def plain_scan(num_chains: int, num_samples: int) -> dict[str, float]:
    """The published step with two keys and the true mixture, in a scan."""
    import jax
    import jax.numpy as jnp

    from ensemble.random_walk import densities

    logdensity_fn = densities.GAUSSIAN_MIXTURE.logdensity_fn

    def step(state, key):
        position, log_density = state
        key_move, key_accept = jax.random.split(key)
        proposal = position + SCALE * jax.random.normal(key_move, position.shape)
        proposed = logdensity_fn(proposal)
        log_uniform = jnp.log(jax.random.uniform(key_accept, log_density.shape))
        accept = log_uniform < proposed - log_density
        return (
            jnp.where(accept[:, None], proposal, position),
            jnp.where(accept, proposed, log_density),
        )

    position = jnp.zeros((num_chains, 1))
    start = position, logdensity_fn(position)
    return _time_scan(step, start, lambda state: state[0], num_samples)


def blackjax_scan(num_chains: int, num_samples: int) -> dict[str, float]:
    """BlackJAX's random walk on the true mixture."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.mcmc import random_walk

    from ensemble.random_walk import densities

    logdensity_fn = densities.GAUSSIAN_MIXTURE.logdensity_fn
    walk = blackjax.additive_step_random_walk(
        lambda x: logdensity_fn(x[None])[0], random_walk.normal(jnp.array([SCALE]))
    )

    def step(state, key):
        return jax.vmap(walk.step)(jax.random.split(key, num_chains), state)[0]

    start = jax.vmap(walk.init)(jnp.zeros((num_chains, 1)))
    return _time_scan(step, start, lambda state: state.position, num_samples)


SAMPLERS: dict[str, Callable[..., dict[str, float]]] = {
    "ours": ours,
    "ours_8192": functools.partial(ours, accelerator_lanes=8192),
    "numpy": numpy,
    "jax": published_jax,
    "scan": plain_scan,
    "blackjax": blackjax_scan,
}

if __name__ == "__main__":
    name = sys.argv[1]
    num_chains = int(sys.argv[2])
    num_samples = int(sys.argv[3])
    found = SAMPLERS[name](num_chains, num_samples)
    millions = num_chains * num_samples / 1e6
    found |= {"millions": millions, "billions": millions / 1e3}
    print(json.dumps(found))
