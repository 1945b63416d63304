"""Advises a method for each time, by what methods.py has found, with its losses and its cost."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import methods_compare as compare
from methods_others import SHIFTED
from side_by_side import as_item, as_table, as_text

Row = Mapping[str, Any]
_GOALS = (0.02, 0.05)
"""Losses of a list on a data set that it was not made of: on average, and at most."""
_SHOWN = 4
"""Entries of the list that its table shows."""
_GIVE = 1.25
"""Predictions are timed, so equal costs are not exactly equal."""


class Loss(NamedTuple):
    """How much an entry loses on a data set.

    Attributes:
        entry: its name.
        share: by which its test score is above the lowest.
        low: end of the 95% interval of this share, as far as the lowest score is known.
        high: likewise; None: there is one seed of some entry.
    """

    entry: str
    share: float
    low: float
    high: float | None


def losses(row: Row, times: int) -> dict[str, Loss]:
    """The losses of the entries of a data set, by their names; empty where none has these units."""
    one = _round(row, times)
    values = {own["entry"]: own[one["score"]]["value"] for own in one["entries"]}
    least = min(values.values(), default=0.0)
    return {
        (name := own["entry"]): Loss(name, values[name] / least - 1, *own["loss_interval"])
        for own in one["entries"]
    }


def _round(row: Row, times: int) -> Row:
    """The comparison of a data set's entries that have so many units of c, perhaps of none."""
    known = (one for one in row["rounds"] if one["times"] == times)
    return next(known, {"entries": []})


def ranked(rows: Sequence[Row], times: int) -> list[str]:
    """Entries by their mean loss over data sets, the lowest first, as far as all have them.

    Those that validation rows have weighed are not among them.
    """
    known = [one for row in rows if (one := losses(row, times))]
    shared = set.intersection(*map(set, known)) - {compare.GREEDY} if known else set()
    means = {name: statistics.fmean(one[name].share for one in known) for name in shared}
    return sorted(shared, key=lambda name: (means[name], name))


def decision_list(
    rows: Sequence[Row], times: int, among: Collection[str] | None = None
) -> str | None:
    """The advice: the first of `ranked`; None: there is none.

    Args:
        rows: of data sets, with their `rounds`.
        times: units of c.
        among: entries that can be advised; None: all.
    """
    found = [one for one in ranked(rows, times) if among is None or one in among]
    return found[0] if found else None


def predicting(rows: Sequence[Row], times: int) -> dict[str, list[float]]:
    """By entry, what its predictions cost beside those of one network, for each data set."""
    found: dict[str, list[float]] = {}
    for row in rows:
        costs = {own["entry"]: own["predict_seconds"] for own in _round(row, times)["entries"]}
        for name, cost in costs.items():
            found.setdefault(name, []).append(cost / costs[compare.PLAIN])
    return found


def cheap(rows: Sequence[Row], times: int, networks: int) -> set[str]:
    """Entries that predict as cheaply as so many networks on all data sets, give or take."""
    costs = predicting(rows, times)
    return {name for name, some in costs.items() if max(some) <= _GIVE * networks}


def regrets(rows: Sequence[Row], times: int, networks: int | None = None) -> dict[str, Loss]:
    """By data set, what the advice of a list loses that is made of the others.

    The list advises only what the data set has.

    Args:
        rows: of data sets, with their `rounds`.
        times: units of c.
        networks: whose predictions cost as much as those of an entry may on the others; None: no
            matter what they cost.
    """
    found = {}
    for row in rows:
        own = losses(row, times)
        others = [one for one in rows if one is not row]
        among = own if networks is None else cheap(others, times, networks).intersection(own)
        name = decision_list(others, times, among)
        if name is not None:
            found[row["data"]] = own[name]
    return found


# The part of the page.


