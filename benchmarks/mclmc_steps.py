"""Worker of mclmc_steps: steps of MCLMC on bde's table airfoil, by this project or a peer.

    python benchmarks/mclmc_steps.py ours|blackjax|bde TABLE

Ours goes through the loop that train.py drives. BlackJAX is as its documentation writes it, and
bde samples on two devices, in an environment of its own.

`compile_seconds` are those of the first call of the program that samples, less those of a later
one; of bde they are of lowering and compiling. `cold_seconds` go from the table in memory to the
first chunk of steps, the same in all, without imports.
"""

import itertools
import json
import math
import os
import sys
import time

import numpy as np
import rates

NUM_ROWS = 1202
NUM_CHAINS = 10
WIDTHS = (16, 16, 16, 16)
STEP_SIZE = 0.01
SECONDS = 6.0
STEPS_PER_DRAW = 32
DRAWS_PER_CHUNK = 10
STEPS_PER_CALL = STEPS_PER_DRAW * DRAWS_PER_CHUNK


def load_table(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Airfoil's rows, in a random order, standardised.

    Args:
        path: the csv file of bde, whose last column is the target.

    Returns:
        Inputs [1503, 5] and targets [1503], float32.
    """
    table = np.genfromtxt(path, delimiter=",", skip_header=1)
    table = table[np.random.default_rng(0).permutation(len(table))]
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    return table[:, :-1].astype(np.float32), table[:, -1].astype(np.float32)


def ours(path: str) -> dict[str, float]:
    """Takes steps of the method `mclmc` for some seconds, with the other rows to predict."""
    import train_ours

    inputs, targets = load_table(path)
    data = {
        "train_inputs": inputs[:NUM_ROWS],
        "train_targets": targets[:NUM_ROWS],
        "test_inputs": inputs[NUM_ROWS:],
        "test_targets": targets[NUM_ROWS:],
    }
    config = {
        "method": "mclmc",
        "likelihood": "gaussian",
        "model": "mlp",
        "mlp.widths": ",".join(map(str, WIDTHS)),
        "mlp.activation": "silu",
        "prior": "normal(1)",
        "init_from": "prior",
        "num_chains": NUM_CHAINS,
        "log_every_steps": DRAWS_PER_CHUNK,
        "sampler.step_size": STEP_SIZE,
        "sampler.num_leapfrog_steps": STEPS_PER_DRAW,
        "sampler.num_warmup": 0,
        "sampler.num_samples": 10**6,
    }
    steps = STEPS_PER_DRAW * NUM_CHAINS
    found = train_ours.advance(config, data, SECONDS, steps)
    return {**found, "compile_seconds": found["compile_seconds"] - found["chunk_seconds"]}


def blackjax(path: str) -> dict[str, float]:
    """Takes steps for some seconds: chains are vmapped, and each is a scan."""
    import blackjax
    import jax
    import jax.numpy as jnp

    table = load_table(path)
    began = time.perf_counter()
    inputs, targets = (jnp.asarray(array[:NUM_ROWS]) for array in table)
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
        loc = outputs[:, 0]
        scale = jax.nn.softplus(outputs[:, 1]) + 1e-6
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
    calls = itertools.count()

    def advance() -> int:
        nonlocal states
        keys = jax.random.split(jax.random.fold_in(rng_key, next(calls)), NUM_CHAINS)
        states = jax.block_until_ready(run(keys, states))[0]
        return STEPS_PER_CALL * NUM_CHAINS

    start = time.perf_counter()
    advance()
    first = time.perf_counter()
    advance()
    again = time.perf_counter()
    found = {"compile_seconds": 2 * first - start - again, "cold_seconds": first - began}
    return rates.measure(advance, SECONDS) | found


def bde(path: str) -> dict[str, float]:
    """Takes as many steps as fit into some seconds."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # As it documents.
    del sys.path[0]  # Only the library is meant, no file of this folder.
    first = _sample_by_bde(path, STEPS_PER_CALL)
    found = _sample_by_bde(path, max(100, round(SECONDS * first["rate"] / NUM_CHAINS)))
    return {**found, **{key: first[key] for key in ("compile_seconds", "cold_seconds")}}


def _sample_by_bde(path: str, num_samples: int) -> dict[str, float]:
    """Samples once as `BdeRegressor.fit` does after its warm-up; compilation is timed apart."""
    import jax
    import jax.numpy as jnp
    from bde.models.models import Fnn
    from bde.sampler.mile_wrapper import MileWrapper
    from bde.sampler.prior import PriorDist
    from bde.sampler.probabilistic import ProbabilisticModel
    from bde.task import TaskType

    table = load_table(path)
    began = time.perf_counter()
    inputs, targets = (jnp.asarray(array[:NUM_ROWS]) for array in table)
    sizes = [inputs.shape[1], *WIDTHS, 2]
    members = [Fnn(sizes, seed, act_fn="silu") for seed in range(NUM_CHAINS)]
    prior = PriorDist.STANDARDNORMAL.get_prior()
    model = ProbabilisticModel(members[0], members[0].params, prior, TaskType.REGRESSION)

    def logdensity_fn(params):
        return model.log_unnormalized_posterior(params, x=inputs, y=targets[:, None])

    found = {}
    pmap = jax.pmap

    def timed_pmap(function, **options):
        def call(*args):
            start = time.perf_counter()
            compiled = pmap(function, **options).lower(*args).compile()
            found["compile_seconds"] = time.perf_counter() - start
            results = None

            def run() -> int:
                nonlocal results
                results = jax.block_until_ready(compiled(*args))
                return num_samples * NUM_CHAINS

            found.update(rates.measure(run, 0.0))
            found["cold_seconds"] = time.perf_counter() - began
            return results

        return call

    jax.pmap = timed_pmap  # type: ignore[assignment]  # The library calls it by this name.
    try:
        MileWrapper(logdensity_fn).sample_batched(
            rng_keys_e=jax.random.split(jax.random.PRNGKey(0), NUM_CHAINS),
            init_positions_e=jax.tree.map(
                lambda *leaves: jnp.stack(leaves), *[one.params for one in members]
            ),
            num_samples=num_samples,
            L_e=jnp.full(NUM_CHAINS, math.sqrt(model.n_params)),
            step_e=jnp.full(NUM_CHAINS, STEP_SIZE),
        )
    finally:
        jax.pmap = pmap
    return found


if __name__ == "__main__":
    who, table = sys.argv[1:]
    print(json.dumps({"ours": ours, "blackjax": blackjax, "bde": bde}[who](table)))
