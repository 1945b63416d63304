"""The measured part of docs/which_method.md and its pictures, drawn from methods.json alone."""

import math
import pathlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import methods_advice
import methods_cells as cells
import methods_compare as compare
import methods_data
import methods_pictures
from methods_compare import TITLES
from methods_others import SEVERITY, SHIFTED
from methods_pictures import PREDICTING, SECONDS
from side_by_side import as_item, as_table, as_text

Row = Mapping[str, Any]
BEGIN, END = "<!-- methods.json: begin -->", "<!-- methods.json: end -->"
_DATA, _OF_FINALISTS = (
    [name for name, one in methods_data.SETS.items() if bool(one.tuned_on) == of_finalists]
    for of_finalists in (False, True)
)


def sets_of(content: Row, among: Collection[str] = _DATA) -> list[Row]:
    """Data sets whose entries have been compared, in their order; without those of finalists."""
    rows, guesses, lengths, fits = (
        {row["data"]: row for row in content["rows"] if row["stage"] == stage}
        for stage in ("entries", "guess", "length", "fit")
    )
    names = [name for name in among if rows.get(name, {}).get("rounds")]
    return [
        {
            **rows[name],
            "guess": guesses[name],
            "length": lengths[name],
            "fit": fits.get(name, {}).get("seconds"),
            "spread": _spread(content, name),
        }
        for name in names
    ]


def _spread(content: Row, data: str) -> float:
    """The standard deviation, over seeds, of the calibrated score of one plain network of 1c."""
    key = {"data": data, "stage": "final", "family": compare.PLAIN, "length": 1}
    scores = [
        row["calibrated"][row["score"]]
        for row in content["rows"]
        if "calibrated" in row and key.items() <= row.items()
    ]
    return statistics.stdev(scores)


