"""An evaluation: predictives in, numbers out. Nothing here knows of files, devices or HTML."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ensemble.errors import InputError, aligned
from ensemble.metrics import Estimate, calibration, functions, interval, metrics_of, values
from ensemble.metrics.abstention import COVERAGE, MAX_ERROR, Rule, are_wrong, fit_abstention
from ensemble.metrics.interval import joint
from ensemble.metrics.metric import Metrics
from ensemble.metrics.ranking import auroc, average_precision, fpr95
from ensemble.report import shift
from ensemble.report.findings import Finding, as_lines, find
from ensemble.report.table import ByName, Row, as_data, cells
from ensemble.storage.manifest import Json

VERSION = 3
"""Version of results.json and evaluation/report.json."""
Estimates = dict[str, Estimate]
_FEW_ERRORS = 10
"""Fewer errors, or right answers, do not tell whether doubt ranks them."""
_MAX_SIZES = 12
_DENSITIES = ("nll", "pinball")


@dataclass
class Evaluation:
    """What is known of an ensemble on a test split.

    Attributes:
        test: predictive of N examples.
        y: targets [N] or, of several, [N, D].
        calibration: predictive and targets of the calibration split; None if there is none.
        baselines: predictives of the test examples by title, for each target.
        shifted: predictives by kind of shift, at severities 1 to 5.
        outside: predictives of inputs unlike the training data, by name.
        groups: Group labels [N] of rows that may be alike; None: rows are independent.
        others: predictives of other ensembles on the same examples, by name.
        draw: mean metrics of single draws of a posterior; empty: no chains.
        traces: charts of chains.
        about: particulars of the run: `name`, `data`, `model`, `method`, `config`, ...
        source: Data of the run, for the examples of a page; None: they are not available.
        records: lines of metrics.jsonl, for learning curves.
        noun: what a member is called.
        rules: of abstention.
        requested: further metrics, by name.
        allow_empty_sets: whether conformal sets may be empty.
        split: that `test` is of.
        said: findings of the training; those stand that no rule judges anew.
    """

    test: Any
    y: NDArray
    calibration: Any = None
    baselines: Any = ()
    shifted: ByName = field(default_factory=dict)
    outside: ByName = field(default_factory=dict)
    groups: Any = None
    others: ByName = field(default_factory=dict)
    draw: ByName = field(default_factory=dict)
    traces: Any = ()
    about: ByName = field(default_factory=dict)
    source: Any = None
    records: Any = ()
    noun: str = "member"
    rules: Any = ()
    requested: ByName = field(default_factory=dict)
    allow_empty_sets: bool = False
    split: str = "test"
    said: Any = ()

    def __repr__(self) -> str:
        return "\n".join([*as_lines(self.findings, self.about.get("notes", ())), "", self.table])

    def _repr_html_(self) -> str:
        from ensemble.report import page  # Of notebooks alone.

        style = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        return f'<iframe style="{style}" srcdoc="{page.escaped(page.render(self))}"></iframe>'

    @property
    def is_classes(self) -> bool:
        """Whether targets are classes."""
        return self.test.kind == "classes"

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of such predictives."""
        return {**metrics_of(self.test), **self.requested}

    @property
    def shown(self) -> Metrics:
        """The metrics that the table shows."""
        return {name: one for name, one in self.metrics.items() if one.in_table}

    @property
    def headline(self) -> str:
        """The metric that stands first."""
        return next(iter(self.metrics))

    @property
    def proper(self) -> str:
        """The proper score that decides comparisons: NLL of classes, CRPS of numbers."""
        return "crps" if "crps" in self.metrics else "nll"

    @property
    def main(self) -> Metrics:
        """The headline and the proper score."""
        return {name: self.metrics[name] for name in (self.headline, self.proper)}

    @cached_property
    def targets(self) -> Json:
        """Evaluations of each of several targets, by name; empty if there is one."""
        number = self.y.shape[1] if self.test.kind == "several" else 0
        return {f"target {d}": self._of_target(d) for d in range(number)}

    def _of_target(self, d: int) -> Evaluation:
        names = ("test", "y", "calibration", "shifted", "outside", "others")
        parts = jax.tree.map(
            lambda one: one[:, d] if isinstance(one, np.ndarray) else one.targets[d],
            {name: getattr(self, name) for name in names},
        )
        rest: Json = {"draw": {}, "requested": {}, "rules": (), "said": ()}
        return replace(self, **parts, **rest, baselines=self.baselines[d : d + 1])

    # The table.

    @property
    def simple(self) -> ByName:
        """Baselines of the only target, by title; of several targets they stand with each."""
        return self.baselines[0] if self.baselines and self.test.kind != "several" else {}

    @cached_property
    def whole(self) -> Estimates:
        """Metrics of the ensemble."""
        return self.estimates(self.test, self.metrics)

    @cached_property
    def members(self) -> Json:
        """Values [M] of every member and their mean terms [N], by metric."""
        found = {}
        for name, one in self.metrics.items():
            if one.of_members:
                terms = one.member_terms(self.test, self.y)
                found[name] = terms.reshape(len(terms), -1).mean(axis=1), terms.mean(axis=0)
        return found

    @cached_property
    def gain(self) -> Estimates:
        """Metrics of the ensemble - those of the average member; empty for one member."""
        p, y, groups = self.test, self.y, self.groups
        return {
            name: self.metrics[name].difference(average, self.metrics[name].terms(p, y), groups)
            for name, (_, average) in self.members.items()
            if self.metrics[name].better and p.num_members > 1
        }

    @cached_property
    def rows(self) -> list[Row]:
        """Metrics of everything that predicts: the ensemble, its members and baselines."""
        noun = self.noun
        number = self.test.num_members
        members = self.members if number > 1 else {}
        draw = {name: Estimate(one) for name, one in self.draw.items() if name in self.metrics}
        means = {name: Estimate(float(each.mean())) for name, (each, _) in members.items()}
        with np.errstate(invalid="ignore"):
            sds = {n: Estimate(float(each.std(ddof=1))) for n, (each, _) in members.items()}
        simple = {title: self.estimates(p, self.shared(p)) for title, p in self.simple.items()}
        rows = [
            *(Row(title, "baseline", one) for title, one in simple.items()),
            Row("average draw", "draw", draw),
            Row(f"average {noun}", "member", means),
            Row(f"sd of {noun}s", "sd", sds),
            Row(f"ensemble of {number}" if members else f"one {noun}", "ensemble", self.whole),
            Row(f"ensemble - average {noun}", "gain", self.gain),
        ]
        return [row for row in rows if row.values]

    @property
    def over(self) -> str:
        """What intervals are over."""
        groups = "" if self.groups is None else f"{len(np.unique(self.groups))} groups of "
        return f"{groups}{self.split} examples"

    @property
    def table(self) -> str:
        """The table for a terminal."""
        lines = [["", *(one.title for one in self.shown.values())]]
        for row in self.rows:
            texts, intervals = zip(*cells(row, self.shown), strict=True)
            lines.append([row.title, *texts])
            if row.kind in ("ensemble", "gain"):
                lines.append(["  95% interval", *intervals])
        last = f"Intervals are 95%, over {self.over}, with these members."
        return "\n".join([*aligned(lines), last])

    def scores(self) -> Json:
        """The table as data: `metrics` with members, `gain`, `single_draw` and `baselines`."""
        metrics = as_data(self.whole)
        for name, (each, _) in self.members.items():
            metrics[name]["members"] = each.tolist()
        baselines = {row.title: row.values for row in self.rows if row.kind == "baseline"}
        return {
            "metrics": metrics,
            "gain": as_data(self.gain),
            "single_draw": {name: one for name, one in self.draw.items() if name in metrics},
            "baselines": as_data(baselines),
            "intervals_over": self.over,
        }

    # Estimates.

    def estimates(self, p: Any, names: Any) -> Estimates:
        """Metrics of a predictive of rows with these targets."""
        return {name: self.metrics[name].estimate(p, self.y, self.groups) for name in names}

    def interval(self, terms: NDArray, where: Any = slice(None), **how: Any) -> Estimate:
        """Mean of terms [N] over some rows, or groups of rows."""
        groups = None if self.groups is None else self.groups[where]
        return interval(terms[where], groups, **how)

    def against(self, p: Any, name: str, **how: Any) -> Estimate:
        """A metric of another predictive of the same rows - the ensemble's, paired."""
        one = self.metrics[name]
        ours, theirs = (one.terms(each, self.y) for each in (self.test, p))
        return one.difference(ours, theirs, self.groups, **how)

    def shared(self, p: Any) -> list[str]:
        """Metrics that both have: NLL and pinball loss only of densities, or levels, alike."""
        ours = self.test
        theirs = metrics_of(p)
        is_alike = ours.kind == p.kind and list(ours.axis) == list(p.axis)
        return [
            name
            for name, one in self.metrics.items()
            if one.of_members and name in theirs and (is_alike or not name.startswith(_DENSITIES))
        ]

    @cached_property
    def comparisons(self) -> Json:
        """By other ensemble and metric: its `value`, and the `difference`, as of `against`."""
        return {
            other: {
                name: {"value": value, "difference": self.against(p, name)}
                for name, value in values(p, self.y, self.shared(p)).items()
            }
            for other, p in self.others.items()
        }

    # Calibration.

    @cached_property
    def factor(self) -> float | None:
        """Temperature, or factor of the scale; None if none can be fitted."""
        if self.calibration is None or not self.test.can_scale:
            return None
        return calibration.fit_scale(*self.calibration)

    @cached_property
    def factor_gain(self) -> Estimate | None:
        """NLL after a factor - before, on calibration examples that did not fit it.

        None if rows come in groups, since those of the calibration split are not known here.
        """
        if self.factor is None or self.groups is not None:
            return None
        return calibration.scale_gain(*self.calibration)

    @cached_property
    def conformal(self) -> Any:
        """Outcome of conformal sets or intervals of 90%; None if there are none."""
        levels = getattr(self.test, "bands", [0.9])
        if self.calibration is None or self.test.kind == "several" or 0.9 not in levels:
            return None
        test = self.test, self.y
        return calibration.conformal(self.calibration, test, allow_empty=self.allow_empty_sets)

    @cached_property
    def ece_by_chance(self) -> float:
        """The 95% quantile of a calibrated predictor's ECE."""
        return functions.ece_by_chance(self.test)

    # Errors.

    @cached_property
    def wrong(self) -> NDArray:
        """[N] bool: wrong classes, or errors above the median error."""
        if self.is_classes:
            return self.test.labels != self.y
        errors = np.abs(self.test.median - self.y)
        return errors > np.median(errors)

    @cached_property
    def detects_errors(self) -> Estimate | None:
        """AUROC of the doubt for `wrong`."""
        if self.test.kind == "several":
            return None
        number = self.wrong.sum()
        if min(number, len(self.y) - number) < _FEW_ERRORS:
            return None
        return _auroc(self.test.doubt(), self.wrong, self.groups)

    @cached_property
    def abstention(self) -> Json:
        """What rules of abstention do, by rule: those that are asked for, else the usual ones.

        Each has `threshold`, the largest doubt of an answer, fitted on the calibration split;
        `coverage`, the share of the rows that are answered; `error`, the share of answers that are
        wrong, with its interval. Usual rules without a proved threshold are left out.

        Raises:
            InputError: There is no threshold for a rule that is asked for.
        """
        levels = (0.01, 0.02, 0.05) if self.is_classes else (0.05, 0.1, 0.2)
        usual = [*(Rule(MAX_ERROR, one) for one in levels), Rule(COVERAGE, 0.9)]
        doubt = self.test.doubt()
        found = {}
        for rule in self.rules or usual:
            try:
                if self.calibration is None:
                    raise ValueError("the run has no calibration split")
                if self.groups is not None and rule.name == MAX_ERROR:
                    raise ValueError("rows come in groups, which prove less than independent rows")
                held, y = self.calibration
                wrong = are_wrong(self.test, self.y, rule.tolerance)
                errors = are_wrong(held, y, rule.tolerance)
                threshold = fit_abstention(rule, held.doubt(), errors).threshold
            except ValueError as fault:
                if self.rules:
                    raise InputError(f"--{rule}: {fault}") from None
            else:
                answered = doubt < threshold
                found[str(rule)] = {
                    "threshold": threshold,
                    "coverage": float(answered.mean()),
                    "error": self.interval(wrong, answered, bounds=(0, 1)),
                }
        return found

    @cached_property
    def recall(self) -> list[Estimate]:
        """Recall of each class, [C], empty without classes; intervals of all hold together."""
        if not self.is_classes:
            return []
        number = len(self.test.axis)
        level = joint(number)
        hit = functions.accuracy(self.test, self.y)
        each = [self.y == c for c in range(number)]
        return [self.interval(hit, some, bounds=(0, 1), level=level) for some in each]

    # Members.

    @cached_property
    def sizes(self) -> Any:
        """Mean metrics of ensembles of 1..M members, over windows that count all members alike."""
        number = self.test.num_members
        found = {}
        for size in np.unique(np.geomspace(1, number, _MAX_SIZES).round().astype(int)).tolist():
            starts = range(number if size < number else 1)
            some = [self.test.of((np.arange(size) + k) % number) for k in starts]
            found[size] = {
                name: float(np.mean([one.value(p, self.y) for p in some]))
                for name, one in self.main.items()
            }
        return found

    # Other inputs.

    @cached_property
    def shifts(self) -> Json:
        """Effects of shifts, by kind.

        Each has, at the middle severity, the paired `change` of the headline metric, and of classes
        the `overconfidence`; intervals of all kinds hold together (Bonferroni). By name of the
        metric, `metrics` are those without the shift and at five severities.
        """
        names = self.headline, "nll" if "nll" in self.metrics else self.proper
        level = joint(len(self.shifted))
        found = {}
        for kind, each in self.shifted.items():
            along = [self.estimates(p, names) for p in (self.test, *each)]
            p = each[shift.MIDDLE - 1]
            over = None
            if self.is_classes:
                terms = functions.overconfidence(p, self.y)
                over = self.interval(terms, bounds=(-1, 1), level=level)
            found[kind] = {
                "change": self.against(p, self.headline, level=level),
                "overconfidence": over,
                "metrics": {name: [one[name] for one in along] for name in names},
            }
        return found

    @cached_property
    def detection(self) -> Json:
        """How well the total uncertainty tells other inputs from test examples, by their name.

        Each has the `auroc`, whose intervals hold together, the area `aupr` under the curve of
        precision against recall, and `fpr95`, the share of test examples above the threshold that
        finds 95% of the others. There are no intervals if rows come in groups.
        """
        found = {}
        for name, p in self.outside.items() if self.test.kind != "several" else ():
            both = [next(iter(one.uncertainty.values())) for one in (self.test, p)]
            ranked = np.concatenate(both), np.repeat([False, True], [*map(len, both)])
            one = _auroc(*ranked, level=joint(len(self.outside)))
            found[name] = {
                "auroc": one if self.groups is None else Estimate(one.value),
                "aupr": float(average_precision(*ranked)),
                "fpr95": fpr95(*ranked),
            }
        return found

    # What is said.

    @cached_property
    def findings(self) -> list[Finding]:
        """Sentences that intervals decide."""
        return find(self)

    def json(self) -> Json:
        """Everything as data."""
        calibrated: Json = {}
        if self.factor is not None:
            calibrated["temperature" if self.is_classes else "scale"] = self.factor
            calibrated["nll_change"] = self.factor_gain
        if self.is_classes:
            calibrated["ece_by_chance"] = self.ece_by_chance
        if self.test.kind in ("numbers", "counts"):
            distance, p_value = calibration.pit_uniformity(self.test.pit(self.y))
            calibrated |= {"pit_distance": distance, "pit_p_value": p_value}
        found = as_data(
            {
                "num_examples": len(self.y),
                **self.scores(),
                "calibration": calibrated,
                "conformal": self.conformal,
                "abstention": self.abstention,
                "detects_errors": self.detects_errors,
                "sizes": self.sizes,
                "shift": self.shifts,
                "out_of_distribution": self.detection,
                "comparison": self.comparisons,
                "findings": self.findings,
                "recall": self.recall,
                "targets": [{"name": name, **e.json()} for name, e in self.targets.items()],
            }
        )
        return {key: value for key, value in found.items() if value not in (None, {}, [])}


def _auroc(doubt: NDArray, positive: NDArray, groups=None, **how) -> Estimate:
    """AUROC of a doubt [N] for positive rows."""
    rarer = min(positive.sum(), (~positive).sum())
    weight = len(positive) / (2 * rarer)
    return interval(auroc(doubt, positive), groups, bounds=(0, 1), weight=weight, **how)
