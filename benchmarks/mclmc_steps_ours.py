"""Worker of mclmc_steps: this project, through the method that train.py drives.

python benchmarks/mclmc_steps_ours.py TABLE
"""

import json
import sys
import time

from mclmc_steps_work import NUM_CHAINS, NUM_ROWS, SECONDS, STEP_SIZE, WIDTHS, load_table

from ensemble.sharding import startup

STEPS_PER_DRAW, DRAWS_PER_CHUNK = 32, 10


def create_method(path: str):
    """The method `mclmc` on the table's first rows, with the other rows to predict."""
    startup.configure(method="mclmc")
    from ensemble.config_rules import validate
    from ensemble.methods.mcmc.sampling import Sampling
    from ensemble.tasks import supervised

    inputs, targets = load_table(path)
    data = {
        "train_inputs": inputs[:NUM_ROWS],
        "train_targets": targets[:NUM_ROWS],
        "test_inputs": inputs[NUM_ROWS:],
        "test_targets": targets[NUM_ROWS:],
    }
    config = validate(
        {
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
    )
    return Sampling(config, supervised.create(config, data))


def sample(path: str) -> dict[str, float]:
    """Takes steps for some seconds, fetching each chunk's draws during the next."""
    import jax

    start = time.perf_counter()
    method = create_method(path)
    state = method.init(jax.random.key(0))
    state, info = method.advance(state)
    method.scalars(info)
    first_seconds = time.perf_counter() - start
    for _ in range(2):
        state, info = method.advance(state)
        method.scalars(info)

    first, start, cpu = state.step, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        previous = info
        state, info = method.advance(state)
        jax.device_get(previous.positions)
        method.scalars(previous)
    method.scalars(info)
    num_steps = (state.step - first) * STEPS_PER_DRAW * NUM_CHAINS
    return {
        "rate": num_steps / (time.perf_counter() - start),
        "steps_per_cpu_second": num_steps / (time.process_time() - cpu),
        "first_seconds": first_seconds,
    }


if __name__ == "__main__":
    print(json.dumps(sample(sys.argv[1])))
