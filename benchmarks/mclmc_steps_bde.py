"""Worker of mclmc_steps: the sampling of bde, on two devices.

python benchmarks/mclmc_steps_bde.py TABLE
"""

import json
import math
import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"  # As its documentation says.

from mclmc_steps_work import NUM_CHAINS, NUM_ROWS, SECONDS, STEP_SIZE, WIDTHS, load_table

del sys.path[0]  # This folder's own bde.py would hide the library.

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from bde.models.models import Fnn  # noqa: E402
from bde.sampler.mile_wrapper import MileWrapper  # noqa: E402
from bde.sampler.prior import PriorDist  # noqa: E402
from bde.sampler.probabilistic import ProbabilisticModel  # noqa: E402
from bde.task import TaskType  # noqa: E402


def sample(path: str, num_samples: int) -> dict[str, float]:
    """Samples once as `BdeRegressor.fit` does after its warm-up; compilation is timed apart."""
    inputs, targets = (jnp.asarray(array[:NUM_ROWS]) for array in load_table(path))
    sizes = [inputs.shape[1], *WIDTHS, 2]
    members = [Fnn(sizes, seed, act_fn="silu") for seed in range(NUM_CHAINS)]
    prior = PriorDist.STANDARDNORMAL.get_prior()
    model = ProbabilisticModel(members[0], members[0].params, prior, TaskType.REGRESSION)

    def logdensity_fn(params):
        return model.log_unnormalized_posterior(params, x=inputs, y=targets[:, None])

    seconds = {}
    pmap = jax.pmap

    def timed_pmap(function, **options):
        def call(*args):
            start = time.perf_counter()
            compiled = pmap(function, **options).lower(*args).compile()
            seconds["first_seconds"] = time.perf_counter() - start
            start, cpu = time.perf_counter(), time.process_time()
            results = jax.block_until_ready(compiled(*args))
            seconds["run"] = time.perf_counter() - start
            seconds["cpu"] = time.process_time() - cpu
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
    num_steps = num_samples * NUM_CHAINS
    return {
        "rate": num_steps / seconds["run"],
        "steps_per_cpu_second": num_steps / seconds["cpu"],
        "first_seconds": seconds["first_seconds"],
    }


if __name__ == "__main__":
    table = sys.argv[1]
    rate = sample(table, 100)["rate"]
    print(json.dumps(sample(table, max(100, round(SECONDS * rate / NUM_CHAINS)))))
