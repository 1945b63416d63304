"""Steps of MCLMC on a small network, beside BlackJAX and bde, on CPU.

    python benchmarks/mclmc_steps.py --bde_python=PYTHON --out=benchmarks/results/mclmc_steps.json

Contestants, each measured in a process of its own, in alternating rounds:

- ours: the method `mclmc` that train.py drives, with its predictions of the other 301 rows;
- BlackJAX: its kernel as its documentation writes it, chains vmapped over a scan;
- bde: its own sampling, chains over two devices. bde (sklearn-contrib-bde==1.0.2) is a requirement
  of this benchmark alone; --bde_python names an interpreter that has it. Its package has the table.

The work: 10 chains of an MLP of four layers of 16 units with SiLU, which predicts a mean and a
standard deviation, on 1,202 rows of airfoil's table; prior normal(1), fixed step size. Steps of
single chains per second, after compilation; a step has two gradients. Start-up is compilation, with
our imports, set-up and first 320 steps, and with BlackJAX's first 200. Half a minute a round.
Rounds that --out has are not measured again: --rounds says how many there shall be. If it has all
of them, only the table is made anew.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

import side_by_side
from side_by_side import Measurement, Row

PEERS = {"BlackJAX": "mclmc_steps_blackjax.py", "bde": "mclmc_steps_bde.py"}
OURS = "mclmc_steps_ours.py"


def main() -> None:
    """Measures, prints the table, writes the JSON after every round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write, and to go on from")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bde_python", required=True)
    args = parser.parse_args()

    table = find_table(args.bde_python)
    commands = {
        "ours": [sys.executable, OURS, table],
        "BlackJAX": [sys.executable, PEERS["BlackJAX"], table],
        "bde": [args.bde_python, PEERS["bde"], table],
    }
    results = measured(args.out) or {name: [] for name in commands}
    versions = side_by_side.versions_of(sys.executable, ("blackjax",))
    versions |= side_by_side.versions_of(args.bde_python, ("sklearn-contrib-bde",))
    for _ in range(len(results["ours"]), args.rounds):
        for name, found in side_by_side.measure_rounds(commands, 1).items():
            results[name] += found
        side_by_side.report(make_rows(results), args.out, "--bde_python=PYTHON", versions)
        keep(args.out, rounds=results)
    keep(args.out, rows=[dataclasses.asdict(row) for row in make_rows(results)])


def find_table(python: str) -> str:
    """The csv file of airfoil in the bde of an interpreter."""
    program = "import bde.data, pathlib; print(pathlib.Path(bde.data.__file__).parent)"
    completed = subprocess.run(
        [python, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        sys.exit(f"{python} cannot import bde; pip install sklearn-contrib-bde==1.0.2 there")
    return str(pathlib.Path(completed.stdout.splitlines()[-1]) / "airfoil.csv")


def measured(out: str | None) -> dict[str, list[Measurement]] | None:
    """The rounds that a file has, by contestant."""
    if out is None or not pathlib.Path(out).exists():
        return None
    return json.loads(pathlib.Path(out).read_text())["rounds"]


def make_rows(results: dict[str, list[Measurement]]) -> list[Row]:
    """Makes the table of the rounds of each contestant."""

    def values(name: str, key: str) -> list[float]:
        return [measurement[key] for measurement in results[name]]

    rows, setting = [], "10 chains, 4 x 16, 1202 rows"
    for key, unit in (("rate", "steps/s"), ("steps_per_cpu_second", "steps/s of CPU")):
        for peer in PEERS:
            ours, theirs = values("ours", key), values(peer, key)
            rows.append(side_by_side.compare("MCLMC", setting, unit, ours, theirs, peer))
    for peer in PEERS:
        ours, theirs = values("ours", "first_seconds"), values(peer, "first_seconds")
        about = ("MCLMC, start-up, ours with set-up", setting, "s")
        rows.append(side_by_side.compare(*about, ours, theirs, peer, higher_is_better=False))
    return rows


def keep(out: str | None, **entries: Any) -> None:
    """Sets entries of the file, where one is given; who measured what stays as it is."""
    if out:
        path = pathlib.Path(out)
        path.write_text(json.dumps(json.loads(path.read_text()) | entries, indent=2) + "\n")


if __name__ == "__main__":
    main()
