"""Bytes per device of large members: what the rule of size says, and what the compiler does.

    PYTHONPATH=. python benchmarks/member_bytes.py --out=benchmarks/results/member_bytes.json

Compiles one step of training for virtual CPU devices and runs nothing: its machine code is not
optimised, which changes no array. For each number of devices
it prints what one device holds of the members' state by `bytes_per_device`, what the compiled
program takes as arguments and beside them, and what the devices exchange in a step, by the
collectives in the compiled program.
"""

import argparse
import json
import math
import sys
from typing import Any

import compiled_text
import side_by_side

_COMMAND = "PYTHONPATH=. python benchmarks/member_bytes.py --out=FILE.json"
_FLAGS = "--xla_backend_optimization_level=0"
_NOT_SETTINGS = ("devices", "out", "worker")


def main() -> None:
    """Measures each number of devices in a process of its own; prints it, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--member_devices", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--size", default="L", help="of the vision transformer")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options)))
        return
    rows = []
    for devices in options.devices:
        flags = f"--xla_force_host_platform_device_count={devices} {_FLAGS}"
        command = [sys.executable, *sys.argv, f"--worker={devices}"]
        output, _ = side_by_side.run_child(command, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
        rows.append(json.loads(output.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
    settings = {name: value for name, value in vars(options).items() if name not in _NOT_SETTINGS}
    side_by_side.write(options.out, command=_COMMAND, settings=settings, rows=rows)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compiles a step on so many devices.

    Args:
        options: of the command line.

    Returns:
        Bytes of one device, and of what it receives or sends in a step.
    """
    # JAX starts with the flags of this process.
    import jax
    import numpy as np

    from ensemble.config_rules import validate
    from ensemble.methods.members.batching import Batches
    from ensemble.methods.members.member_programs import build_programs, zero_metrics
    from ensemble.methods.members.optimizers import create_descent
    from ensemble.sharding.member_parts import bytes_per_device
    from ensemble.sources.data_forms import recognise
    from ensemble.tasks.supervised import create

    config = validate(
        {
            "model": "vit",
            "vit.size": options.size,
            "ensemble_size": options.members,
            "member_devices": options.member_devices,
            "num_devices": options.worker,
            "batch_size": options.batch_size,
            "num_steps": 1,
            "hold_out": False,
        }
    )
    count = max(options.batch_size, 10)
    shape = (count, options.pixels, options.pixels, 3)
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], shape)
    task = create(config, recognise({"inputs": images, "labels": np.arange(count) % 10}))
    programs = build_programs(
        config, task, create_descent(config, 1), options.members, jax.devices()
    )
    placement = programs.placement
    numbers = placement.place_members(np.arange(options.members, dtype=np.uint32))
    members = jax.eval_shape(programs.create, numbers, jax.random.key(0), {})
    placed = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        members,
        placement.member_shardings(members),
    )
    batches = Batches(config, task.dataset, options.batch_size, 1)
    batch = batches.place(placement, tuple(range(options.members)), 0, 1, 1)
    totals = zero_metrics(placement, task.likelihood)
    train_steps: Any = programs.train_steps  # Compiled by `jax.jit`.
    step = train_steps.lower(placed, *totals, None, batch, np.int32(0), np.int32(1))
    compiled = step.compile()
    memory = compiled.memory_analysis()
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), members)
    predicted = placement.slots * bytes_per_device(state, placement.mesh.shape)
    return {
        "devices": options.worker,
        "mesh": dict(placement.mesh.shape),
        "members": options.members,
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        "predicted_state_bytes": predicted,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "exchanged_bytes": exchanged(compiled.as_text()),
    }


def exchanged(program: str) -> dict[str, list[int]]:
    """Counts the collectives of a compiled program: how many, and bytes put out.

    Args:
        program: its text.
    """
    found: dict[str, list[int]] = {}
    for one in compiled_text.read(program).exchanged:
        count, size = found.get(one.name, (0, 0))
        found[one.name] = [count + one.count, size + one.num_bytes]
    return found


if __name__ == "__main__":
    main()
