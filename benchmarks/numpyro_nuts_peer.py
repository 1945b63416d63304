"""Worker of numpyro_nuts: NumPyro's own NUTS.

python benchmarks/numpyro_nuts_peer.py POSTERIOR NUM_CHAINS NUM_DEVICES SEED
"""

import sys
from typing import Any

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
from numpyro.infer import MCMC, NUTS  # noqa: E402
from numpyro_nuts_work import DERIVED, NUM_SAMPLES, NUM_WARMUP, Clock, measured, run  # noqa: E402


def worker(
    model: Any, arguments: dict[str, Any], num_chains: int, num_devices: int, seed: int
) -> dict[str, float]:
    """Measures one run, of warm-up and draws."""

    def sample(rng_key: jax.Array) -> Any:
        mcmc = MCMC(
            NUTS(model),
            num_warmup=NUM_WARMUP,
            num_samples=NUM_SAMPLES,
            num_chains=num_chains // num_devices,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(rng_key, **arguments, extra_fields=("num_steps",))
        fields = mcmc.get_extra_fields(group_by_chain=True)
        return mcmc.get_samples(group_by_chain=True), fields["num_steps"]

    clock = Clock()
    if num_devices == 1:
        found = sample(jax.random.key(seed))
    else:  # As the documentation of `MCMC` mixes parallel and vectorised chains.
        keys = jax.random.split(jax.random.PRNGKey(seed), num_devices)
        found = jax.tree.map(
            lambda leaf: leaf.reshape(num_chains, *leaf.shape[2:]), jax.pmap(sample)(keys)
        )
    draws, num_gradients = jax.tree.map(np.asarray, found)
    total = clock.lap()
    seconds = total["seconds"] - total["compile_seconds"]
    latent = {name: draws[name] for name in draws if name not in DERIVED}
    return measured(total, seconds, latent, num_gradients)


if __name__ == "__main__":
    run(worker)
