"""Ten MLPs on a table: ours beside PyTorch's `torch.func` ensemble, in alternating rounds.

    python benchmarks/tables_throughput.py --torch_python=../venv-tables/bin/python \\
        --out=benchmarks/results/tables_throughput.json

The work: ten members of three hidden layers of 128 rectified units, Gaussian noise, Adam, batches
of 256 of 10,000 rows of 20 columns that all members share, float32; member-rows a second after
compilation. PyTorch runs the members by `torch.func.vmap` over stacked parameters, as its tutorial
on ensembles does, as it is and through `torch.compile` where that has a compiler here. Then, once a
round, `EnsembleRegressor().fit` on 1,000 rows, from the start of its process. Leave the machine
alone meanwhile.
"""

import argparse
import sys

import side_by_side

OURS, TORCH = "tables_throughput_ours.py", "tables_throughput_torch.py"


def main() -> None:
    """Measures, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch_python", default=sys.executable)
    args = parser.parse_args()
    commands = {
        "ours": [sys.executable, OURS, "rate"],
        "fit": [sys.executable, OURS, "fit"],
        "torch": [args.torch_python, TORCH, "eager"],
        "torch compiled": [args.torch_python, TORCH, "compiled"],
    }
    results = side_by_side.measure_rounds(commands, args.rounds)

    def rates(name: str) -> list[float]:
        return [measurement["rate"] for measurement in results[name]]

    setting = "M=10, 3 x 128, batches of 256"
    rows = [
        side_by_side.compare(
            "training, table", setting, "member-rows/s", rates("ours"), rates(peer), peer
        )
        for peer in ("torch", "torch compiled")
    ]
    seconds = [measurement["seconds"] for measurement in results["fit"]]
    rows.append(side_by_side.compare("EnsembleRegressor().fit", "1,000 rows, cold", "s", seconds))
    versions = side_by_side.versions_of(args.torch_python, ("torch",))
    side_by_side.report(rows, args.out, "--torch_python=PYTHON", versions)


if __name__ == "__main__":
    main()
