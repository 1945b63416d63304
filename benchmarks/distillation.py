"""One network in place of eight on MNIST: the score that it keeps, and the speed that it gains.

    python benchmarks/distillation.py --workdir=runs/distillation \
        --out=benchmarks/results/distillation.json

Trains the teacher, and from it a categorical network and one with a Dirichlet head, both with the
teacher's recipe but for `--epochs` and `--blends`, and lays each beside the teacher. Rates are of
`ensemble.load` on this machine, batches of 256, and mean something only where nothing else runs.
The same command goes on where it was interrupted. It takes some three hours on two busy cores.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

import side_by_side
from side_by_side import as_table

LIKELIHOODS = ("categorical", "dirichlet")
MAX_LOSS = 0.0015  # Nats of NLL that one network may lose.


def main() -> None:
    """Trains what is not there yet, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True, help="folder of the runs")
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--config", default="mnist_ensemble", help="of the teacher")
    parser.add_argument("--epochs", type=int, default=20, help="of a student")
    parser.add_argument("--blends", type=int, default=1, help="of a student, for each example")
    args = parser.parse_args()
    folder = pathlib.Path(args.workdir)
    teacher = folder / "teacher"
    train("train", f"--config={args.config}", f"--workdir={teacher}")
    results = {}
    for likelihood in LIKELIHOODS:
        out = folder / likelihood
        overrides = [f"--config.likelihood={likelihood}", f"--config.num_epochs={args.epochs}"]
        overrides.append(f"--config.num_blends={args.blends}")
        train("distill", f"--workdir={teacher}", f"--out={out}", *overrides)
        report = json.loads((out / "report.json").read_text())
        results[likelihood] = {**report["distillation"], "timing": report["timing"]}
    for line in table(results):
        print(line)
    side_by_side.write(
        args.out,
        config=args.config,
        epochs=args.epochs,
        blends=args.blends,
        teacher_timing=json.loads((teacher / "report.json").read_text())["timing"],
        students=results,
    )


def train(*command: str) -> None:
    """Runs a command of the package, or goes on with it; its log goes to the terminal."""
    subprocess.run([sys.executable, "-m", "ensemble", *command], cwd=side_by_side.ROOT, check=True)


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The scores, sizes and rates as a Markdown table, and whether each loss is small enough."""
    first = next(iter(results.values()))
    rows = [("teacher", first["teacher"]), ("its average member", {"scores": first["mean_member"]})]
    rows += [(name, one["student"]) for name, one in results.items()]
    cells = []
    for name, row in rows:
        scores, rate = row["scores"], row.get("examples_per_second")
        shown = [f"{100 * scores['accuracy']:.2f}", f"{scores['nll']:.4f}", f"{scores['ece']:.4f}"]
        rates = f"{rate:,.0f}" if rate else ""
        cells.append([name, *shown, row.get("num_parameters", ""), rates])
    head = "| | accuracy % | NLL, nats | ECE | parameters | examples/s |"
    lines = [as_table(head, cells)]
    for name, one in results.items():
        loss = one["student"]["scores"]["nll"] - one["teacher"]["scores"]["nll"]
        verdict = "within" if loss <= MAX_LOSS else "NOT within"
        lines.append(
            f"{name}: {loss:+.4f} nats, {verdict} {MAX_LOSS} of the teacher, "
            f"{one['speedup']:.1f} times as fast; rank correlations {one['rank_correlation']}"
        )
    return lines


if __name__ == "__main__":
    main()
