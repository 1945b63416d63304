"""Worker of numpyro_nuts: `ensemble.sample`, whole, or NumPyro's own NUTS.

    python benchmarks/numpyro_nuts.py ours|peer POSTERIOR NUM_CHAINS NUM_DEVICES SEED

Sampling of ours is the time of the runtime's programs, waited for, without compilation. The rest of
the call is diagnostics, the report and predictions.
"""

import json
import sys
import time
from typing import Any

import numpy as np

NUM_DRAWS = 1000  # Of a chain after as many of a warm-up: the default of both.
DERIVED = ("theta", "f")  # Deterministic sites of these.
_COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class Clock:
    """Seconds, and those of them in which JAX traced or compiled."""

    def __init__(self) -> None:
        import jax  # Starts with the devices that are set by now.

        self._compiling = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        self._start = self._read()

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in _COMPILING:
            self._compiling += duration_secs

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self._compiling

    def lap(self) -> dict[str, float]:
        """Seconds since the start: in all, of CPU, of compilation."""
        seconds, cpu, compiling = (
            now - then for now, then in zip(self._read(), self._start, strict=True)
        )
        return {"seconds": seconds, "cpu_seconds": cpu, "compile_seconds": compiling}


def measured(
    total: dict[str, float],
    sampling_seconds: float,
    draws: dict[str, np.ndarray],
    num_gradients: np.ndarray,
) -> dict[str, float]:
    """What a worker reports, of its latent variables.

    Args:
        total: of `Clock.lap`, after everything.
        sampling_seconds: of warm-up and draws, without compilation.
        draws: [C, T, ...] of all variables.
        num_gradients: [C, T] of the draws after the warm-up.
    """
    import arviz

    latent = {name: draws[name] for name in draws if name not in DERIVED}
    ess = arviz.ess(arviz.convert_to_dataset(latent), method="bulk")
    values = np.concatenate([np.ravel(ess[name].values) for name in ess.data_vars])
    values = values[np.isfinite(values)]  # Corners of a matrix that are always 0.
    return {
        **total,
        "sampling_seconds": sampling_seconds,
        "ess_min": float(values.min()),
        "ess_median": float(np.median(values)),
        "leapfrogs_per_draw": float(np.mean(num_gradients)),
    }


def ours(
    model: Any,
    arguments: dict[str, Any],
    num_chains: int,
    num_devices: int,
    seed: int,
    num_draws: int = NUM_DRAWS,
) -> dict[str, float]:
    """Measures one run of `ensemble.sample`."""
    import jax

    import ensemble
    from ensemble.runtime.programs import Programs

    clock = Clock()
    sampling_seconds = 0.0
    advance = Programs.advance

    def timed(*args: Any) -> Any:
        nonlocal sampling_seconds
        before = clock.lap()
        found = jax.block_until_ready(advance(*args))
        after = clock.lap()
        seconds, compiling = (after[key] - before[key] for key in ("seconds", "compile_seconds"))
        sampling_seconds += seconds - compiling
        return found

    Programs.advance = timed  # type: ignore[method-assign, assignment]
    found = ensemble.sample(
        model,
        arguments,
        config={
            "num_chains": num_chains,
            "num_devices": num_devices,
            "seed": seed,
            "sampler.num_warmup": num_draws,
            "sampler.num_samples": num_draws,
        },
        show_progress=False,
    )
    total = clock.lap()
    num_gradients = found.data.sample_stats["n_steps"].values
    return measured(total, sampling_seconds, found.draws, num_gradients)


def peer(
    model: Any,
    arguments: dict[str, Any],
    num_chains: int,
    num_devices: int,
    seed: int,
    num_draws: int = NUM_DRAWS,
) -> dict[str, float]:
    """Measures one run of NumPyro, of warm-up and draws."""
    import jax
    from numpyro.infer import MCMC, NUTS

    def sample(rng_key: jax.Array) -> Any:
        mcmc = MCMC(
            NUTS(model),
            num_warmup=num_draws,
            num_samples=num_draws,
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
    return measured(total, seconds, draws, num_gradients)


if __name__ == "__main__":
    who, name, num_chains, num_devices, seed = sys.argv[1:]
    if who == "ours":
        from ensemble.sharding import startup

        startup.configure(int(num_devices), "nuts")
    else:
        import jax

        jax.config.update("jax_num_cpu_devices", int(num_devices))
    from tests.numpyro_models import posteriordb_models  # Imports NumPyro, which starts JAX.

    arguments, _ = posteriordb_models.read(name)
    run = {"ours": ours, "peer": peer}[who]
    model = posteriordb_models.MODELS[name]
    print(json.dumps(run(model, arguments, int(num_chains), int(num_devices), int(seed))))