def replaced(page: str, content: Row) -> str:
    """A page with its measured part drawn anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text(content)}\n{END}{rest.partition(END)[2]}"


def text(content: Row) -> str:
    """The measured part."""
    sets = sets_of(content)
    if not sets:
        return as_text("Nothing has been compared yet.")
    parts = [methods_advice.text(sets), _introduction(content, sets), *map(_data_set, sets)]
    parts += map(_finalists, sets_of(content, _OF_FINALISTS))
    parts += [_divisions(sets), _looks(content), _peers(content), _open(content, sets)]
    return "\n\n".join(filter(None, parts))


def _introduction(content: Row, sets: Sequence[Row]) -> str:
    known = [*sets, *sets_of(content, _OF_FINALISTS)]
    names, dates = ", ".join(one["data"] for one in known), [one["date"] for one in content["rows"]]
    commits = len({one["commit"].removesuffix("-dirty") for one in content["rows"]})
    trials = sum("validation" in one for one in content["rows"] if one["stage"] == "trial")
    about = f"""
        `benchmarks/methods.py` tunes each family by 12 trials on the validation split and then
        trains it with five seeds or more; its docstring is the protocol. Measured so far: {names}.
        {trials} trials and {_num_trained(content)} networks from
        {min(dates)[:10]} to {max(dates)[:10]}, at {commits} commit{"s" * (commits > 1)}.
        {content["machine"]}. Tables and pictures are drawn from
        [`benchmarks/results/methods.json`](../benchmarks/results/methods.json).
    """
    picture = (
        f"![Score against CPU seconds of training, a curve for each method]({SECONDS})\n\n"
        f"![Score against CPU seconds of predicting 1,000 rows]({PREDICTING})"
    )
    bars = """
        A point is the mean over seeds on the test split, calibrated, and its bar a 95% interval
        over test rows and seeds. On the left of the first picture each method has c at most, the
        CPU seconds of one network; then it has 4c at most, and the deep ensemble and three others
        16c, but of fashion_mnist_10000. Points are moved sideways by a tenth at most, so that bars
        stand apart. Entries of the first table are dark. Verdicts are of differences on the same
        rows, so bars that overlap may belong to entries that can be told apart.
    """
    parts = [as_text(about), picture, as_text(bars)]
    for title, items in (("How to read the tables", _COLUMNS), ("What the entries are", _ENTRIES)):
        parts += [f"### {title}", "\n".join(map(as_item, items))]
    return "\n\n".join(parts)


_COLUMNS = (
    """Rows are sorted by the validation score, which chooses the *best*; under shift, by the score
    of all shifted rows.""",
    """*Networks* says how an entry divides its seconds. The validation split chooses that, too.
    With 4c one network may train for less than its seconds. There are as many seeds as the networks
    that were trained make: five at least, 10 of one network of .5c or 2c, 20 of one of 1c and 24 of
    a plain one; five of `distilled` and `cross_fitted`.""",
    "*Raw* is the score before calibration.",
    """*By* a score are verdicts, as explained above, but over seeds too. Their intervals are rather
    wide, since entries that share networks count as independent.""",
    """*Worth networks* is the deep-ensemble equivalent (Ashukha et al. 2020): how many networks of
    1c, out of a pool of 24, predict as well. Its interval is over test rows, seeds and ensembles of
    the pool, and rather narrow, since these have networks in common.""",
    """*Predicting* is CPU seconds for 1,000 rows. *Charged* are those of training, and *spent*
    those of the program that trained and predicted, a share for each network; of `laplace`, of its
    pass alone.""",
    f"""The table under shift is of the first test rows, 2,000 at most, each shifted by one of five
    kinds at severity {SEVERITY} of 5. So a column has a fifth of these rows, and not those of the
    next. Networks are calibrated without a shift. *Beside `plain`* is the verdict of all kinds
    together; *better* is surely lower.""",
    """*Unlike the data* is how often the entropy (of a number: the variance) of a row of other data
    is larger than that of a test row; .5 is chance. *By disagreement* takes only the part in which
    networks, draws or passes differ: mutual information, or the variance of means. It is empty
    where one network has nobody to differ from, and for cross-fitted ones of classes, which are
    kept as their mean. Other data are MNIST's digits for Fashion-MNIST, its images of 8x8 pixels
    for digits, and for tables rows whose numbers lie beyond the training range. Its 95% interval,
    over rows of both kinds and seeds, is rather too wide, for it counts seeds as agreeing about
    every row.""",
    """*Own errors* is how often a hit among the test rows is surer than an error. Its interval is
    made in the same way.""",
    "*kB* is the size of what predicts.",
    """*A guess* does not look at the inputs: it has the shares of the training split's classes, or
    a normal distribution with the mean and the deviation of its targets.""",
)
_ENTRIES = (
    """`laplace` pays its pass over the training rows out of its seconds, and leaves some where no
    shorter network was trained.""",
    """`sghmc` starts at networks that had half of its seconds, and `distilled` is one network that
    [learns from two](distillation.md), which had half.""",
    """`varied` is a deep ensemble of the best settings of plain's trials, and `greedy` weighs the
    same networks, and no others, by validation rows. So it is never called best or advised. Its
    seconds and bytes are those of all of them, though some may weigh nothing.""",
    "`cross_fitted` is four networks in the time of one.",
)
"""Explanations of columns, and of entries."""


def _num_trained(content: Row) -> int:
    """Networks of finals, without those that are made of others, and none twice."""
    keys = ("data", "family", "length", "seed", "validation")  # 16c repeats the seeds of 4c.
    found = {
        tuple(one.get(key) for key in keys)
        for one in content["rows"]
        if one["stage"] in ("final", "large")
        and "spent_seconds" in one
        and not cells.FAMILIES[one["family"]].around
    }
    return len(found)


def _finalists(row: Row) -> str:
    """The part on a data set that only finalists learn."""
    about = methods_data.SETS[row["data"]]
    train, choose, calibrate = (about.clothes or {}).values()
    words = f"""
        {train:,} images train, {choose:,} choose and {calibrate:,} calibrate. The families are
        those that have 16c on {about.tuned_on}, and `laplace` around the plain networks, with the
        settings that have won there. The lists above are made without these rows.
    """
    head, *rest = _data_set(row).split("\n\n")
    return "\n\n".join([head, as_text(words), *rest])


def _data_set(row: Row) -> str:
    parts = [f"### {row['data']}"]
    for one in row["rounds"]:
        score, second = one["score"], compare.SECOND[one["score"]]
        head = (
            f"| with {one['times']}c | networks | {TITLES[score]} | 95% interval | raw "
            f"| {TITLES[second]} | by {TITLES[score]} | by {TITLES[second]} | worth networks "
            "| predicting |"
        )
        pool = row["pool"]["sizes"][-1]
        lines = [_line(entry, one, pool) for entry in one["entries"]]
        lines += [[f"`{name}`", f"failed: {why}", *[""] * 8] for name, why in one["failed"].items()]
        parts.append(as_table(head, lines))
        if one["times"] == compare.TIMES[-1]:
            parts.append(_scores(one))
            parts.append(_beside(one, row["kinds"], row["guess"]))
    first = row["rounds"][0]
    unit, number, guess = row["unit_seconds"], first["num_test"], row["guess"]
    length, fit = row["length"], row["fit"]
    grid = length["curve"][0][0]
    about = f"""
        c is {unit:.2g} CPU seconds, {length["steps"]:,} steps or {length["epochs"]:.0f} epochs{
        ", the first length that was looked at" * (length["steps"] == grid)
    }. {number:,} rows test. A guess that does not look at the
        inputs has {TITLES[guess["score"]]} {guess["value"]:.4f}. The standard deviation over
        seeds is {row["spread"]:.2g} for one plain network of 1c.
    """
    if fit is not None:
        about += f"""
            Beside its steps a `swag` network takes {fit:.2g} CPU seconds ({fit / unit:.1%} of c) to
            collect iterates and to draw{
            "" if fit > (compare.ROUNDING - 1) * unit else ", for which it is not charged"
        }.
        """
    parts.insert(1, as_text(about))
    return "\n\n".join(parts)


def _line(entry: Row, one: Row, pool: int) -> list[str]:
    score, second = one["score"], compare.SECOND[one["score"]]
    low, high = entry[score]["of_it"]
    beside = entry[second]["value"]
    ends = "unknown" if low is None else f"{low:.4f} to {high:.4f}"
    is_best = entry["entry"] == one["best"]
    return [
        f"`{entry['entry']}`",
        f"{entry['networks']} of {entry['length']:g}c{_failed(entry)}",
        f"{entry[score]['value']:.4f}",
        ends,
        f"{entry['raw'][score]:.4f}",
        f"{beside:.2%}" if second == "accuracy" else f"{beside:.4f}",
        *("**best**" if is_best else entry[name]["verdict"] for name in (score, second)),
        _worth(entry["equivalent"], pool),
        f"{entry['predict_seconds']:.2g} s",
    ]


def _scores(one: Row) -> str:
    """The table of what calibration does, of seconds, and of settings."""
    names = ("ece", "brier") if one["score"] == "nll" else ("nll",)
    titles = [f"{part}{TITLES[name]}" for name in names for part in ("raw ", "")]
    head = f"| with {one['times']}c | {' | '.join(titles)} | charged | spent | setting |"
    lines = [
        [
            f"`{entry['entry']}`",
            *(f"{entry[part][name]:.4f}" for name in names for part in ("raw", "calibrated")),
            *(f"{entry[name]:.3g} s" for name in ("charged_seconds", "spent_seconds")),
            "" if entry["entry"] in (compare.VARIED, compare.GREEDY) else _setting(entry),
        ]
        for entry in one["entries"]
    ]
    return as_table(head, lines)


def _beside(one: Row, kinds: Sequence[str], guess: Row) -> str:
    """The table of shifted rows, of rows unlike the data, and of bytes."""
    score = one["score"]
    has_errors = score == "nll"
    head = f"| with {one['times']}c, {TITLES[score]} under | {' | '.join(kinds)} | beside `plain` "
    head += f"| unlike the data | by disagreement |{' own errors |' * has_errors} kB |"
    lines = []
    for entry in sorted(one["entries"], key=lambda own: own[SHIFTED]["value"]):
        line = [f"`{entry['entry']}`", *(f"{value:.3f}" for value in entry["by_kind"])]
        line.append(entry[SHIFTED]["verdict"])
        line += [_area(entry, name) for name in ("auroc_of_others", "auroc_by_disagreement")]
        if has_errors:
            line.append(_area({**entry, **entry["raw"]}, "auroc_of_errors"))
        lines.append([*line, f"{entry['bytes'] / 1000:,.0f}"])
    said = [f"{value:.3f}" for value in guess["by_kind"]]
    lines.append(["a guess", *said, *[""] * (4 + has_errors)])
    return as_table(head, lines)


def _setting(row: Row) -> str:
    """The keys that a trial has chosen, in a cell of a table."""
    short = {"learning_rate": "rate", "weight_decay": "decay"}
    return ", ".join(
        f"{short.get(name) or f'`{name}`'} {f'`{one}`' if isinstance(one, str) else f'{one:.2g}'}"
        for name, one in row["setting"].items()
    )


def _divisions(sets: Sequence[Row]) -> str:
    """The part on how seconds are best divided among networks."""
    splits = [one for one in compare.SPLITS[4] if math.prod(one) == 4]
    shares: dict[str, list[list[float]]] = {}
    for row in sets:
        (known,) = (one["divisions"] for one in row["rounds"] if one["times"] == 4)
        by_family: dict[str, dict[tuple[int, float], float]] = {}
        for one in known:
            family = compare.FAMILY_OF.get(one["entry"], one["entry"])
            key = one["networks"], one["length"]
            by_family.setdefault(family, {})[key] = one["calibrated"]
        for family, scores in by_family.items():
            if scores.keys() >= set(splits):
                least = min(scores[one] for one in splits)
                excess = [scores[one] / least - 1 for one in splits]
                shares.setdefault(family, []).append(excess)
    lines = [
        [
            f"`{family}`",
            f"{len(found)}",
            *(f"{statistics.median(one):.1%} ({max(one):.1%})" for one in zip(*found, strict=True)),
        ]
        for family, found in shares.items()
    ]
    if not lines:
        return ""
    about = """
        By how much a division of 4c is above the best of the three on the test split: the median of
        the data sets that have all three and, in parentheses, the largest. Several `plain` networks
        are a deep ensemble. `ensemble methods` has `swag` networks of 1c, too, and networks of 2c
        of all other families here, but one `plain` network for all of its seconds. Single chains of
        4c have diverged.
    """
    head = "| networks of | data sets |"
    head += "".join(f" {number} of {one:g}c |" for number, one in splits)
    return "\n\n".join(["### How to divide the time", as_text(about), as_table(head, lines)])


def _looks(content: Row) -> str:
    """The part on settings that nobody had tried."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for one in content["rows"]:
        if one["stage"] == "look":
            key = one["data"], one["family"], one["networks"], one["length"], _setting(one)
            found.setdefault(key, []).append(one)
    if not found:
        return ""
    about = """
        The tables made one ask how other settings would do. These choose nothing and are in no
        list: means over seeds, with the standard deviation of the calibrated score.
    """
    lines = []
    for (data, family, networks, length, setting), all_rows in found.items():
        rows = [one for one in all_rows if "failed" not in one]
        line = [data, f"`{family}`", f"{networks} of {length:g}c", setting]
        if not rows:
            lines.append([*line, f"failed: {all_rows[0]['failed']}", *[""] * 5])
            continue
        score = rows[0]["score"]
        raw, after = ([one[part][score] for one in rows] for part in ("test", "calibrated"))
        line += [TITLES[score], f"{len(rows)} of {len(all_rows)}"]
        line += [f"{statistics.fmean(each):.4f}" for each in (raw, after)]
        line.append(f"{statistics.stdev(after):.2g}" if len(rows) > 1 else "")
        lines.append([*line, f"{statistics.fmean(one['validation'] for one in rows):.4f}"])
    head = "| data | entry | networks | setting | score | seeds | raw | calibrated | deviation "
    head += "| validation |"
    return "\n\n".join(["### Looked into", as_text(about), as_table(head, lines)])


