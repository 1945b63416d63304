"""What the programs take on accelerators that are not here: compiled ahead of time, never run.

    python -m benchmarks.aot --topology v5e:2x4 v6e:16x16 --out=benchmarks/results/aot.json
    python -m benchmarks.aot --topology h100:8 --out=benchmarks/results/aot.json

It needs the plug-in of the topology, see `aot_devices.py`, and no accelerator. Each program is
compiled in a process of its own. The file has what XLA says of the compiled program: bytes of one
chip, FLOP, and what chips exchange. Times are estimated by XLA's cost model, not measured. What is
in the file is not compiled again, unless `--anew` is given. A program that does not compile, or not
within `--limit` seconds, is a row that says so.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # `-m` has put only the root there.
import aot_devices
import aot_programs
import compiled_text
import rows
import side_by_side

ROOT = side_by_side.ROOT
RESULTS = ROOT / "benchmarks" / "results" / "aot.json"


def main() -> None:
    """Compiles what is missing; or compiles one program and prints what it takes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topology", nargs="+", default=[], help="such as v5e:2x4 or h100:8")
    parser.add_argument("--programs", nargs="+", help="some of them; all by default")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one program")
    parser.add_argument("--anew", action="store_true", help="compile again what is in the file")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="JSON file")
    parser.add_argument("--small", action="store_true", help="the small programs of the tests")
    parser.add_argument("--texts", type=pathlib.Path, help="folder to write compiled programs to")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # In this process.
    options = parser.parse_args()
    if options.here:
        [topology] = options.topology
        for name in options.programs:
            found = compile_one(topology, name, options.small, options.texts)
            print(json.dumps(found), flush=True)
        return
    compile_all(options)


def compile_all(options: argparse.Namespace) -> None:
    """Compiles what the file lacks, each program in a process of its own."""
    names = options.programs or [*(aot_programs.SMALL if options.small else aot_programs.FULL)]
    keys = [{"topology": one, "program": name} for one in options.topology for name in names]

    def run(topology: str, program: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.aot", "--here", "--topology", topology]
        command += ["--programs", program, *(["--small"] if options.small else [])]
        command += [f"--texts={options.texts.absolute()}"] if options.texts else []
        began = time.monotonic()
        try:
            output = run_child(command, topology, options.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"not compiled within {options.limit:g} s"}
        except RuntimeError as error:
            return {"failed": str(error)}
        found = json.loads(output.splitlines()[-1])
        return {**found, "seconds": round(time.monotonic() - began, 1)}

    results = rows.Results(
        options.out,
        command="python -m benchmarks.aot --topology TOPOLOGY",
        times="estimated by XLA, not measured",
    )
    results.fill(keys, run, options.anew)


def run_child(command: Sequence[str], topology: str, limit: float) -> str:
    """Runs one compilation.

    Returns:
        Its output.

    Raises:
        RuntimeError: it failed, with the last line of what it said.
        subprocess.TimeoutExpired: it took too long.
    """
    environment = {**os.environ, **aot_devices.environment(topology)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit
    )
    if done.returncode < 0:
        raise RuntimeError(f"the compiler was ended by signal {-done.returncode}")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1][:300] if said else f"it ended with status {done.returncode}")
    return done.stdout


def compile_one(
    topology: str, program: str, small: bool, texts: pathlib.Path | None
) -> dict[str, Any]:
    """Compiles a program in this process, which has the environment of the topology.

    Args:
        topology: by its name.
        program: by its name.
        small: whether it is one of the small programs.
        texts: a folder to write the compiled program to.
    """
    import jax  # It starts with the environment of this process.

    devices = aot_devices.devices_of(topology)
    lower = aot_programs.SMALL[program] if small else aot_programs.FULL[program][1]
    lowered = lower(devices)
    compiled = lowered.compile()
    memory: Any = compiled.memory_analysis()
    said = compiled.as_text() or ""
    if texts:
        texts.mkdir(parents=True, exist_ok=True)
        (texts / f"{topology.replace(':', '-')}-{program}.txt").write_text(said)
    reading = compiled_text.read(said)
    return {
        "devices": len(devices),
        "jax": jax.__version__,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "flop": _flop(compiled, said),
        "estimated_seconds": aot_devices.seconds(topology, reading.cycles),
        "exchanged": [dataclasses.asdict(one) for one in reading.exchanged],
        "callbacks": reading.callbacks,
        "default_precision_products": compiled_text.rounded_products(lowered.as_text()),
    }


def _flop(compiled: Any, text: str) -> float | None:
    """Operations of one chip, what is in a loop once; None where libraries compute some of them."""
    import jax  # As above.
    from jaxlib import _jax  # XLA's own count, which compilers for GPUs do not pass on.

    if '_call_target="__cu' in text:  # Of cuDNN or cuBLAS, which XLA does not count.
        return None
    analysis = compiled.cost_analysis()
    if not analysis:
        [module] = compiled.runtime_executable().hlo_modules()
        analysis = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    return analysis.get("flops")


if __name__ == "__main__":
    main()
