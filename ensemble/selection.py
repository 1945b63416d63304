"""Greedy ensemble selection: members of several runs that predict best together, with weights.

Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models" (2004):
each round adds the member that improves the mixture most, and a member may be added again. Its
weight is the number of times it was added. The result is the best of all rounds, of each run, and
of all members together, so none of these is better on the rows that decide.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from etils.epath import PathLike
from numpy.typing import NDArray

from ensemble.config import Config
from ensemble.data.source import check_same_data
from ensemble.errors import InputError
from ensemble.metrics import metrics_of
from ensemble.metrics.functions import Floats
from ensemble.predictor import together
from ensemble.pytrees import ByName
from ensemble.report.evaluated_run import EvaluatedRun
from ensemble.report.evaluation import Evaluation
from ensemble.storage.files import is_remote
from ensemble.storage.predictions import (
    HELD_OUT,
    read_held_out,
    read_predictions,
    write_predictions,
)
from ensemble.storage.workdir import Workdir, purpose_of

SELECT_BY = ("validation", HELD_OUT)
"""`held_out` selects whole runs by the training rows that members of `kfold_bagging` hold out."""
MAX_ROUNDS = 100
_LEAST = -1e4
"""Nats of a target that a member finds impossible, while others join it."""
_SHARED = ("format", "config", "dataset", "method", "num_train_examples")
"""Entries of the results that are the first run's."""


def select_members(
    workdirs: Sequence[PathLike],
    workdir: PathLike,
    by: str = "validation",
) -> ByName:
    """Writes a workdir that refers to members of finished runs, each with a weight.

    `ensemble.load`, `ensemble.evaluate` and an export take it as any other.

    Args:
        workdirs: Runs on the same data with the same likelihood, of any networks and methods.
        workdir: Directory to write. It refers to the runs by relative path.
        by: `validation`, the split that decides; or `held_out`, the training rows that members of
            `method='kfold_bagging'` hold out.

    Returns:
        The content of its results.json.

    Raises:
        InputError: The runs cannot be one ensemble, or have no such split.
    """
    out = Workdir(workdir)
    if out.config.exists() or purpose_of(out):
        raise InputError(f"{out.path} has a run already; choose another --workdir")
    runs = [EvaluatedRun(one) for one in workdirs]
    content = choose(out, runs, by)
    with out.opened():
        return write_chosen(out, runs, content)


def choose(out: Workdir, runs: Sequence[EvaluatedRun], by: str) -> ByName:
    """Chooses members of runs; errors as of `select_members`.

    Args:
        out: Workdir of the selection, from which paths of runs are relative.
        runs: Runs to select from.
        by: As of `select_members`.

    Returns:
        The entry `selection` of the results.
    """
    if by not in SELECT_BY:
        raise InputError(f"by={by} must be one of {', '.join(SELECT_BY)}")
    if not runs:
        raise InputError("There are no workdirs to select from. Give some")
    for run in runs:
        _check(run, runs[0], by)
    each: list[Floats] = []  # Log densities [E, N] by members; of held-out rows by the run.
    for run in runs:
        if by == HELD_OUT:
            each.append(-read_held_out(run.work)[None])
        else:
            p, targets, _ = read_predictions(run.work, by, run.likelihood)
            each.append(-metrics_of(p)["nll"].member_terms(p, targets))
    is_known = ~np.isnan(np.concatenate(each)).any(axis=0)
    each = [one[:, is_known] for one in each]
    whole = np.concatenate(each)
    counts = select(whole, [len(one) for one in each])
    entries, left = [], counts / counts.sum()
    for run, own in zip(runs, each, strict=True):
        share, left = np.split(left, [len(own)])
        members = np.asarray(run.results["active_members"])
        # Members of a whole run have equal shares of its weight.
        weights = np.resize(share, len(members)) * (len(own) / len(members))
        path = os.fspath(run.work.path)
        if not (is_remote(path) or out.is_remote):  # So that both may move.
            path = os.path.relpath(os.path.realpath(path), os.path.realpath(out.path))
        entries.append(
            {
                "workdir": path,
                "identity": run.work.identity(),
                "step": run.work.newest_step,
                "members": members[weights > 0].tolist(),
                "weights": weights[weights > 0].tolist(),
                "nll": loss(own, np.ones(len(own), int)),
            }
        )
    return {"by": by, "nll": loss(whole, counts), "runs": entries}