def text(sets: Sequence[Row]) -> str:
    """The part of the page that advises, by the data sets that have been compared."""
    parts = ["### In a minute"]
    if len(sets) == 1:
        parts.append(f"Measured on one data set, {sets[0]['data']}: no advice for others.")
    items = [one(sets, times) for one in (_advice, _under_shift) for times in compare.TIMES]
    parts.append("\n".join(filter(None, items)))
    about = f"""
        A script makes this list of {len(sets)} data set{"s" * (len(sets) > 1)}: the entry whose
        test score is above the lowest by the smallest share on average, and the same among those
        whose predictions cost no more than those of some networks. An entry that has failed on one
        data set is not advised. With 16c too few methods were trained for advice. The first four
        and the cheap ones, with the share that they lose and the cost of their predictions, in
        those of one network. *Beyond the first* is by how much more they lose on average, with a
        95% interval over data sets (Student's t). Each holds by itself, and these data sets have
        chosen the first, so the differences are rather too large. *On shifted rows* is the mean
        share above the lowest score of shifted rows:
    """
    head = "| with | entry | loses on average | at most | beyond the first | on shifted rows "
    head += "| surely behind on | predicting costs |"
    lines = [line for times in compare.TIMES for line in _leaders(sets, times)]
    parts += [as_text(about), as_table(head, lines)]
    return "\n\n".join([*parts, *_regrets(sets)])


_KINDS = tuple(
    (times, networks) for times in compare.TIMES for networks in dict.fromkeys((None, times, 1))
)
"""Lists: with which units of c, and of how many networks the predictions may cost; None: any."""


def _cheap(sets: Sequence[Row], times: int) -> dict[str, int]:
    """The entries that are advised where predictions must be cheap, with so many networks."""
    found: dict[str, int] = {}
    for own, networks in _KINDS:
        if own == times and networks is not None:
            name = decision_list(sets, times, cheap(sets, times, networks))
            if name is not None:
                found.setdefault(name, networks)
    return found


def _advice(sets: Sequence[Row], times: int) -> str:
    """The item of a list that advises; empty where no entry is shared."""
    name = decision_list(sets, times)
    if name is None:
        return ""
    words = f"With {_units(times)}: **`{name}`**."
    said = "If predictions may cost no more than"
    for cheap_one, networks in _cheap(sets, times).items():
        if cheap_one != name:
            words += f" {said} those of {_many(networks)}: **`{cheap_one}`**."
            said = "No more than"
    return as_item(words)


def _under_shift(sets: Sequence[Row], times: int) -> str:
    """The item that says which entry of the first ones loses least on shifted rows."""
    order = ranked(sets, times)[:_SHOWN]
    found = _on_shifted(sets, times)
    if not order or not found.keys() >= set(order):
        return ""
    shares = {name: statistics.fmean(one) for name, one in found.items()}
    best = min(order, key=shares.__getitem__)
    words = f"If rows may be shifted, with {_units(times)}: **`{best}`**. Of the first entries in "
    words += (
        f"the table below it loses least on shifted rows, {shares[best]:.1%}; by how much more "
    )
    others = []
    for name in order:
        beyond = [own - of_best for own, of_best in zip(found[name], found[best], strict=True)]
        others += [f"`{name}` {_mean_with_interval(beyond)}"] * (name != best)
    words += f"the others do, each interval by itself: {', '.join(others)}"
    return as_item(f"{words}.")


def _on_shifted(sets: Sequence[Row], times: int) -> dict[str, list[float]]:
    """By entry, the share of each data set by which its score of shifted rows is above the lowest.

    Entries that some data set lacks are not among them.
    """
    found: dict[str, list[float]] = {}
    for row in sets:
        entries = _round(row, times)["entries"]
        values = {own["entry"]: own[SHIFTED]["value"] for own in entries if SHIFTED in own}
        for name, value in values.items():
            found.setdefault(name, []).append(value / min(values.values()) - 1)
    return {name: one for name, one in found.items() if len(one) == len(sets)}


def leading(sets: Sequence[Row], times: int) -> list[str]:
    """The entries that are first on the list, and the cheap ones, in its order."""
    order, cheap_ones = ranked(sets, times), _cheap(sets, times)
    return [name for name in order if name in order[:_SHOWN] or name in cheap_ones]


