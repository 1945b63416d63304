"""Makes entries of what methods.py has trained, and compares those of a data set."""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import methods_cells as cells
import methods_compare
import methods_data
import methods_others
import methods_plan
import methods_scores
from methods_plan import LARGE, NUM_LARGE, Group
from rows import Row


class Entries:
    """The comparisons of a benchmark under way.

    Args:
        work: a `methods.Work`.
    """

    def __init__(self, work: Any):
        self._work = work

    def groups(self, data: str, families: Collection[str] = tuple(cells.FAMILIES)) -> list[Group]:
        """All of a data set but those with 16c, in their order; arguments as of `methods_plan`.

        There are none where its finalists are not known yet.
        """
        tuned_on = methods_data.SETS[data].tuned_on
        if tuned_on is None:
            return list(methods_plan.groups(data, families))
        finalists = {one.family for one in self.large_groups(tuned_on)}
        if not finalists:
            return []
        return list(methods_plan.groups(data, finalists.intersection(families)))

    def waiting(self, data: str) -> str:
        """A line that says what a data set waits for; empty where it does not."""
        if self.groups(data):
            return ""
        return f"{data} waits for the comparison of {methods_data.SETS[data].tuned_on} with 4c"

    def compare(self, data: str) -> None:
        """Compares what a data set has, as far as predictions are here.

        A part never takes the place of a complete row.
        """
        if self._work.is_compared(data) or not self._work.file(data, "plain", 1).exists():
            return
        pool_views, failed = self._views(data, "plain", 1, "final")
        live = [k for k, one in enumerate(failed) if not one]
        pool_views = {split: pool_views[split].members(live) for split in methods_scores.SPLITS}
        score = methods_scores.scored(pool_views).score
        pool = methods_compare.pool_curve(pool_views, score, len(live))
        before = self._work.results.find(methods_plan.key_of_entries(data)) or {}
        if self._work.has_finals(data):
            rounds = [one for one in before["rounds"] if one["times"] in methods_compare.TIMES]
        else:
            rounds = [self._round(data, times, pool) for times in methods_compare.TIMES]
        has_finals = all(map(self._work.is_done, self.groups(data)))
        large = self._large_groups(data, rounds[-1]["entries"])
        rounds.append(self._large_round(data, pool, rounds[-1]["entries"], large))
        row = {
            "has_finals": has_finals,
            "is_complete": has_finals and all(map(self._work.is_done, large)),
            "families": list(cells.FAMILIES),
            "kinds": methods_others.kinds_of(is_image=methods_data.SETS[data].is_image),
            "unit_seconds": self._work.found(Group(data, "length"), 0)["seconds"],
            "pool": {
                "sizes": methods_compare.POOL_SIZES[: len(pool)],
                "values": [float(one.mean()) for one in pool],
            },
            "rounds": [one for one in rounds if one["entries"]],
        }
        if row["is_complete"] or not before.get("is_complete"):
            self._work.results.add(methods_plan.key_of_entries(data), row)

    def large_groups(self, data: str) -> list[Group]:
        """The cells with 16c, once all those with 4c have been compared; finalists have none."""
        if not all(map(self._work.is_done, self.groups(data))):
            return []
        rounds = (self._work.results.find(methods_plan.key_of_entries(data)) or {}).get(
            "rounds", []
        )
        last = [one["entries"] for one in rounds if one["times"] == methods_compare.TIMES[-1]]
        return self._large_groups(data, last[0] if last else [])

    def _large_groups(self, data: str, entries: Sequence[Row]) -> list[Group]:
        """Cells of the deep ensemble, and of the best with 4c beside it."""
        if methods_data.SETS[data].tuned_on:
            return []
        own = (methods_compare.DEEP_ENSEMBLE, methods_compare.PLAIN, methods_compare.GREEDY)
        best = [one["entry"] for one in entries if one["entry"] not in own][:NUM_LARGE]
        return [
            self._large_group(data, _family_of(one["entry"]), one["length"])
            for one in entries
            if one["entry"] in {methods_compare.DEEP_ENSEMBLE, *best}
        ]

    def _large_group(self, data: str, family: str, length: float) -> Group:
        around = self._around(data, family) or 0.0
        networks = int(methods_compare.ROUNDING * LARGE / (length + around))
        return Group(data, "large", family, 0, length, networks)

    def _round(self, data: str, times: int, pool: Any) -> Row:
        known: list[Any] = []
        failed: dict[str, str] = {}
        for family in cells.FAMILIES:
            around = self._around(data, family)
            divided = methods_compare.candidates(family, times, around)
            if not divided:
                price = self._work.found(Group(data, "price", family), 0)
                needed = f"{around:.2g}c a network are needed after training"
                failed[family] = price.get("failed", needed)
            for name, (networks, length) in divided:
                why = self._add(known, data, name, family, networks, length, "final")
                if any(why):
                    failed[name] = next(filter(None, why))
        return self._compared(data, times, known, failed, pool)

    def _large_round(
        self, data: str, pool: Any, before: Sequence[Row], large: Sequence[Group]
    ) -> Row:
        """The entries with 16c, beside the plain network of 4c."""
        known: list[Any] = []
        failed: dict[str, str] = {}
        for group in large:
            name = group.family if group.family != "plain" else methods_compare.DEEP_ENSEMBLE
            why = self._add(known, data, name, group.family, group.networks, group.length, "large")
            if any(why):
                failed[name] = next(filter(None, why))
        for one in before if known else []:
            if one["entry"] == methods_compare.PLAIN:
                self._add(known, data, "plain", "plain", 1, one["length"], "final")
        return self._compared(data, LARGE, known, failed, pool)

    def _add(
        self,
        known: list[Any],
        data: str,
        name: str,
        family: str,
        networks: int,
        length: float,
        stage: str,
    ) -> list[str]:
        """Adds an entry where its predictions are; returns why networks have failed."""
        if not self._work.file(data, family, length, stage).exists():
            key = {"data": data, "stage": stage, "family": family, "length": length}
            return [(self._work.results.find({**key, "seed": 0}) or {}).get("failed", "")]
        views, why = self._views(data, family, length, stage)
        seeds = methods_compare.scored_seeds(views, why, networks)
        if not seeds:
            return why
        failed = len(why) // networks - len(seeds)
        known.append(methods_compare.Entry(name, networks, length, seeds, failed, stage))
        if family == methods_compare.VARIED and stage == "final":
            greedy = methods_compare.scored_seeds(views, why, networks, methods_scores.weighted)
            name = methods_compare.GREEDY
            known.append(methods_compare.Entry(name, networks, length, greedy, failed))
        return []

    def _compared(
        self, data: str, times: int, known: Sequence[Any], failed: Mapping[str, str], pool: Any
    ) -> Row:
        if "plain" not in {one.name for one in known}:
            return {"times": times, "entries": []}
        found = methods_compare.compared(methods_compare.chosen(known), pool)
        found["divisions"] = methods_compare.divisions(known, found["score"])
        stages = {one.name: one.stage for one in known}
        for entry in found["entries"]:
            entry |= self._cost(data, entry, stages[entry["entry"]])
        names = {one["entry"] for one in found["entries"]}
        failed = {name: why for name, why in failed.items() if name not in names}
        return {"times": times, **found, "failed": failed}

    def _around(self, data: str, family: str) -> float | None:
        """Units of c that a network of a family needs after its training."""
        if not cells.FAMILIES[family].around:
            return None
        unit = self._work.found(Group(data, "length"), 0)["seconds"]
        price = self._work.found(Group(data, "price", family), 0)
        return float(price.get("around", math.inf) / unit)  # It has none where it failed.

    def _cost(self, data: str, entry: Row, stage: str) -> Row:
        """Seconds of an entry, and its setting."""
        family, length = _family_of(entry["entry"]), entry["length"]
        key = {"data": data, "stage": stage, "family": family, "length": length, "seed": 0}
        row = self._work.results.find(key)
        networks, charged, spent = entry["networks"], row["charged_seconds"], row["spent_seconds"]
        plain = self._work.price_of(data, "plain", 0)
        if cells.FAMILIES[family].around:
            price = self._work.found(Group(data, "price", family), 0)
            charged += price["around"]
        elif cells.FAMILIES[family].method == "sgd":
            price = plain  # Whoever trained it, it predicts as one.
        else:
            price = self._work.price_of(data, family, self._work.winner(data, family).own)
        predict = price["predict"]
        if family == "snapshots":  # Which is priced with fewer cycles.
            most = row["setting"]["snapshots.num_cycles"]
            predict = plain["predict"] * cells.num_cycles(most, row["steps"])
        charged, predict = networks * charged, networks * predict
        cost = {"charged_seconds": charged, "spent_seconds": networks * spent}
        cost["predict_seconds"] = predict
        cost["bytes"] = networks * row["bytes"]
        return {**cost, "setting": row["setting"]}

    @functools.lru_cache(maxsize=32)  # noqa: B019  # There is one.
    def _views(self, data: str, family: str, length: float, stage: str) -> tuple[Any, list[str]]:
        path, problem = self._work.file(data, family, length, stage), self._work.problem(data)
        found = cells.read(path)
        return problem.views(found.said), found.failed


def _family_of(entry: str) -> str:
    """The family whose networks an entry has."""
    return methods_compare.FAMILY_OF.get(entry, entry)
