"""Measures one of the comparisons of `comparisons.py`, in alternating rounds of fresh processes.

    python benchmarks/compare.py train_throughput --python torch=PYTHON --out=FILE.json

`--help` says what each of them measures. What has been measured is kept beside --out, and the same
command goes on with it. Rows of peers that cannot run are left out, and so are contestants that are
named by --without. Leave the machine alone.
"""

import argparse
import dataclasses
import inspect
import json
import math
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import side_by_side
import tables_data
from comparisons import COMPARISONS, LOWER_IS_BETTER, MODULES, Comparison, Line, Results
from side_by_side import Measurement, Row

MAX_RHAT = 1.05


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, Comparison]:
    """What the command line asks for, which by default is that of the process."""
    texts = (f"{name}: {inspect.getdoc(one)}" for name, one in COMPARISONS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__.splitlines()[0]}\n\n" + "\n\n".join(texts),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=COMPARISONS)
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH")
    parser.add_argument("--without", nargs="+", default=[], metavar="CONTESTANT")
    parser.add_argument("--ess", nargs=2, type=pathlib.Path, metavar=("RUN", "NOTEBOOK"))
    make = COMPARISONS[parser.parse_known_args(argv)[0].name]
    sizes = inspect.signature(make).parameters
    for key, parameter in sizes.items():
        parser.add_argument(f"--{key}", type=int, default=parameter.default)
    args = parser.parse_args(argv)
    comparison = make(**{key: getattr(args, key) for key in sizes})
    if unknown := set(args.without) - set(comparison.commands):
        parser.error(f"--without {unknown.pop()!r}: must be of {', '.join(comparison.commands)}")
    args.arguments = [args.name, *(f"--{key}={getattr(args, key)}" for key in sizes)]
    args.arguments += ["--without", *map(repr, args.without)] if args.without else []
    left = {name: one for name, one in comparison.commands.items() if name not in args.without}
    return args, dataclasses.replace(comparison, commands=left)


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    args, comparison = parse()
    # First: what has not converged is said before anything is measured.
    more = [compare_ess(*args.ess)] if args.ess else []
    pythons = interpreters(comparison, dict(one.split("=", 1) for one in args.python))
    results = measure(comparison, pythons, args.rounds, args.out)
    own = [f"{name}=PYTHON" for name in pythons if name != "ours"]
    arguments = [*args.arguments, *["--python"][: len(own)], *own]
    versions: dict[str, str] = {}
    for name, packages in comparison.packages.items():
        if name in pythons:
            versions |= side_by_side.versions_of(pythons[name], packages)
    rows = [*make_rows(comparison.lines, results), *more]
    found = comparison.more(results)
    if args.out and pathlib.Path(args.out).exists():
        stored = json.loads(pathlib.Path(args.out).read_text())
        found = {**found, **{key: stored[key] for key in comparison.kept if key in stored}}
    command = " ".join([*arguments, *["--ess RUN NOTEBOOK"] * len(more)])
    side_by_side.report(rows, args.out, command, versions, found)


def interpreters(comparison: Comparison, given: Mapping[str, str]) -> dict[str, str]:
    """The interpreters of those contestants that can run, by name."""
    found = {"ours": sys.executable}
    for name in {command[0] for command in comparison.commands.values()} - {"ours"}:
        python = given.get(name, sys.executable)
        command = [python, "-W", "ignore", "-c", f"import {MODULES[name]}"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            print(f"{python} cannot import {MODULES[name]}: no rows of it; see --python")
        else:
            found[name] = python
    return found


def measure(
    comparison: Comparison, pythons: Mapping[str, str], num_rounds: int, out: str | None
) -> dict[str, list[Measurement]]:
    """Measures all contestants in turn, and keeps what it has beside `out`."""
    kept = pathlib.Path(f"{out}.partial") if out else None
    results: dict[str, list[Measurement]] = {}
    if kept and kept.exists():
        results = json.loads(kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        places = {"{folder}": folder}
        if any("{airfoil}" in command for command in comparison.commands.values()):
            packages = tables_data.packages_of(pythons.get("bde", sys.executable))
            places["{airfoil}"] = f"{packages}/{tables_data.BDE_FILES['airfoil']}"

        def run(command: Sequence[str], number: int = 0) -> Measurement:
            values = places | {"{round}": str(number)}
            words = [_replaced(one, values) for one in command[1:]]
            return side_by_side.run_worker([pythons[command[0]], *words])

        for command in comparison.before:
            run(command)
        for i in range(num_rounds):
            for name, command in comparison.commands.items():
                done = results.setdefault(name, [])
                if command[0] not in pythons or len(done) > (0 if name in comparison.once else i):
                    continue
                done.append(run(command, i))
                values = ", ".join(f"{key} {value:.4g}" for key, value in done[-1].items())
                print(f"round {i + 1}/{num_rounds}  {name}: {values}", file=sys.stderr, flush=True)
                if kept:
                    kept.write_text(json.dumps(results))
    if kept:
        kept.unlink(missing_ok=True)
    return results


def _replaced(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def make_rows(lines: Sequence[Line], results: Results) -> list[Row]:
    """Makes the table of the rounds of each contestant."""
    rows: list[Row] = []
    for line in lines:
        ours = values(results, line.ours, line.key)
        peer = None
        name = None
        if line.peer:
            peer = values(results, line.peer, line.peer_key or line.key)
            name = line.name or str(line.peer)
        if not ours:
            continue
        about = (line.measure, line.setting, line.unit)
        if line.peer and not peer:
            if any((row.measure, row.setting, row.unit) == about for row in rows):
                continue
            peer = name = None
        more = line.unit not in LOWER_IS_BETTER
        rows.append(side_by_side.compare(*about, ours, peer, name, more))
    return rows


def values(results: Results, names: str | Sequence[str], key: str) -> list[float]:
    """What contestants measured in each round; of several the geometric mean."""
    if isinstance(names, str):
        above, _, below = key.partition("/")
        return [one[above] / (one[below] if below else 1) for one in results.get(names, ())]
    columns = [values(results, name, key) for name in names]
    if not all(columns):
        return []
    return [math.prod(row) ** (1 / len(names)) for row in zip(*columns, strict=True)]


def compare_ess(run: pathlib.Path, notebook: pathlib.Path) -> Row:
    """Compares two finished runs, which any machine may have made.

    Raises:
        ValueError: a run has not converged, so that its effective sample size means nothing.
    """

    def ess_per_gradient(workdir: pathlib.Path) -> float:
        posterior = json.loads((workdir / "results.json").read_text())["posterior"]
        if not posterior["rhat_max"] < MAX_RHAT:
            raise ValueError(f"{workdir}: R-hat {posterior['rhat_max']} must be below {MAX_RHAT}")
        return posterior["ess_bulk_min"] / posterior["num_gradients"]

    about = ("least bulk ESS", "both as run", "1/gradient")
    both = [ess_per_gradient(run)], [ess_per_gradient(notebook)]
    return side_by_side.compare(*about, *both, "notebook's HMC")


if __name__ == "__main__":
    main()