def _check(run: EvaluatedRun, first: EvaluatedRun, by: str) -> None:
    """Refuses a run that cannot be selected from, or that predicts other targets than the first."""
    path, own, others = run.work.path, run.likelihood, first.likelihood
    if "selection" in run.results or not run.is_finished:
        raise InputError(f"{path} is a selection, or still in training. Name finished runs")
    if by != HELD_OUT and by not in run.description["num_examples"]:
        raise InputError(
            f"{path} has no {by} split to choose by. Train with config.train_on_all=False, or give "
            "one"
        )
    if not own.has_density or type(own) is not type(others) or own.to_dict() != others.to_dict():
        raise InputError(
            f"{path} has config.likelihood={run.config['likelihood']!r}. Select from runs of one "
            "likelihood with a density, such as 'gaussian', that standardise alike"
        )
    remedy = f"select from runs on the data and splits of {first.work.path}"
    learned, expected = (one.description["fingerprint"] for one in (run, first))
    check_same_data(str(path), learned, expected, remedy)


def select(log_densities: Floats, sizes: Sequence[int]) -> np.ndarray:
    """How often each member is added, int [M], not all 0.

    Args:
        log_densities: [M, N] of the targets by each member, nats.
        sizes: Number of members of each run, of sum M.
    """
    num_members = len(log_densities)
    runs = np.repeat(np.arange(len(sizes)), sizes)
    candidates = [np.ones(num_members, int), *((runs == r).astype(int) for r in range(len(sizes)))]
    counts = np.zeros(num_members, int)
    possible = np.maximum(log_densities, _LEAST)
    total = np.full(log_densities.shape[1], -np.inf)
    for _ in range(MAX_ROUNDS):
        joined = np.logaddexp(total, possible)
        best = joined.sum(axis=1).argmax()
        total = joined[best]
        counts[best] += 1
        candidates.append(counts.copy())
    return min(reversed(candidates), key=lambda one: (loss(log_densities, one), one.sum()))


def loss(log_densities: Floats, counts: NDArray) -> float:
    """Mean NLL of a mixture with weights in proportion to `counts` [M], nats."""
    chosen = counts > 0
    weighted = log_densities[chosen] + np.log(counts[chosen] / counts.sum())[:, None]
    return float(-np.logaddexp.reduce(weighted, axis=0).mean())


def write_chosen(out: Workdir, runs: Sequence[EvaluatedRun], content: ByName) -> ByName:
    """Writes a selection: its predictions of splits, its results, and last its configuration.

    An earlier selection is replaced.

    Args:
        out: Workdir to write, open.
        runs: Runs to select from.
        content: Returned by `choose`.
    """
    pairs = zip(runs, content["runs"], strict=True)
    chosen = [(run, one["members"]) for run, one in pairs if one["members"]]
    first, _ = chosen[0]
    weights = np.concatenate([one["weights"] for one in content["runs"]])
    members = list(range(len(weights)))
    for file in (out.config, out.report):
        out.manifest.remove(file)
    metrics = {}
    for split in [name for name in first.description["num_examples"] if name != "train"]:
        each = []
        for run, numbers in chosen:
            p, targets, alive = read_predictions(run.work, split, run.likelihood)
            each.append(p.of(np.searchsorted(alive, numbers)))
        whole = together(each, weights, first.likelihood)
        write_predictions(out, split, whole, targets, members)
        if split != "calibration":
            found = Evaluation(whole, targets, split=split)
            metrics[split] = found.scores()["metrics"]
    report = {
        **{name: first.results[name] for name in _SHARED},
        "num_members": len(members),
        "active_members": members,
        "failed_members": {},
        "metrics": metrics,
        "notes": [*dict.fromkeys(note for run, _ in chosen for note in run.results["notes"])],
        "selection": content,
    }
    out.manifest.write(out.report, report)
    out.write_config(Config(first.config))
    return report
