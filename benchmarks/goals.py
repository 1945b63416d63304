"""The goals that were stated before the measurements, and what the files of results say of each.

A goal reads one file of benchmarks/results. It is not measured until that file has its figure.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import fit_beside_search
import larger_tables
import neutral_summary
import numpy as np
import price_summary
import scipy.stats
from side_by_side import as_table

Content = Mapping[str, Any]
WITHIN, ONE_SEED = ", within the interval", ", on one seed"


class Measured(NamedTuple):
    """A figure, and the interval around it where there is one.

    Attributes:
        value: what is held beside the threshold.
        interval: lowest and highest.
        of: what the interval is of, or what else a reader should know.
        is_of_one_seed: whether another seed might say otherwise, and there is no interval.
    """

    value: float
    interval: tuple[float, float] | None = None
    of: str = ""
    is_of_one_seed: bool = False


@dataclasses.dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        about: what is measured.
        file: of benchmarks/results, without its ending.
        threshold: to be reached.
        at_least: whether values above the threshold are good; else those below.
        find: the figure, of what the file has; None where it is not measured.
        is_stretch: whether it lies beyond what was promised.
    """

    about: str
    file: str
    threshold: float
    at_least: bool
    find: Callable[[Content], Measured | None]
    is_stretch: bool = False

    def verdict(self, measured: Measured | None) -> str:
        """Whether the figure reaches the goal, and whether its whole interval does too."""
        if measured is None:
            return "not measured"
        sign = 1 if self.at_least else -1
        reached = sign * measured.value >= sign * self.threshold
        ends = [sign * end >= sign * self.threshold for end in measured.interval or ()]
        unsure = any(ends) and not all(ends)
        word = "reached" if reached else "missed"
        return word + WITHIN * unsure + ONE_SEED * measured.is_of_one_seed


Find = Callable[[Content], Measured | None]


def finder(find: Callable[..., Measured | None]) -> Callable[..., Find]:
    """Makes a goal's `find` of what the function is given beside the content."""
    return lambda *values, **more: lambda content: find(content, *values, **more)


@finder
def ratio(content: Content, measure: str, *peers: str, unit: str = "") -> Measured | None:
    """The ratio to the better of some peers: the lowest median, with its rounds."""
    rows = [
        row for row in content["rows"]
        if row["measure"] == measure and row["peer_name"] in peers and unit in ("", row["unit"])
    ]  # fmt: skip
    if {row["peer_name"] for row in rows} != set(peers):
        return None
    row = min(rows, key=lambda one: one["ratio"]["median"])
    found = row["ratio"]
    return Measured(found["median"], (found["min"], found["max"]), f"{row['rounds']} rounds")


@finder
def over_models(content: Content, measure: str, num_devices: int) -> Measured | None:
    """The geometric mean of the ratios of NumPyro models with 4 chains.

    Its interval has the geometric means of their lowest and of their highest, which is wider than
    from the lowest to the highest round.
    """
    ending = f", 4 chains, {num_devices} device(s)"
    found = [
        row for row in content["rows"]
        if row["measure"] == measure and row["setting"].endswith(ending)
    ]  # fmt: skip
    if not found:
        return None
    low, middle, high = (
        float(scipy.stats.gmean([row["ratio"][key] for row in found]))
        for key in ("min", "median", "max")
    )
    of = f"means of the lowest and of the highest of {found[0]['rounds']} rounds"
    return Measured(middle, (low, high), of)


@finder
def ours(content: Content, measure: str, setting: str = "") -> Measured | None:
    """The largest of our own figures of a measure, in settings that end so."""
    rows = [
        row for row in content["rows"]
        if row["measure"] == measure and row["setting"].endswith(setting)
    ]  # fmt: skip
    worst = max(rows, key=lambda row: row["ours"], default=None)
    return worst and Measured(worst["ours"], None, worst["setting"])


def bde_rows(content: Content, table: str) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of the published split by method."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in content["rows"]:
        if (row["table"], row["split"]) == (table, 0):
            found.setdefault(row["method"], []).append(row)
    return found


