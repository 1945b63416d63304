"""An evaluation: predictives in, numbers out. Nothing here knows of files, devices or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ensemble.data.source import Source
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Predictive
from ensemble.metrics import Estimate, Metric, functions, interval, metrics_of, ranking, values
from ensemble.metrics import calibration as fit
from ensemble.metrics import conformal as split_conformal
from ensemble.metrics.abstention import COVERAGE, MAX_ERROR, Rule, are_wrong, fit_abstention
from ensemble.report import shift
from ensemble.report.findings import Finding, as_lines, find
from ensemble.report.table import ByName, Json, Table, as_data, joint, table

VERSION = 3
"""Version of results.json and evaluation/report.json."""
_FEW_ERRORS = 10
"""Fewer errors, or right answers, do not tell whether doubt ranks them."""
LEVEL = 0.95


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
        split: that `test` is of.
        allow_empty_sets: whether conformal sets may be empty.
        said: findings of the training; those stand that no rule judges anew.
    """

    test: Any
    y: NDArray
    calibration: tuple[Any, NDArray] | None = None
    baselines: Sequence[Mapping[str, Predictive]] = ()
    shifted: Mapping[str, list[Any]] = field(default_factory=dict)
    outside: ByName = field(default_factory=dict)
    groups: NDArray | None = None
    others: ByName = field(default_factory=dict)
    draw: Mapping[str, float] = field(default_factory=dict)
    traces: Sequence[Any] = ()
    about: ByName = field(default_factory=dict)
    source: Source | None = None
    records: Sequence[ByName] = ()
    noun: str = "member"
    rules: Sequence[Rule] = ()
    requested: Mapping[str, Metric] = field(default_factory=dict)
    allow_empty_sets: bool = False
    split: str = "test"
    said: Sequence[Finding] = ()

    def __repr__(self) -> str:
        lines = as_lines(self.findings, self.about.get("notes", ()))
        return "\n".join([*lines, "", self.table.text()])

    def _repr_html_(self) -> str:
        from ensemble.report import page, svg  # Of notebooks alone.

        style = "width:100%;height:720px;border:1px solid #8884;border-radius:8px"
        return f'<iframe style="{style}" srcdoc="{svg.escaped(page.render(self))}"></iframe>'

    @property
    def is_classes(self) -> bool:
        """Whether targets are classes."""
        return self.test.kind == "classes"

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of such predictives."""
        return {**metrics_of(self.test), **self.requested}

    @cached_property
    def headline(self) -> str:
        """The metric that stands first."""
        return next(iter(self.metrics))

    @cached_property
    def proper(self) -> str:
        """The proper score that decides comparisons: NLL of classes, CRPS of numbers."""
        wanted = ("nll",) if self.is_classes else ("crps", "pinball", "nll")
        return next((name for name in wanted if name in self.metrics), self.headline)

    @cached_property
    def targets(self) -> dict[str, Evaluation]:
        """Evaluations of each of several targets, by name; empty if there is one."""
        number = self.y.shape[1] if self.test.kind == "several" else 0
        return {f"target {d}": self._of_target(d) for d in range(number)}

    def _of_target(self, d: int) -> Evaluation:
        names = ("test", "calibration", "shifted", "outside", "others")
        parts = jax.tree.map(
            lambda one: one[:, d] if isinstance(one, np.ndarray) else one.targets[d],
            {name: getattr(self, name) for name in names},
        )
        rest: Json = {"draw": {}, "requested": {}, "rules": (), "said": ()}
        baselines = self.baselines[d : d + 1]
        return replace(self, **parts, **rest, y=self.y[:, d], baselines=baselines)

    @cached_property
    def table(self) -> Table:
        """Metrics of everything that predicts."""
        return table(self)

    @property
    def simple(self) -> Mapping[str, Predictive]:
        """Baselines of the only target, by title; of several targets they stand with each."""
        return self.baselines[0] if self.baselines and self.test.kind != "several" else {}

    @cached_property
    def main(self) -> dict[str, Metric]:
        """The headline and the proper score."""
        return {name: self.metrics[name] for name in (self.headline, self.proper)}

    @property
    def recorded(self) -> dict[str, str]:
        """Titles of what the learning curves show, by name."""
        return {"loss": "loss", **{name: one.title for name, one in self.main.items()}}

    def estimate(self, name: str) -> Estimate:
        """A metric of the ensemble."""
        return self.table.values("ensemble")[name]

    def gain(self, name: str) -> Estimate | None:
        """A metric of the ensemble - that of the average member."""
        return self.table.values("gain").get(name)

    def estimates(self, p: Predictive, names: Iterable[str]) -> dict[str, Estimate]:
        """Metrics of a predictive of rows with these targets."""
        return {name: self.metrics[name].estimate(p, self.y, self.groups) for name in names}

    def interval(self, terms: NDArray, where: Any = slice(None), **how: Any) -> Estimate:
        """Mean of terms [N] over some rows, or groups of rows."""
        groups = None if self.groups is None else self.groups[where]
        return interval(terms[where], groups, **how)

    def against(self, p: Predictive, name: str, level: float = LEVEL) -> Estimate:
        """A metric of another predictive of the same rows - the ensemble's, paired."""
        one = self.metrics[name]
        ours, theirs = (one.terms(each, self.y) for each in (self.test, p))
        return one.difference(ours, theirs, self.groups, level)

    def shared(self, p: Predictive) -> list[str]:
        """Metrics that both have: a density has no NLL comparable to a probability's."""
        is_alike = (self.test.kind == "counts") == (p.kind == "counts")
        theirs = metrics_of(p)
        if list(self.test.axis) != list(p.axis):
            theirs.pop("pinball", None)
        return [
            name
            for name, one in self.metrics.items()
            if one.of_members and name in theirs and (is_alike or not name.startswith("nll"))
        ]

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Json]]:
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
        return fit.fit_scale(*self.calibration)

    @cached_property
    def factor_gain(self) -> Estimate | None:
        """NLL after a factor - before, on calibration examples that did not fit it.

        None if rows come in groups, since those of the calibration split are not known here.
        """
        if self.factor is None or self.calibration is None or self.groups is not None:
            return None
        return fit.scale_gain(*self.calibration)

    @cached_property
    def conformal(self) -> split_conformal.Outcome | None:
        """Conformal sets or intervals of 90%."""
        kind = self.test.kind
        if self.calibration is None or kind == "several":
            return None
        if kind == "quantiles" and 0.9 not in self.test.bands:
            return None
        fitted = split_conformal.fit(*self.calibration)
        if fitted is None:
            return None
        return split_conformal.outcome(fitted, self.test, self.y, self.allow_empty_sets)

    @cached_property
    def ece_by_chance(self) -> tuple[float, float]:
        """The 95% quantile of a calibrated predictor's ECE, and a p-value."""
        return functions.ece_by_chance(self.test, self.y)

    @cached_property
    def pit(self) -> tuple[float, float]:
        """Distance of the PIT from uniform, and a p-value."""
        return fit.pit_uniformity(self.test.pit(self.y))

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
        rarer = min(int(self.wrong.sum()), int((~self.wrong).sum()))
        if rarer < _FEW_ERRORS:
            return None
        terms = ranking.auroc(self.test.doubt(), self.wrong)
        return self.interval(terms, bounds=(0, 1), weight=len(terms) / (2 * rarer))

    def answers(self, rule: Rule) -> Json | None:
        """Returns what a rule of abstention does; None if no threshold is proved.

        Returns:
            `threshold`, the largest doubt of an answer, fitted on the calibration split;
            `coverage`, the share of the rows that are answered; `error`, the share of answers that
            are wrong, with its interval.

        Raises:
            InputError: The rule is one of `rules`, and there is no threshold.
        """
        try:
            if self.calibration is None:
                raise ValueError("the run has no calibration split")
            if self.groups is not None and rule.name == MAX_ERROR:
                raise ValueError("rows come in groups, which prove less than independent rows")
            held, y = self.calibration
            wrong = are_wrong(self.test, self.y, rule.tolerance)
            found = fit_abstention(rule, held.doubt(), are_wrong(held, y, rule.tolerance))
        except ValueError as fault:
            if rule in self.rules:
                raise InputError(f"--{rule}: {fault}") from None
            return None
        answered = self.test.doubt() < found.threshold
        return {
            "threshold": found.threshold,
            "coverage": float(answered.mean()),
            "error": self.interval(wrong, answered, bounds=(0, 1)),
        }

    @cached_property
    def abstention(self) -> dict[str, Json]:
        """Returns of `answers` by the rules that are asked for, else by the usual ones."""
        levels = (0.01, 0.02, 0.05) if self.is_classes else (0.05, 0.1, 0.2)
        usual = [*(Rule(MAX_ERROR, one) for one in levels), Rule(COVERAGE, 0.9)]
        each = {str(rule): self.answers(rule) for rule in self.rules or usual}
        return {name: one for name, one in each.items() if one}

    @cached_property
    def recall(self) -> list[Estimate]:
        """Recall of each class, [C]; intervals of all hold together."""
        number = self.test.log_probs.shape[-1]
        hit = functions.accuracy(self.test, self.y)
        how: Json = {"bounds": (0, 1), "level": joint(number)}
        return [self.interval(hit, self.y == c, **how) for c in range(number)]

    # Members.

    @cached_property
    def sizes(self) -> dict[int, dict[str, float]]:
        """Mean metrics of ensembles of 1..M members, over windows that count all members alike."""
        number = self.test.num_members
        found = dict[int, dict[str, float]]()
        sizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, number - 1, number} & {*range(1, number + 1)}
        for size in sorted(sizes):
            starts = range(number if size < number else 1)
            some = [self.test.of((np.arange(size) + k) % number) for k in starts]
            found[size] = {
                name: float(np.mean([one.value(p, self.y) for p in some]))
                for name, one in self.main.items()
            }
        return found

    @cached_property
    def next_member(self) -> Estimate | None:
        """Expected fall of the proper score by one more member, from that of the last one.

        A score that goes on as a + b / M falls by (M - 1) / (M + 1) of what the last one brought.
        None if M < 3, or if a score is infinite.
        """
        number = self.test.num_members
        if number < 3 or self.test.weights is not None:
            return None
        one = self.metrics[self.proper]
        fewer = [self.test.of(np.delete(np.arange(number), k)) for k in range(number)]
        without = np.mean([one.terms(p, self.y) for p in fewer], axis=0)
        if not np.isfinite(without).all():
            return None
        fall = (without - one.terms(self.test, self.y)) * (number - 1) / (number + 1)
        return self.interval(fall)

    # Other inputs.

    @cached_property
    def shifts(self) -> dict[str, Json]:
        """Effects of shifts, by kind.

        Each has, at the middle severity, the paired `change` of the headline metric, the `gain` of
        the ensemble - the average member, and of classes the `overconfidence`; intervals of all
        kinds hold together (Bonferroni). By name of the metric, `metrics` are those without the
        shift and at five severities, and `average_member` the same of the average member.
        """
        y = self.y
        names = self.headline, "nll" if "nll" in self.metrics else self.proper
        main = {name: self.metrics[name] for name in names}
        level = joint(len(self.shifted))
        found = {}
        for kind, each in self.shifted.items():
            along = [self.test, *each]
            p = along[shift.MIDDLE]
            one = self.metrics[self.headline]
            average = one.member_terms(p, y).mean(axis=0)
            over = None
            if self.is_classes:
                terms = functions.overconfidence(p, y)
                over = self.interval(terms, bounds=(-1, 1), level=level)
            found[kind] = {
                "change": self.against(p, self.headline, level),
                "gain": one.difference(average, one.terms(p, y), self.groups, level),
                "overconfidence": over,
                "metrics": {
                    name: [one.estimate(p, y, self.groups) for p in along]
                    for name, one in main.items()
                },
                "average_member": {
                    name: [float(one.member_terms(p, y).mean()) for p in along]
                    for name, one in main.items()
                },
            }
        return found

    @cached_property
    def detection(self) -> dict[str, Json]:
        """How well the total uncertainty tells other inputs from test examples, by their name.

        Each has the `auroc`, whose intervals hold together, the area `aupr` under the curve of
        precision against recall, and `fpr95`, the share of test examples above the threshold that
        finds 95% of the others. There are no intervals if rows come in groups.
        """
        found = {}
        level = joint(len(self.outside))
        for name, p in self.outside.items() if self.test.kind != "several" else ():
            both = [
                one.uncertainty.get("total", one.uncertainty["epistemic"]) for one in (self.test, p)
            ]
            sizes = [*map(len, both)]
            ranked = np.concatenate(both), np.repeat([False, True], sizes)
            weight = sum(sizes) / min(sizes) / 2
            auroc = interval(ranking.auroc(*ranked), bounds=(0, 1), level=level, weight=weight)
            found[name] = {
                "auroc": auroc if self.groups is None else Estimate(auroc.value),
                "aupr": float(ranking.average_precision(*ranked).mean()),
                "fpr95": ranking.fpr95(*ranked),
            }
        return found

    # What is said.

    @cached_property
    def findings(self) -> list[Finding]:
        """Sentences that intervals decide."""
        return find(self)

    def json(self) -> Json:
        """Everything as data."""
        calibration: Json = {}
        if self.factor is not None:
            calibration["temperature" if self.is_classes else "scale"] = self.factor
            calibration["nll_change"] = self.factor_gain
        if self.is_classes:
            calibration["ece_by_chance"], calibration["ece_p_value"] = self.ece_by_chance
        if self.test.kind in ("numbers", "counts"):
            calibration["pit_distance"], calibration["pit_p_value"] = self.pit
        targets = [{"name": name, **e.json()} for name, e in self.targets.items()]
        found = as_data(
            {
                "num_examples": len(self.y),
                **self.table.json(),
                "calibration": calibration,
                "conformal": self.conformal,
                "abstention": self.abstention,
                "detects_errors": self.detects_errors,
                "sizes": self.sizes,
                "next_member": self.next_member,
                "shift": self.shifts,
                "out_of_distribution": self.detection,
                "comparison": self.comparisons,
                "findings": self.findings,
                "recall": self.recall if self.is_classes else None,
                "targets": targets or None,
            }
        )
        return {key: value for key, value in found.items() if value not in (None, {})}