def _leaders(sets: Sequence[Row], times: int) -> list[list[str]]:
    """The lines of `leading`: what they lose, and what they cost."""
    names, known = leading(sets, times), [losses(row, times) for row in sets]
    costs, shifted, lines = predicting(sets, times), _on_shifted(sets, times), []
    for name in names:
        shares = [one[name].share for one in known]
        beyond = [one[name].share - one[names[0]].share for one in known]
        worse = sum(_is_worse(row, times, name) for row in sets)
        ends = dict.fromkeys(f"{end(costs[name]):.0f}" for end in (min, max))
        line = [f"{times}c", f"`{name}`", f"{statistics.fmean(shares):.1%}"]
        line += [f"{max(shares):.1%}", _mean_with_interval(beyond) * (name != names[0])]
        line.append(f"{statistics.fmean(shifted[name]):.1%}" if name in shifted else "")
        lines.append([*line, f"{worse} of {len(sets)}", " to ".join(ends)])
    return lines


def _mean_with_interval(shares: Sequence[float]) -> str:
    """A mean over data sets, with Student's interval."""
    mean, number = statistics.fmean(shares), len(shares)
    if number < 2:
        return f"{mean:.1%}"
    from scipy import stats  # Programs that only train go without it.

    half = float(stats.t.ppf(0.975, number - 1)) * statistics.stdev(shares) / math.sqrt(number)
    return f"{mean:.1%} ({mean - half:.1%} to {mean + half:.1%})"


def _is_worse(row: Row, times: int, name: str) -> bool:
    """Whether an entry of a data set is surely behind the best."""
    one = _round(row, times)
    verdicts = {own["entry"]: own[one["score"]]["verdict"] for own in one["entries"]}
    return verdicts[name] == compare.WORSE


def _regrets(sets: Sequence[Row]) -> list[str]:
    """The losses of lists on a data set of which they were not made."""
    found = [regrets(sets, *kind) for kind in _KINDS]
    if not all(found):
        return []
    head = "| left out |"
    for kind in _KINDS:
        head += f" {_with(*kind)} | loses |"
    lines = []
    for row in sets:
        said = [one.get(row["data"]) for one in found]
        shown = [[f"`{one.entry}`", _told(one)] if one else ["none", ""] for one in said]
        lines.append([row["data"], *(word for pair in shown for word in pair)])
    shares = [[loss.share for loss in one.values()] for one in found]
    surely = [
        f"{sum(loss.low > _GOALS[1] for loss in one.values())} of {len(one)}" for one in found
    ]
    for title, values in (
        ("on average", [f"{statistics.fmean(one):.1%}" for one in shares]),
        ("at most", [f"{max(one):.1%}" for one in shares]),
        (f"surely above {_GOALS[1]:.0%}", surely),
    ):
        lines.append([f"*{title}*", *(word for value in values for word in ("", value))])
    words = [
        f"with {times}c {'reached' if _is_reached(each) else 'missed'}"
        for (times, networks), each in zip(_KINDS, shares, strict=True)
        if networks is None
    ]
    before = """
        How good is such a list for other data? One that is made of all data sets but one advises
        and loses on that one:
    """
    after = f"""
        The goal is {_GOALS[0]:.0%} on average and {_GOALS[1]:.0%} at most: {", ".join(words)}. The
        lowest score of many on few test rows is partly luck, so a loss is rather too high. The 95%
        intervals, over test rows and seeds, allow for that: they are of the distance to the entry
        that is truly the lowest, whichever it is, in shares of the lowest score that was measured.
        Each holds by itself.
    """
    return [as_text(before), as_table(head, lines), as_text(after)]


def _is_reached(shares: Sequence[float]) -> bool:
    return statistics.fmean(shares) <= _GOALS[0] and max(shares) <= _GOALS[1]


def _told(loss: Loss) -> str:
    high = "?" if loss.high is None else f"{loss.high:.0%}"
    return f"{loss.share:.1%} ({loss.low:.0%} to {high})"


def _with(times: int, networks: int | None) -> str:
    if networks is None:
        return f"with {times}c"
    return f"with {times}c and predictions of {_many(networks)}"


def _many(networks: int) -> str:
    return "one network" if networks == 1 else f"{networks} networks"


def _units(times: float) -> str:
    return "the time of one network" if times == 1 else f"{times:g} times the time of one network"