@finder
def bde_score(content: Content, table: str, score: str) -> Measured | None:
    """Our longest posterior's mean score over model seeds, on the published split."""
    rows = bde_rows(content, table)
    for steps in (24000, 8000):
        if values := [row[score] for row in rows.get(f"posterior_{steps}", [])]:
            found = over_seeds(values)
            return found._replace(of=f"{steps:,} steps, {found.of}")
    return None


def over_seeds(values: Sequence[float]) -> Measured:
    """A mean, from the lowest to the highest; no interval of a single seed."""
    if len(values) == 1:
        return Measured(float(values[0]), None, "1 seed", is_of_one_seed=True)
    return Measured(float(np.mean(values)), (min(values), max(values)), f"{len(values)} seeds")


def share_of_time(content: Content) -> Measured | None:
    """Our fewest seconds at bde's published NLL or below, as a share of bde's."""
    rows = bde_rows(content, "airfoil")
    theirs = rows.pop("bde_51000", None)
    good = [
        [row["seconds"] for row in mine]
        for method, mine in rows.items()
        if method.startswith("posterior")
        and np.mean([row["nll_by_moments"] for row in mine]) <= BDE_PUBLISHED
    ]
    if not theirs or not good:
        return None
    whole = float(np.mean([row["seconds"] for row in theirs]))
    found = over_seeds([seconds / whole for seconds in min(good, key=np.mean)])
    if len(theirs) > 1:
        return found
    return found._replace(of=f"{found.of}, bde's of one seed", is_of_one_seed=True)


BDE_PUBLISHED = -0.913


def tables_below(content: Content) -> Measured | None:
    """On how many tables the posterior's NLL is below that of the best ensemble, beyond chance."""
    found = [
        one for name, one in price_summary.summarise(content["rows"]).items() if name in TABLES
    ]
    if len(found) < len(TABLES):
        return None
    splits = min(len(one["splits"]) for one in found)
    of = f"{splits} split{'' if splits == 1 else 's'} each, 95% intervals"
    return Measured(sum(one["is_below_best"] for one in found), None, of)


TABLES = ("yacht", "energy", "concrete")


def largest_rhat(content: Content) -> Measured | None:
    """Over all runs of posteriors."""
    found = price_summary.summarise(content["rows"]).values()
    values = [value for one in found for value in one["rhat_max"]]
    if not values:
        return None
    return Measured(max(values), None, f"the largest of {len(values)} runs")


@finder
def of_one_training(content: Content, method: str, difference: str) -> Measured | None:
    """The upper end of a 95% interval over seeds of a difference in NLL."""
    found = content["summary"].get(method, {}).get(difference)
    if found is None:
        return None
    seeds = content["summary"][method]["seeds"]
    return Measured(found["high"], None, f"mean {found['mean']:.3g}, {seeds} seeds")


@finder
def share_of_training(content: Content, method: str) -> Measured | None:
    """CPU seconds of a method as a share of those of a deep ensemble of 8."""
    found = content["summary"].get(method)
    return found and Measured(found["cpu_share"], None, f"{found['seeds']} seeds")


@finder
def images(content: Content, problem: str, by_interval: bool) -> Measured | None:
    """The posterior's NLL less the best ensemble's: the mean, or the interval's upper end."""
    one = price_summary.summarise(content["rows"]).get(problem)
    if one is None:
        return None
    difference = one["difference"][one["best_other"]]
    interval = difference["interval"]
    if by_interval:
        return Measured(interval[1], None, f"mean {difference['mean']:+.4f}")
    return Measured(difference["mean"], tuple(interval), "95%")


def on_one_split(content: Content) -> bool:
    """Whether the defaults of tables have a single split of some table."""
    return content["summary"]["fewest_splits"] < 2


@finder
def rank_behind(content: Content, score: str) -> Measured | None:
    """The defaults' mean rank less the lowest of others that have every table."""
    found = content["summary"].get("ranks", {}).get(score, {})
    if "behind" not in found:
        return None
    other, (mean, low, high) = found["first_other"], found["behind"]
    own, its = (found["ranks"][name][0] for name in (neutral_summary.OURS, other))
    of = f"{own:.2f}, {other} {its:.2f}, 95% over {len(found['tables'])} tables"
    return Measured(mean, (low, high), of, on_one_split(content))


