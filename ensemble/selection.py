"""Greedy ensemble selection: members of several runs that predict best together, with weights.

Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models" (2004):
each round adds the member that improves the mixture most, and a member may be added again. Its
weight is the number of times it was added. The result is the best of all rounds, of each run, and
of all members together, so none of these is better on the rows that decide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from numpy.typing import NDArray

from ensemble.config import FORMAT
from ensemble.data.source import check_same_data
from ensemble.errors import InputError
from ensemble.metrics import metrics_of
from ensemble.predictor import together
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.evaluation import Evaluation
from ensemble.storage.predictions import HELD_OUT, read_held_out, write_predictions
from ensemble.storage.selection import is_selection, write_selection
from ensemble.storage.trials import purpose_of
from ensemble.storage.workdir import Workdir

Floats = NDArray[np.float64]
SELECT_BY = ("validation", "calibration", HELD_OUT)
"""`held_out` selects whole runs by the training rows that members of `kfold_bagging` hold out."""
MAX_ROUNDS = 100
_FOLDS = 5
_MIN_ROWS = 2 * _FOLDS


class Selection(dict[str, Any]):
    """Content of results.json of a selection; it prints as what was selected."""

    def __repr__(self) -> str:
        lines = []
        for one in self["selection"]["runs"]:
            pairs = zip(one["members"], one["weights"], strict=True)
            each = ", ".join(f"{k} ({weight:.2f})" for k, weight in pairs) or "none"
            lines.append(f"{one['workdir']}: members {each}. NLL {one['nll']:.4f}.")
        return "\n".join([*lines, *selected_lines(self)])


def select_members(
    workdirs: Sequence[str | os.PathLike[str]],
    workdir: str | os.PathLike[str],
    by: str = "validation",
) -> Selection:
    """Writes a workdir that refers to members of finished runs, each with a weight.

    `ensemble.load`, `ensemble.evaluate` and an export take it as any other.

    Args:
        workdirs: Runs on the same data with the same likelihood, of any networks and methods.
        workdir: Directory to write. It refers to the runs by relative path.
        by: Split that decides, `validation` or `calibration`; or `held_out`, the training rows that
            members of `method='kfold_bagging'` hold out.

    Returns:
        The content of its results.json.

    Raises:
        InputError: The runs cannot be one ensemble, or have no such split.
    """
    out = Workdir(workdir)
    if purpose_of(out) or (out.config.exists() and (out.report.exists() or not is_selection(out))):
        raise InputError(f"{out.path} has a run already; choose another --workdir")
    content = choose(workdirs, by)
    with out.opened():
        return write_chosen(out, content)


def choose(workdirs: Sequence[str | os.PathLike[str]], by: str) -> dict[str, Any]:
    """Chooses members of runs; arguments and errors as of `select_members`.

    Returns:
        The entry `selection` of the results.
    """
    if by not in SELECT_BY:
        raise InputError(f"by={by} must be one of {', '.join(SELECT_BY)}")
    runs = [EvaluatedRun(one) for one in workdirs]
    if not runs:
        raise InputError("There is no run to select from. Give some workdirs")
    if len({run.work.identity() for run in runs}) < len(runs):
        raise InputError("Two of the workdirs are one run. Name it once")
    for run in runs:
        _check(run, runs[0], by)
    each = [_log_densities(run, by) for run in runs]
    sizes = [len(one) for one in each]
    log_densities = np.concatenate(each)
    is_known = ~np.isnan(log_densities).any(axis=0)
    log_densities = log_densities[:, is_known]
    number = log_densities.shape[1]
    if number < _MIN_ROWS:
        raise InputError(f"{number} {_rows(by)} cannot decide; {_MIN_ROWS} are needed")
    if np.isneginf(log_densities).all(axis=0).any() or np.isposinf(log_densities).any():
        paths = ", ".join(str(run.work.path) for run in runs)
        raise InputError(
            f"Some targets have a density of 0 by all members, or an infinite one, of {paths}, so "
            "the NLL cannot decide. Use other runs"
        )
    counts = select(log_densities, sizes)
    entries = []
    shares = np.split(counts / counts.sum(), np.cumsum(sizes)[:-1])
    for run, own, share in zip(runs, each, shares, strict=True):
        members = np.asarray(run.results["active_members"])
        times = len(members) // len(own)  # Members of a whole run have equal shares of its weight.
        weights = np.repeat(share / times, times)
        entries.append(
            {
                "workdir": os.fspath(run.work.path),
                "members": members[weights > 0].tolist(),
                "weights": weights[weights > 0].tolist(),
                "nll": loss(own[:, is_known], np.ones(len(own), int)),
            }
        )
    return {
        "by": by,
        "num_rows": number,
        "nll": loss(log_densities, counts),
        "cross_validated_nll": _cross_validated(log_densities, sizes),
        "runs": entries,
    }


def _check(run: EvaluatedRun, first: EvaluatedRun, by: str) -> None:
    """Refuses a run that cannot be selected from, or that predicts other targets than the first."""
    ours, theirs = (one.config["likelihood"] for one in (run, first))
    faults = {
        "is a selection, or still in training. Name finished runs": (
            is_selection(run.work) or not run.is_finished
        ),
        f"has no {by} split to choose by. Train with config.train_on_all=False, or give one": (
            by != HELD_OUT and by not in run.description["num_examples"]
        ),
        f"has config.likelihood={ours!r}, without a density to choose by. Use runs of a likelihood "
        "such as 'gaussian'": not run.likelihood.has_density,
        f"has config.likelihood={ours!r}, and {first.work.path} {theirs!r}, or other units. Select "
        "from runs of one likelihood that standardise alike": (
            ours != theirs or run.likelihood.to_dict() != first.likelihood.to_dict()
        ),
    }
    for line, is_so in faults.items():
        if is_so:
            raise InputError(f"{run.work.path} {line}")
    remedy = f"select from runs on the data and splits of {first.work.path}"
    learned, expected = (one.description["fingerprint"] for one in (run, first))
    check_same_data(str(run.work.path), learned, expected, remedy)


def _log_densities(run: EvaluatedRun, by: str) -> Floats:
    """Log densities [E, N] of targets by members; of held-out rows by the run, NaN if unknown."""
    if by == HELD_OUT:
        return -read_held_out(run.work, run.results["num_train_examples"])[None]
    p, targets, _ = run.predicted(by) or run.test  # Which `_check` has looked for.
    return -metrics_of(p)["nll"].member_terms(p, targets)


def _rows(by: str) -> str:
    return f"{by.replace('_', '-')} rows"


def select(log_densities: Floats, sizes: Sequence[int]) -> NDArray:
    """How often each member is added, int [M], not all 0.

    Args:
        log_densities: [M, N] of the targets by each member, nats.
        sizes: Number of members of each run, of sum M.
    """
    num_members = len(log_densities)
    runs = np.repeat(np.arange(len(sizes)), sizes)
    candidates = [np.ones(num_members, int), *((runs == r).astype(int) for r in range(len(sizes)))]
    counts = np.zeros(num_members, int)
    total = np.full(log_densities.shape[1], -np.inf)
    for _ in range(MAX_ROUNDS):
        joined = np.logaddexp(total, log_densities)
        is_impossible = np.isneginf(joined)
        # Of members that leave as few targets impossible, the one that helps most with the others.
        gains = np.where(is_impossible, 0.0, joined).sum(axis=1)
        best = np.lexsort((-gains, is_impossible.sum(axis=1)))[0]
        total = joined[best]
        counts[best] += 1
        candidates.append(counts.copy())
    return min(reversed(candidates), key=lambda one: (loss(log_densities, one), one.sum()))


def loss(log_densities: Floats, counts: NDArray) -> float:
    """Mean NLL of a mixture with weights in proportion to `counts` [M], nats."""
    chosen = counts > 0
    weighted = log_densities[chosen] + np.log(counts[chosen] / counts.sum())[:, None]
    return float(-np.logaddexp.reduce(weighted, axis=0).mean())


def _cross_validated(log_densities: Floats, sizes: Sequence[int]) -> float:
    """NLL of rows that did not decide, by selecting on the others in folds."""
    fold = np.random.default_rng(0).permutation(log_densities.shape[1]) % _FOLDS
    found = 0.0
    for k in range(_FOLDS):
        out = fold == k
        counts = select(log_densities[:, ~out], sizes)
        found += loss(log_densities[:, out], counts) * out.mean()
    return found


def write_chosen(out: Workdir, content: Mapping[str, Any]) -> Selection:
    """Writes a selection: what it refers to, its predictions of splits, and its results.

    An earlier selection is replaced.

    Args:
        out: Workdir to write, open.
        content: Returned by `choose`.
    """
    entries = [one for one in content["runs"] if one["members"]]
    runs = [EvaluatedRun(one["workdir"]) for one in entries]
    first = runs[0]
    weights = np.concatenate([one["weights"] for one in entries])
    members = list(range(len(weights)))
    for file in (out.report, out.config):
        out.manifest.remove(file)
    out.write_config(ml_collections.FrozenConfigDict(first.config))
    write_selection(out, entries)
    metrics = {}
    sizes = dict(first.description["num_examples"])
    if content["by"] == "calibration":  # Whatever is fitted to rows that decided is overconfident.
        del sizes["calibration"]
    for split in [name for name in sizes if name != "train"]:
        each = [stored for run in runs if (stored := run.predicted(split))]
        some = [
            stored.predictive.of(np.searchsorted(stored.members, one["members"]))
            for stored, one in zip(each, entries, strict=True)
        ]
        whole = together(some, weights, first.likelihood)
        write_predictions(out, split, whole, each[0].targets, members)
        if split != "calibration":
            table = Evaluation(whole, each[0].targets, split=split).table
            metrics[split] = table.json()["metrics"]
    notes = (note for run in runs for note in run.results.get("notes", ()))
    report = {
        "format": FORMAT,
        "config": first.config,
        "dataset": {**first.description, "num_examples": sizes},
        "method": first.config["method"],
        "num_members": len(members),
        "active_members": members,
        "failed_members": {},
        "stopped_early": [],
        "num_train_examples": first.results["num_train_examples"],
        "metrics": metrics,
        "timing": {},
        "notes": list(dict.fromkeys(notes)),
        "selection": content,
    }
    out.manifest.write(out.report, report)
    return Selection(report)


def selected_lines(results: Mapping[str, Any]) -> list[str]:
    """How well a selection predicts, in lines."""
    found = results["selection"]
    lines = [
        f"Selection of {results['num_members']}: NLL {found['nll']:.4f} on {_rows(found['by'])}, "
        f"which decided; {found['cross_validated_nll']:.4f} by cross-validation, versus "
        f"{min(one['nll'] for one in found['runs']):.4f} for the best run alone."
    ]
    if test := results["metrics"].get("test"):
        lines.append(f"Test split: NLL {test['nll']['value']:.4f}.")
    return lines