def _area(entry: Row, name: str) -> str:
    """An AUROC with its interval."""
    value = entry[name]
    low, high = entry["auroc_intervals"].get(name) or (None, None)
    if value is None or low is None:
        return "" if value is None else f"{value:.2f}"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _peers(content: Row) -> str:
    """The part that lays cells beside those of other libraries."""
    rows = [one for one in content["rows"] if one["stage"] == "peer"]
    if not rows:
        return ""
    versions = ", ".join(f"{name} {one}" for name, one in rows[0]["versions"].items())
    about = f"""
        Networks of 1c, with the settings that have won here, trained by other libraries
        ({versions}) on the same rows for the same steps, by five seeds: NLL or CRPS of the test
        split, calibrated. `benchmarks/methods_peers.py` measures it. Seconds are not compared:
        `laplace` has a network of 1c, and its pass beside it. Ours are the first five seeds, so
        they differ from those above.
    """
    order = list(methods_data.SETS)
    cells_of = [
        [
            one["data"],
            f"`{one['family']}`",
            f"{one['ours']:.4f}",
            f"{one['peer']:.4f}",
            f"{one['interval'][0]:+.4f} to {one['interval'][1]:+.4f}",
        ]
        for one in sorted(rows, key=lambda one: order.index(one["data"]))
    ]
    head = "| data | method | ours | theirs | 95% interval of the difference |"
    held = sum(one["interval"][0] <= 0 <= one["interval"][1] for one in rows)
    said = as_text(f"{held} of {len(rows)} intervals hold 0; each by itself would in 19 of 20.")
    parts = ["### Beside other libraries", as_text(about), as_table(head, cells_of), said]
    return "\n\n".join(parts)