@finder
def behind_best(content: Content, score: str) -> Measured | None:
    """How far the defaults are behind the one method that is best in the geometric mean."""
    sign = 1 if score == "rmse" else -1
    found = {
        other: one[f"{score}_ratio"] ** sign
        for other, one in content["summary"].get("against", {}).items()
        if f"{score}_ratio" in one and other != neutral_summary.FORMER
        and one["tables"] == content["summary"]["tables"]
    }  # fmt: skip
    if not found:
        return None
    best = max(found, key=found.__getitem__)
    return Measured(found[best], None, f"{best} is the best", on_one_split(content))


@finder
def worst_table(content: Content, score: str) -> Measured | None:
    """How much worse the defaults are than a constant or a linear model, on the worst table."""
    found = [
        tuple(content["summary"].get("against", {}).get(other, {}).get(score, (None, "")))
        for other in neutral_summary.SIMPLE
    ]
    if any(value is None for value, _ in found):
        return None
    value, table = max(found)
    return Measured(value, None, table, on_one_split(content))


def coverage_off(content: Content) -> Measured | None:
    """How far the coverage of 90% intervals is from that, on the worst table of enough rows."""
    found = {
        table: abs(share - 0.9)
        for table, (share, number) in content["summary"].get("coverage_90", {}).items()
        if number >= neutral_summary.ENOUGH_TEST_ROWS
    }
    worst = max(found, key=found.__getitem__, default=None)
    tables = f"{len(found)} table{'s' * (len(found) > 1)}"
    return worst and Measured(found[worst], None, f"{worst}, of {tables}", on_one_split(content))


def seconds_of_former(content: Content) -> Measured | None:
    """CPU seconds of the defaults by those of the former ones, the median over tables."""
    found = content["summary"].get("cpu_ratio")
    if not found:
        return None
    of = f"{found['low']:.2f} to {found['high']:.2f} by table"
    return Measured(found["median"], None, of, on_one_split(content))


@finder
def larger_won(content: Content, what: str) -> Measured | None:
    """On how many larger tables the NLL is lower in the mean; of the whole protocol alone."""
    found = content["summary"][what]
    if len(found) < len(larger_tables.TABLES) or fewest_splits(found) < larger_tables.NUM_SPLITS:
        return None
    sure = sum(one["interval"][1] < 0 for one in found.values())
    of = f"on {sure} the whole 95% interval is below zero"
    return Measured(sum(one["less"] < 0 for one in found.values()), None, of)


@finder
def fit_won(content: Content) -> Measured | None:
    """On which share of the tables `fit` has the lower score; the score with the higher share.

    Of the whole protocol alone.
    """
    summary = content["summary"]
    found = summary["by_table"]
    has_all = len(found) == len(fit_beside_search.TABLES)
    if not has_all or fewest_splits(found) < fit_beside_search.NUM_SPLITS:
        return None
    name, best = max(
        (("NLL", summary["nll"]), (neutral_summary.LABELS, summary["spread"])),
        key=lambda one: one[1]["lower"] / one[1]["tables"],
    )
    of = f"{name}, {best['lower']} of {best['tables']} tables, 95%"
    return Measured(best["lower"] / best["tables"], tuple(best["interval"]), of)


def fewest_splits(found: Content) -> int:
    """The splits of the table that has the fewest."""
    return min(one["splits"] for one in found.values())


