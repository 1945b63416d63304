"""Greedy ensemble selection: members of several runs that predict best together, with weights.

Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models" (2004):
each round adds the member that improves the mixture most, and a member may be added again. Its
weight is the number of times it was added. The result is the best of all rounds, of each run, and
of all members together, so none of these is better on the rows that decide.
"""

from __future__ import annotations

import contextlib
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
from ensemble.storage.selection import Selected, is_selection, newest_step, write_selection
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
        return "\n".join(lines_of(self))


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
    if by not in SELECT_BY:
        raise InputError(f"by={by} must be one of {', '.join(SELECT_BY)}")
    return select_into(out, workdirs, by, out.opened())


def select_into(
    out: Workdir,
    workdirs: Sequence[str | os.PathLike[str]],
    by: str,
    opening: contextlib.AbstractContextManager[Any],
) -> Selection:
    """Selects as `select_members` does, and replaces an earlier selection.

    Args:
        out: Workdir to write.
        workdirs: As of `select_members`.
        by: Likewise.
        opening: Opens the workdir, when it is to be written.

    Raises:
        InputError: As of `select_members`.
    """
    runs = [EvaluatedRun(one) for one in workdirs]
    if not runs:
        raise InputError("There is no run to select from. Give some workdirs")
    _check(runs, by)
    names = [name for name in runs[0].description["num_examples"] if name != "train"]
    splits = {name: [run.predicted(name) for run in runs] for name in names}
    log_densities, sizes = _log_densities(runs, splits, by)
    number = log_densities.shape[1]
    if number < _MIN_ROWS:
        raise InputError(f"{number} {_rows(by)} cannot decide; {_MIN_ROWS} are needed")
    counts = select(log_densities, sizes)
    weights = np.split(counts / counts.sum(), np.cumsum(sizes)[:-1])
    if by == HELD_OUT:  # A run's members have equal shares of its weight.
        live = [len(run.results["active_members"]) for run in runs]
        weights = [np.repeat(w / number, number) for w, number in zip(weights, live, strict=True)]
    entries = _describe(runs, weights, np.split(log_densities, np.cumsum(sizes)[:-1]), splits)
    seen = loss(log_densities, counts)
    unseen = _cross_validated(log_densities, sizes)
    content = {
        "by": by,
        "num_rows": number,
        "nll": seen,
        "cross_validated_nll": unseen,
        "optimism": unseen - seen,
        "runs": entries,
    }
    if by == "calibration":  # Whatever is fitted to rows that decided is overconfident.
        del splits[by]
    with opening:
        return _write(out, runs, weights, splits, content)


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


def _check(runs: Sequence[EvaluatedRun], by: str) -> None:
    """Refuses runs that cannot be selected from, or that predict other targets or units."""
    first = runs[0]
    seen = dict[str, Any]()
    here = runs[0].work.path
    for run in runs:
        path = run.work.path
        identity = run.work.identity()
        if is_selection(run.work):
            raise InputError(f"{path} is a selection itself. Name the runs that it selects from")
        if not run.is_finished:
            raise InputError(f"{path} is still in training. Select when it has finished")
        if by != HELD_OUT and by not in run.description["num_examples"]:
            raise InputError(
                f"{path} has no {by} split to choose by. Train with config.train_on_all=False, or "
                "give one"
            )
        if not run.likelihood.has_density:
            raise InputError(
                f"{path}: config.likelihood={run.config['likelihood']!r} has no density to choose "
                "by. Use runs of a likelihood such as 'gaussian'"
            )
        if identity in seen:
            raise InputError(f"{path} and {seen[identity]} are one run. Name it once")
        seen[identity] = path
        learned, expected = (one.description["fingerprint"] for one in (run, first))
        remedy = f"select from runs on the data and splits of {here}"
        check_same_data(str(path), learned, expected, remedy)
        kinds = [(one.config["likelihood"], one.likelihood.to_dict()) for one in (run, first)]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{path} and {here} have config.likelihood={kinds[0][0]!r} and {kinds[1][0]!r}, or "
                "other units. Select from runs of one likelihood that standardise alike"
            )


