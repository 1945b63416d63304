"""The same commands of this checkout and of another one, side by side: what a change costs.

    git worktree add ../before COMMIT
    python benchmarks/before_and_after.py --before=../before --out=benchmarks/results/NAME.json

Or this checkout by another Python, whose packages are of other versions:

    python benchmarks/before_and_after.py --before=. --python=OTHER/bin/python --out=...

Every round runs `train.py` in both, in fresh processes that compile anew, this one first in every
second round. Of each command it takes the rate that `metrics.jsonl` says, seconds of CPU, and the
most memory; CPU seconds decide where a ratio of rates straddles 1, for other programs do not
change them.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import side_by_side

COMMANDS = {
    "training, CNN": ["clutter_ensemble", "num_epochs=3"],
    "training, MLP": ["digits_ensemble", "model=mlp", "num_epochs=60", "eval_every_epochs=30"],
    "sampling, regression": [
        "digits_logreg_hmc",
        "sampler.num_warmup=300",
        "sampler.num_samples=900",
    ],
    "sampling, CNN": [
        "digits_hmc",
        "init_from=prior",
        "sampler.num_warmup=4",
        "sampler.num_samples=12",
        "sampler.num_leapfrog_steps=5",
        "log_every_steps=4",
    ],
    "walks": ["mixture_rwm"],
}
"""By name: a configuration and what is overridden, that both checkouts know."""


def measure(
    checkout: pathlib.Path, python: str, config: str, overrides: list[str]
) -> dict[str, float]:
    """Runs one command in a checkout.

    Args:
        checkout: where `train.py` is.
        python: runs it.
        config: its name.
        overrides: of keys.

    Returns:
        Its rate, seconds of CPU and MiB.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python,
            "train.py",
            f"--config=configs/{config}.py",
            f"--workdir={folder}/run",
            *(f"--config.{one}" for one in overrides),
        ]
        _, cost = side_by_side.run_child(command, checkout)
        lines = pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    rates = [
        value
        for line in lines
        for name, value in json.loads(line).items()
        if name.endswith("per_second")
    ]
    return cost | {"rate": statistics.median(rates)}


def main() -> None:
    """Measures, and prints and writes a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=pathlib.Path, required=True, help="another checkout")
    parser.add_argument("--python", default=sys.executable, help="what runs the other checkout")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=COMMANDS, help="one of the commands")
    parser.add_argument("--out", help="a JSON file")
    args = parser.parse_args()
    commit = side_by_side.provenance(args.before)["commit"]
    sides = {"now": (side_by_side.ROOT, sys.executable), "before": (args.before, args.python)}
    versions = {
        name: side_by_side.versions_of(python, ["jax"])["jax"]
        for name, (_, python) in sides.items()
    }
    rows = []
    for name, (config, *overrides) in COMMANDS.items():
        if args.only not in (None, name):
            continue
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for number in range(args.rounds):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                found[side].append(measure(*sides[side], config, overrides))
                print(f"{name} {number + 1}: {side} {found[side][-1]}", flush=True)
        now, before = found.values()
        for key, unit in (("rate", "per second"), ("cpu_seconds", "s of CPU"), ("mib", "MiB")):
            values = [one[key] for one in now], [one[key] for one in before]
            setting = f"{' '.join([config, *overrides])}; before: {commit}"
            if versions["now"] != versions["before"]:
                setting += f", jax {versions['before']}; now: jax {versions['now']}"
            rows.append(side_by_side.compare(name, setting, unit, *values, "before", key == "rate"))
    side_by_side.report(rows, args.out, f"--before=CHECKOUT --rounds={args.rounds}")


if __name__ == "__main__":
    main()