GOALS = (
    Goal(
        "NUTS on one device, least bulk ESS per second of sampling beside NumPyro's, geometric "
        "mean over five models",
        "numpyro_nuts", 1.5, True, over_models("least ESS, sampling", 1),
    ),
    Goal(
        "the same on two devices",
        "numpyro_nuts", 2.0, True, over_models("least ESS, sampling", 2),
    ),
    Goal(
        "the same models on one device, seconds of compilation, NumPyro's by ours",
        "numpyro_nuts", 1.0, True, over_models("compilation", 1),
    ),
    Goal(
        "the same on two devices",
        "numpyro_nuts", 1.0, True, over_models("compilation", 2),
    ),
    Goal(
        "SGHMC, steps per second beside the faster of two transforms of `posteriors`",
        "sghmc", 1.5, True, ratio("sampling", "posteriors baoa", "posteriors sghmc"),
    ),
    Goal(
        "MCLMC on small networks, steps per second beside bde",
        "mclmc_steps", 3, True, ratio("MCLMC", "bde", unit="steps/s"),
    ),
    Goal(
        "MCLMC on small networks, steps per second beside BlackJAX",
        "mclmc_steps", 2, True, ratio("MCLMC", "BlackJAX", unit="steps/s"),
    ),
    Goal(
        "MCLMC on small networks, steps per second beside the faster of bde and BlackJAX",
        "mclmc_steps", 6, True, ratio("MCLMC", "bde", "BlackJAX", unit="steps/s"),
        is_stretch=True,
    ),
    Goal("airfoil, NLL by moments", "bde", -1.0, False, bde_score("airfoil", "nll_by_moments")),
    Goal("airfoil, RMSE", "bde", 0.125, False, bde_score("airfoil", "rmse")),
    Goal("airfoil, RMSE", "bde", 0.11, False, bde_score("airfoil", "rmse"), is_stretch=True),
    Goal("bike, NLL by moments", "bde", -0.75, False, bde_score("bike", "nll_by_moments")),
    Goal("bike, RMSE", "bde", 0.22, False, bde_score("bike", "rmse")),
    Goal(
        f"airfoil, seconds for bde's published NLL of {BDE_PUBLISHED}, as a share of bde's",
        "bde", 0.2, False, share_of_time,
    ),
    Goal("the same", "bde", 0.1, False, share_of_time, is_stretch=True),
    Goal(
        "of three tables, those where a posterior's NLL is below that of the best of three "
        "ensembles by more than the interval",
        "price", 2, True, tables_below,
    ),
    Goal("R-hat of predictions", "price", 1.05, False, largest_rhat),
    Goal(
        "MNIST, 2,000 images: NLL of a posterior less that of the best ensemble",
        "price", 0, False, images("mnist", by_interval=False),
    ),
    Goal(
        "Fashion-MNIST, 10,000 images: the same, upper end of its 95% interval",
        "price", 0, False, images("fashion_mnist", by_interval=True),
    ),
    Goal(
        "Fashion-MNIST, 4,000 images: NLL of a SWAG member less SGD's, of the same seed and "
        "epochs, upper end of its 95% interval",
        "one_training", 0.002, False, of_one_training("swag", "member_less_member"),
    ),
    Goal(
        "the same, of Laplace around the member less the member itself",
        "one_training", 0.002, False, of_one_training("laplace", "member_less_member"),
    ),
    Goal(
        "the same, of MultiSWAG of 4, with 4 draws each, less a deep ensemble of 8",
        "one_training", 0.005, False, of_one_training("swag_of_4_draws", "ensemble_of_4_less_8"),
    ),
    Goal(
        "CPU seconds of MultiSWAG of 4 with 4 draws each, the whole run, as a share of the deep "
        "ensemble's",
        "one_training", 0.5, False, share_of_training("swag_of_4_draws"),
    ),
    Goal(
        "CPU seconds of last-layer Laplace, the whole run, as a share of the deep ensemble's",
        "one_training", 0.06, False, share_of_training("laplace"),
    ),
    Goal(
        "last-layer Laplace, seconds to fit beside laplace-torch",
        "laplace", 1, True, ratio("fit", "laplace-torch"),
    ),
    Goal(
        "records per second beside tf.data and DataLoader, the better of both",
        "streaming", 1.0, True, ratio("reading", "tf.data", "PyTorch DataLoader"),
    ),
    Goal(
        "the same", "streaming", 2.0, True,
        ratio("reading", "tf.data", "PyTorch DataLoader"), is_stretch=True,
    ),
    Goal(
        "share of its time that training waits for records",
        "streaming", 0.02, False, ours("waiting"),
    ),
    Goal("memory of training from records, GB", "streaming", 1.5, False, ours("memory")),
    *(
        Goal(
            f"defaults of tables: mean rank by {shown}, less that of the best peer",
            "neutral_tables", 0, False, rank_behind(score),
        )
        for shown, score in (("NLL", "nll"), (neutral_summary.LABELS,) * 2)
    ),
    Goal(
        "defaults of tables: RMSE by that of the best method, geometric mean over tables",
        "neutral_tables", 1.03, False, behind_best("rmse"),
    ),
    Goal(
        "defaults of tables: accuracy of the best method by theirs, geometric mean over tables",
        "neutral_tables", 1.03, False, behind_best("accuracy"),
    ),
    Goal(
        "defaults of tables: NLL less that of a constant or a linear model, on the worst table",
        "neutral_tables", 0.02, False, worst_table("nll_highest"),
    ),
    Goal(
        "defaults of tables: RMSE by that of a constant or a linear model, on the worst table",
        "neutral_tables", 1.02, False, worst_table("rmse_ratio_worst"),
    ),
    Goal(
        "defaults of tables: coverage of 90% intervals less .9 on the worst table that has 1,500 "
        "test rows",
        "neutral_tables", 0.03, False, coverage_off,
    ),
    Goal(
        "defaults of tables: CPU seconds by those of the former ones, median over tables",
        "neutral_tables", 1.2, False, seconds_of_former,
    ),
    Goal(
        "larger tables on which piecewise-linear embeddings have a lower NLL than plain networks",
        "larger_tables", 4, True, larger_won("embeddings"),
    ),
    Goal(
        "larger tables on which TabM has a lower NLL than plain networks of equal CPU seconds",
        "larger_tables", 4, True, larger_won("tabm"),
    ),
    Goal(
        "share of tables on which `fit` is better than a search of CatBoost of equal seconds",
        "fit_beside_search", 0.6, True, fit_won(),
    ),
    Goal(
        "peak memory at a checkpoint, as a multiple of a host's own part",
        "checkpoint_memory", 1.3, False,
        ours("rise of memory, checkpoint", ", own parts"),
    ),
)  # fmt: skip


