"""What the workers of numpyro_nuts share: the models, the clock, and what draws are worth."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import arviz
import jax
import numpy as np

from tests import posteriordb_models

NUM_WARMUP, NUM_SAMPLES = 1000, 1000
DERIVED = ("theta", "f")  # Deterministic sites of these.
_COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class Clock:
    """Seconds, and those of them in which JAX traced or compiled."""

    def __init__(self) -> None:
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
    """What a worker reports.

    Args:
        total: of `Clock.lap`, after everything.
        sampling_seconds: of warm-up and draws, without compilation.
        draws: [C, T, ...] of the latent variables.
        num_gradients: [C, T] of the draws after the warm-up.
    """
    ess = arviz.ess(arviz.convert_to_dataset(draws), method="bulk")
    values = np.concatenate([np.ravel(ess[name].values) for name in ess.data_vars])
    values = values[np.isfinite(values)]  # Corners of a matrix that are always 0.
    return {
        **total,
        "sampling_seconds": sampling_seconds,
        "ess_min": float(values.min()),
        "ess_median": float(np.median(values)),
        "leapfrogs_per_draw": float(np.mean(num_gradients)),
    }


def run(worker: Callable[[Any, dict[str, Any], int, int, int], dict[str, float]]) -> None:
    """Runs a worker: `(model, arguments, num_chains, num_devices, seed) -> measurements`."""
    name, *numbers = sys.argv[1:]
    arguments, _ = posteriordb_models.read(name)
    print(json.dumps(worker(posteriordb_models.MODELS[name], arguments, *map(int, numbers))))
