"""Worker of mclmc_steps: BlackJAX's MCLMC as its documentation writes it.

python benchmarks/mclmc_steps_blackjax.py TABLE
"""

import itertools
import json
import math
import sys
import time

import blackjax
import jax
import jax.numpy as jnp
from mclmc_steps_work import NUM_CHAINS, NUM_ROWS, SECONDS, STEP_SIZE, WIDTHS, load_table

STEPS_PER_CALL = 200


def sample(path: str) -> dict[str, float]:
    """Takes steps for some seconds: chains are vmapped, and each is a scan."""
    inputs, targets = (jnp.asarray(array[:NUM_ROWS]) for array in load_table(path))
    sizes = (inputs.shape[1], *WIDTHS, 2)

    def init_params(rng_key):
        keys = jax.random.split(rng_key, len(sizes) - 1)
        return [
            {"kernel": jax.random.normal(key, (rows, columns)), "bias": jnp.zeros(columns)}
            for key, rows, columns in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]

    def logdensity_fn(params):
        x = inputs
        for layer in params[:-1]:
            x = jax.nn.silu(x @ layer["kernel"] + layer["bias"])
        outputs = x @ params[-1]["kernel"] + params[-1]["bias"]
        loc, scale = outputs[:, 0], jax.nn.softplus(outputs[:, 1]) + 1e-6
        log_likelihood = jax.scipy.stats.norm.logpdf(targets, loc, scale).sum()
        leaves = jax.tree.leaves(params)
        return log_likelihood + sum(jax.scipy.stats.norm.logpdf(leaf).sum() for leaf in leaves)

    num_params = sum((rows + 1) * columns for rows, columns in itertools.pairwise(sizes))
    sampler = blackjax.mclmc(logdensity_fn, L=math.sqrt(num_params), step_size=STEP_SIZE)

    def run_chain(rng_key, state):
        def step(state, key):
            state, info = sampler.step(key, state)
            return state, (state.position, info)

        return jax.lax.scan(step, state, jax.random.split(rng_key, STEPS_PER_CALL))

    key_params, key_init, rng_key = jax.random.split(jax.random.key(0), 3)
    positions = jax.vmap(init_params)(jax.random.split(key_params, NUM_CHAINS))
    states = jax.vmap(sampler.init)(positions, jax.random.split(key_init, NUM_CHAINS))
    run = jax.jit(jax.vmap(run_chain))

    def advance(states, i):
        keys = jax.random.split(jax.random.fold_in(rng_key, i), NUM_CHAINS)
        return jax.block_until_ready(run(keys, states))[0]

    start = time.perf_counter()
    states = advance(states, 0)
    first_seconds = time.perf_counter() - start
    states = advance(states, 1)
    num_calls, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        states = advance(states, 2 + num_calls)
        num_calls += 1
    num_steps = num_calls * STEPS_PER_CALL * NUM_CHAINS
    return {
        "rate": num_steps / (time.perf_counter() - start),
        "steps_per_cpu_second": num_steps / (time.process_time() - cpu),
        "first_seconds": first_seconds,
    }


if __name__ == "__main__":
    print(json.dumps(sample(sys.argv[1])))