def table(contents: Mapping[str, Content], elsewhere: Mapping[str, str] = {}) -> str:
    """A line for each goal, in Markdown.

    Args:
        contents: the files of results, by name.
        elsewhere: the page with the section of a file, if that is not the page of the table.
    """
    lines = []
    for goal in GOALS:
        found = goal.find(contents[goal.file]) if goal.file in contents else None
        figure = f"{found.value:.3g}" if found else ""
        if found:
            low, high = found.interval or (0.0, 0.0)
            around = [f"{low:.3g} to {high:.3g}"] * (low < high) + [found.of] * bool(found.of)
            figure += f" ({', '.join(around)})" if around else ""
        verdict = goal.verdict(found)
        threshold = f"{'≥' if goal.at_least else '≤'}\u00a0{goal.threshold:g}"
        about = goal.about + " (stretch)" * goal.is_stretch
        address = f"{elsewhere.get(goal.file, '')}#{goal.file}"
        lines.append([about, threshold, figure, f"[{verdict}]({address})" if found else verdict])
    return as_table("| what | goal | figure | verdict |", lines)


def counts(contents: Mapping[str, Content]) -> str:
    """How many goals were reached, in two sentences."""

    def count(is_stretch: bool) -> tuple[int, dict[str, int]]:
        verdicts = [
            goal.verdict(goal.find(contents[goal.file]) if goal.file in contents else None)
            for goal in GOALS
            if goal.is_stretch == is_stretch
        ]
        words = ("reached", "missed", "not measured")
        found = {word: sum(one.startswith(word) for one in verdicts) for word in words}
        on_one_seed = sum(one.startswith("reached") and ONE_SEED in one for one in verdicts)
        return len(verdicts), found | {"on one seed": on_one_seed}

    number, found = count(is_stretch=False)
    beyond, stretched = count(is_stretch=True)
    return (
        f"Of {number} goals, {found['reached']} were reached, {found['on one seed']} of them on "
        f"one seed and one split, {found['missed']} were missed, and "
        f"{found['not measured']} are not measured yet.\nOf {beyond} stretch goals beyond these, "
        f"{stretched['reached']} were reached."
    )
