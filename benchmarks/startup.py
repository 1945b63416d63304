"""Measures where the time goes until the first step: of digits, of a table's first fit, of HMC on
MNIST.

    python benchmarks/startup.py --out=benchmarks/results/startup.json

Each measurement is a process of its own, which ends when its first step has been dispatched, and
counts from before `import ensemble`. *Cold* has no compilation cache, *cached* one that a process
before has filled. Several rounds alternate between all; a row has medians, least and most.

*Imports* are what import statements take, wherever they are. *Data* are the creation of the task
and, for HMC, the groups of images (`linear_likelihood.place_blocks`), without imports. These and
*CPU in all* are CPU seconds of all threads, which other work on the machine disturbs less than wall
seconds. *Tracing*, *lowering* and *compiling* are seconds by JAX's own clock, in which a function
that is traced within another counts twice; compiling has threads, so that it can take more CPU.
"""

import argparse
import builtins
import contextlib
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import side_by_side

SETTINGS = ("digits", "table", "HMC on MNIST")
MODES = ("cold", "cached")
NUM_ROUNDS = 5
PARTS = ("imports", "data", "tracing", "lowering", "compiling", "CPU in all", "wall")
_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}

_spent = dict.fromkeys(PARTS, 0.0)
_open: list[str] = []
"""Parts that have begun; the last one counts."""


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Counts CPU seconds to a part, and meanwhile to none around it."""
    if _open and _open[-1] == name:
        yield
        return
    if _open:
        _spent[_open[-1]] += time.process_time()
    _open.append(name)
    _spent[name] -= time.process_time()
    try:
        yield
    finally:
        _spent[name] += time.process_time()
        _open.pop()
        if _open:
            _spent[_open[-1]] -= time.process_time()


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose seconds count to a part."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with part(name):
            return function(*args, **kwargs)

    return call


def run_until_first_step(setting: str) -> None:
    """Runs a setting, and ends the process at its first step, with a line of JSON."""
    begun = time.perf_counter()
    cpu = time.process_time()
    importlib.import_module = counted("imports", importlib.import_module)
    builtins.__import__ = counted("imports", builtins.__import__)
    import jax  # Here, and what follows, as they are counted.
    import numpy as np

    import ensemble
    from ensemble.run import loop
    from ensemble.tasks import linear_likelihood

    def note(event: str, duration_secs: float, **_: Any) -> None:
        if event in _EVENTS:
            _spent[_EVENTS[event]] += duration_secs

    def end(*_: Any) -> None:
        total = time.process_time() - cpu
        print(json.dumps({**_spent, "CPU in all": total, "wall": time.perf_counter() - begun}))
        sys.stdout.flush()
        os._exit(0)

    jax.monitoring.register_event_duration_secs_listener(note)
    loop.Run.advanced = end  # type: ignore
    loop.create_task = counted("data", loop.create_task)
    linear_likelihood.place_blocks = counted("data", linear_likelihood.place_blocks)
    if setting == "table":
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(300, 5))
        ensemble.EnsembleRegressor(random_state=0).fit(inputs, inputs[:, 0] + rng.normal(size=300))
    elif setting == "digits":
        from ensemble.configs import digits_ensemble

        ensemble.train(digits_ensemble.get_config(), show_progress=False)
    else:
        from ensemble.configs import mnist_logreg_hmc

        single = {"log_every_steps": 1, "sampler.num_leapfrog_steps": 1}  # Else it is a trajectory.
        config = mnist_logreg_hmc.get_config("notebook") | single
        ensemble.train(config, show_progress=False)
    raise RuntimeError("the run has ended without a step")


def measure(setting: str, cache: pathlib.Path | None) -> dict[str, float]:
    """Seconds of each part, of a fresh process."""
    variables = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    if cache is not None:
        variables = {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    command = [sys.executable, __file__, f"--setting={setting}"]
    root = str(pathlib.Path(__file__).resolve().parents[1])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": root, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each part."""
    values = {name: [one[name] for one in rounds] for name in PARTS}
    return {
        name: {"median": statistics.median(one), "min": min(one), "max": max(one)}
        for name, one in values.items()
    }


def main(out: str, num_rounds: int) -> None:
    """Measures all, and writes the file after each round."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for setting in SETTINGS:
            measure(setting, pathlib.Path(cache))  # Fills it.
        for _ in range(num_rounds):
            for setting in SETTINGS:
                for mode in MODES:
                    one = measure(setting, pathlib.Path(cache) if mode == "cached" else None)
                    found.setdefault((setting, mode), []).append(one)
            rows = [
                {"setting": setting, "mode": mode, "rounds": len(of), "seconds": summary(of)}
                for (setting, mode), of in found.items()
            ]
            command = "python benchmarks/startup.py --out=FILE.json"
            load = [round(one, 1) for one in os.getloadavg()]
            side_by_side.write(out, command=command, load=load, rows=rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--setting", choices=SETTINGS, help="measure one process, this one")
    args = parser.parse_args()
    if args.setting:
        run_until_first_step(args.setting)
    main(args.out, args.rounds)