def _failed(entry: Row) -> str:
    """Words on an entry some of whose seeds have failed."""
    failed, all_seeds = entry["failed_seeds"], entry["seeds"] + entry["failed_seeds"]
    return f", {failed} of {all_seeds} seeds failed" if failed else ""


def _worth(found: Row, pool: int) -> str:
    value, low, high = (_number(one, pool) for one in (found["value"], *found["interval"]))
    return f"{value} ({low} to {high})"


def _number(value: float, pool: int) -> str:
    if value == compare.BELOW:
        return "< 1"
    return f"> {pool}" if value == compare.BEYOND else f"{value:.1f}"


def _open(content: Row, sets: Sequence[Row]) -> str:
    """The part on entries that could not be told apart, and on what is not measured."""
    finalists = sets_of(content, _OF_FINALISTS)
    lines = []
    for row in (*sets, *finalists):
        for one in row["rounds"]:
            said = [own[one["score"]]["verdict"] for own in one["entries"]]
            counts = [said.count(word) for word in (compare.INCONCLUSIVE, compare.WORSE)]
            best = f"`{one['best']}`"
            lines.append([row["data"], f"{one['times']}c", best, *map(str, counts), str(len(said))])
    head = "| data | with | best by validation | inconclusive | worse | entries |"
    parts = ["### What is open", as_table(head, lines)]
    known = {row["data"] for row in (*sets, *finalists)}
    missing = [one for one in methods_data.SETS if one not in known]
    some = [row for row in (*sets, *finalists) if not row["is_complete"]]
    part = [row["data"] for row in some if not row["has_finals"]]
    small = [row["data"] for row in some if row["has_finals"]]
    notes = []
    if part:
        notes.append(f"Cells of {_and(part)} are missing, so their tables will change.")
    if small:
        notes.append(f"Entries of {_and(small)} with 16c are not measured yet.")
    if missing:
        notes.append(f"Not measured yet: {_and(missing)}.")
    notes.append(
        """MCLMC cannot be in this benchmark: a gradient of all rows costs an epoch, and c pays for
        5 to 70 epochs."""
    )
    notes += _untried(content, sets)
    return "\n\n".join([*parts, as_text(*notes)])


def _untried(content: Row, sets: Sequence[Row]) -> list[str]:
    """Sentences on families that have fewer trials than others."""
    tried = [
        (one["family"], one["data"])
        for one in content["rows"]
        if one["stage"] == "trial" and "validation" in one
    ]
    found = []
    for name, about in cells.FAMILIES.items():
        few = [
            row["data"]
            for row in sets
            if about.tried
            and not about.around
            and not (about.of_tables and methods_data.SETS[row["data"]].clothes)
            and tried.count((name, row["data"])) < cells.NUM_TRIALS
        ]
        if few:
            found.append(f"Trials of `{name}` on {_and(few)} have failed or are missing.")
    return found


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def draw(content: Row, folder: pathlib.Path) -> None:
    """Draws both pictures into the folder of the page."""
    sets = sets_of(content, methods_data.SETS)
    own = sets_of(content)
    named = {name for times in compare.TIMES for name in methods_advice.leading(own, times)}
    methods_pictures.draw(sets, named, folder)