def _log_densities(
    runs: Sequence[EvaluatedRun], splits: Mapping[str, Sequence[Any]], by: str
) -> tuple[Floats, list[int]]:
    """Log densities [E, N] of targets by members (of held-out rows, by runs), and E of each run."""
    if by == HELD_OUT:
        each = [read_held_out(run.work, run.results["num_train_examples"])[None] for run in runs]
    else:
        each = [
            metrics_of(one.predictive)["nll"].member_terms(one.predictive, one.targets)
            for one in splits[by]
        ]
    found = -np.concatenate(each)
    found = found[:, ~np.isnan(found).any(axis=0)]
    if np.isneginf(found).all(axis=0).any() or np.isposinf(found).any():
        raise InputError(
            f"Some targets have a density of 0 by all members, or an infinite one, of "
            f"{', '.join(str(run.work.path) for run in runs)}, so the NLL cannot decide. Use other "
            "runs"
        )
    return found, [len(one) for one in each]


def _describe(
    runs: Sequence[EvaluatedRun],
    weights: Sequence[Floats],
    log_densities: Sequence[Floats],
    splits: Mapping[str, Sequence[Any]],
) -> list[dict[str, Any]]:
    """The entry of each run: its selected members, their weights, and its own NLL."""
    entries = []
    for i, (run, own) in enumerate(zip(runs, weights, strict=True)):
        entry = {
            "workdir": os.fspath(run.work.path),
            "members": np.asarray(run.results["active_members"])[own > 0].tolist(),
            "weights": own[own > 0].tolist(),
            "nll": loss(log_densities[i], np.ones(len(log_densities[i]), int)),
        }
        if "test" in splits:
            p, y, _ = splits["test"][i]
            entry["test_nll"] = float(-np.mean(p.log_prob(y)))
        entries.append(entry)
    return entries


def _write(
    out: Workdir,
    runs: Sequence[EvaluatedRun],
    weights: Sequence[Floats],
    splits: Mapping[str, Sequence[Any]],
    content: Mapping[str, Any],
) -> Selection:
    """Writes a selection: what it refers to, its predictions of splits, and its results."""
    chosen = [i for i, one in enumerate(weights) if one.any()]
    first = runs[chosen[0]]
    entries = content["runs"]
    parts = [
        Selected(
            runs[i].work,
            runs[i].work.identity(),
            entries[i]["members"],
            entries[i]["weights"],
            newest_step(runs[i].work),
        )
        for i in chosen
    ]
    joined = np.concatenate([one.weights for one in parts])
    members = list(range(len(joined)))
    for file in (out.report, out.config):
        out.manifest.remove(file)
    out.write_config(ml_collections.FrozenConfigDict(first.config))
    write_selection(out, parts)
    metrics = {}
    sizes = dict(first.description["num_examples"])
    sizes = {name: size for name, size in sizes.items() if name == "train" or name in splits}
    for split, each in splits.items():
        some = [each[i].predictive.of(np.flatnonzero(weights[i])) for i in chosen]
        whole = together(some, joined, first.likelihood)
        y = each[0].targets
        write_predictions(out, split, whole, y, members)
        if split != "calibration":
            metrics[split] = Evaluation(whole, y, split=split).table.json()["metrics"]
    notes = (note for i in chosen for note in runs[i].results.get("notes", ()))
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


def lines_of(results: Mapping[str, Any]) -> list[str]:
    """What was selected, in lines."""
    found = results["selection"]
    runs = found["runs"]
    lines = []
    for one in runs:
        pairs = zip(one["members"], one["weights"], strict=True)
        each = ", ".join(f"{k} ({weight:.2f})" for k, weight in pairs) or "none"
        lines.append(f"{one['workdir']}: members {each}. NLL {one['nll']:.4f}.")
    lines.append(
        f"Selection of {results['num_members']}: NLL {found['nll']:.4f} on {_rows(found['by'])}, "
        f"which decided; {found['cross_validated_nll']:.4f} by cross-validation, versus "
        f"{min(one['nll'] for one in runs):.4f} for the best run alone."
    )
    if test := results["metrics"].get("test"):
        best = min(one["test_nll"] for one in runs)
        lines.append(
            f"Test split: NLL {test['nll']['value']:.4f}, versus {best:.4f} for the best run."
        )
    return lines
