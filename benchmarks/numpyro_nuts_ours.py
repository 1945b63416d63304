"""Worker of numpyro_nuts: `ensemble.sample`, whole.

    python benchmarks/numpyro_nuts_ours.py POSTERIOR NUM_CHAINS NUM_DEVICES SEED

Sampling is what the method's `advance` takes, waited for, without compilation. The rest is what
else the call does: diagnostics, the report, predictions.
"""

import sys
from typing import Any

from ensemble.sharding import startup

startup.configure(int(sys.argv[3]), "nuts")
import jax  # noqa: E402
from numpyro_nuts_work import DERIVED, Clock, measured, run  # noqa: E402

import ensemble  # noqa: E402
from ensemble.methods.mcmc.sampling import Sampling  # noqa: E402


def worker(
    model: Any, arguments: dict[str, Any], num_chains: int, num_devices: int, seed: int
) -> dict[str, float]:
    """Measures one run."""
    clock = Clock()
    sampling_seconds = 0.0
    advance = Sampling.advance

    def timed(self: Any, state: Any, limit: int | None = None) -> Any:
        nonlocal sampling_seconds
        before = clock.lap()
        found = advance(self, state, limit)
        jax.block_until_ready(found)
        after = clock.lap()
        seconds, compiling = (after[key] - before[key] for key in ("seconds", "compile_seconds"))
        sampling_seconds += seconds - compiling
        return found

    Sampling.advance = timed  # type: ignore[method-assign]
    found = ensemble.sample(
        model,
        arguments,
        config={"num_chains": num_chains, "num_devices": num_devices, "seed": seed},
        show_progress=False,
    )
    total = clock.lap()
    num_gradients = found.data.sample_stats["n_steps"].values
    latent = {name: found.draws[name] for name in found.draws if name not in DERIVED}
    return measured(total, sampling_seconds, latent, num_gradients)


if __name__ == "__main__":
    run(worker)
