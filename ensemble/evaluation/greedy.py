"""Chooses members of several runs that predict best together, and how much each counts.

Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models" (2004): in
each round the member joins whose vote improves the mixture most, and a member may join again. How
often it did is its weight. What is chosen is the best of all rounds, of each run by itself, and of
all members together, so that on the rows that it is chosen by none of these is better.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np
from numpy.typing import NDArray

from ensemble.config import FORMAT
from ensemble.errors import UserError
from ensemble.evaluation.subject import Subject
from ensemble.metrics.checks import Floats
from ensemble.scoring.sections import VERSION, member_terms, score_split
from ensemble.selected import together
from ensemble.storage.predictions import StoredPredictions, read_predictions, write_predictions
from ensemble.storage.selection import Selected, is_selection, newest_step, write_selection
from ensemble.storage.workdir import Workdir

SPLITS = ("validation", "calibration")
"""What may be chosen by."""
MAX_ROUNDS = 100
NUM_FOLDS = 5
_MIN_ROWS = 2 * NUM_FOLDS


class Selection(dict[str, Any]):
    """The content of report.json of a selection, which shows itself as what was chosen."""

    def __repr__(self) -> str:
        return "\n".join(lines_of(self))


def select(
    workdirs: Sequence[str | os.PathLike[str]],
    workdir: str | os.PathLike[str],
    by: str = "validation",
) -> Selection:
    """Makes a workdir of references to members of finished runs, each with a weight.

    `ensemble.load`, `ensemble.evaluate` and an export take it as any other.

    Args:
        workdirs: of runs on the same data by the same likelihood, whatever their networks and
            methods.
        workdir: to write; it refers to the others, which must stay where they are from it.
        by: the split that is chosen by, `validation` or `calibration`.

    Returns:
        The content of its report.json.

    Raises:
        UserError: the runs cannot be one ensemble, or have no such split.
    """
    out = Workdir(workdir)
    if out.config.exists() and (out.report.exists() or not is_selection(out)):
        raise UserError(f"{out.path} has a run already; choose another --workdir")
    if by not in SPLITS:
        raise UserError(f"--by={by} must be one of {', '.join(SPLITS)}")
    subjects = [_subject(os.fspath(one), by) for one in workdirs]
    if not subjects:
        raise UserError("there is no run to select from; name some workdirs")
    _check_alike(subjects)
    stored = {split: [_stored(one, split) for one in subjects] for split in _common(subjects)}
    log_densities = _log_densities(subjects, stored[by])
    if log_densities.shape[1] < _MIN_ROWS:
        raise UserError(
            f"the {by} split has {log_densities.shape[1]} known targets, too few to choose by; "
            f"{_MIN_ROWS} are needed"
        )
    sizes = [len(one.members) for one in stored[by]]
    counts = choose(log_densities, sizes)
    own = np.split(counts, np.cumsum(sizes)[:-1])
    chosen = [
        Selected(
            subject.work,
            subject.work.identity(),
            [int(k) for k in predictions.members[of_run > 0]],
            [float(one) for one in of_run[of_run > 0] / counts.sum()],
            newest_step(subject.work),
        )
        for subject, predictions, of_run in zip(subjects, stored[by], own, strict=True)
        if of_run.any()
    ]
    report = _write(out, subjects, stored, own, chosen, by)
    first = np.cumsum([0, *sizes])
    report["selection"] |= {
        "by": by,
        "num_rows": log_densities.shape[1],
        **_losses(log_densities, sizes, counts),
        "runs": [
            _of_run(subject, log_densities[a:b], of_run / counts.sum(), stored["test"][i])
            for i, (subject, a, b, of_run) in enumerate(
                zip(subjects, first[:-1], first[1:], own, strict=True)
            )
        ],
    }
    out.write_report(report)
    return Selection(report)


def choose(log_densities: Floats, sizes: Sequence[int]) -> NDArray:
    """How much each member counts, by whole numbers.

    Args:
        log_densities: [M, N] of the targets by each member, nats.
        sizes: members of each run, which sum up to M.

    Returns:
        [M] int, not all 0.
    """
    num_members = len(log_densities)
    runs = np.repeat(np.arange(len(sizes)), sizes)
    candidates = [np.ones(num_members, int), *((runs == r).astype(int) for r in range(len(sizes)))]
    counts = np.zeros(num_members, int)
    total = np.full(log_densities.shape[1], -np.inf)
    for _ in range(MAX_ROUNDS):
        joined = np.logaddexp(total, log_densities)
        is_impossible = np.isneginf(joined)
        # Of members who leave as few targets impossible, the one that helps most with the others.
        gains = np.where(is_impossible, 0.0, joined).sum(axis=1)
        best = np.lexsort((-gains, is_impossible.sum(axis=1)))[0]
        total = joined[best]
        counts[best] += 1
        candidates.append(counts.copy())
    return min(reversed(candidates), key=lambda one: (loss(log_densities, one), one.sum()))


def loss(log_densities: Floats, counts: NDArray) -> float:
    """Mean NLL of a mixture, nats, with weights in proportion to `counts` [M]."""
    chosen = counts > 0
    weighted = log_densities[chosen] + np.log(counts[chosen] / counts.sum())[:, None]
    return float(-np.logaddexp.reduce(weighted, axis=0).mean())


def _losses(log_densities: Floats, sizes: Sequence[int], counts: NDArray) -> dict[str, Any]:
    """The NLL on the rows that were chosen by, and that of rows which a choice has not seen."""
    num_rows = log_densities.shape[1]
    fold = np.random.default_rng(0).permutation(num_rows) % NUM_FOLDS
    unseen = 0.0
    for k in range(NUM_FOLDS):
        out = fold == k
        of_rest = choose(log_densities[:, ~out], sizes)
        unseen += loss(log_densities[:, out], of_rest) * out.sum() / num_rows
    seen = loss(log_densities, counts)
    return {"nll": seen, "cross_validated_nll": unseen, "optimism": unseen - seen}


def _subject(workdir: str, by: str) -> Subject:
    """A finished run that can be chosen from."""
    subject = Subject(workdir)
    if is_selection(subject.work):
        raise UserError(
            f"{subject.work.path} is a selection itself; name the runs that it selects from"
        )
    if not subject.is_finished:
        raise UserError(f"{workdir} is still in training; select when it has finished")
    if by not in subject.description["num_examples"]:
        raise UserError(
            f"{workdir} has no {by} split to choose by; train with config.hold_out=True, or give "
            "one"
        )
    if not subject.likelihood.has_density:
        raise UserError(
            f"{workdir} has learned {subject.likelihood.name!r}, which has no density to choose "
            "by; give runs of a likelihood such as 'gaussian'"
        )
    return subject


def _check_alike(subjects: Sequence[Subject]) -> None:
    """Refuses runs whose predictions are not of the same targets in the same units."""
    first = subjects[0]
    seen: dict[str, Any] = {}
    for one in subjects:
        identity = one.work.identity()
        if identity in seen:
            raise UserError(f"{one.work.path} and {seen[identity]} are one run; name it once")
        seen[identity] = one.work.path
        pair = f"{one.work.path} and {first.work.path}"
        if one.likelihood.name != first.likelihood.name:
            raise UserError(
                f"{pair} predict by config.likelihood={one.likelihood.name!r} and "
                f"{first.likelihood.name!r}; select from runs of one likelihood"
            )
        if one.description["fingerprint"] != first.description["fingerprint"]:
            raise UserError(
                f"{pair} have learned other data, or other splits of them; select from runs with "
                "the same data, config.seed and config.hold_out"
            )
        if one.likelihood.describe() != first.likelihood.describe():
            raise UserError(
                f"{pair} predict targets in other units; select from runs that standardise alike"
            )


def _common(subjects: Sequence[Subject]) -> list[str]:
    """The splits beside training that all runs have, the same since their data are."""
    return [name for name in subjects[0].description["num_examples"] if name != "train"]


def _notes(subjects: Sequence[Subject], counts: Sequence[NDArray]) -> list[str]:
    """Those of the runs that members were chosen from."""
    return [
        f"{one.work.path}: {note}"
        for one, own in zip(subjects, counts, strict=True)
        if own.any()
        for note in one.report.get("notes", ())
    ]


def _stored(subject: Subject, split: str) -> StoredPredictions:
    """What a finished run has said of a split."""
    if split == "test":
        return subject.test
    found = read_predictions(
        subject.work.predictions / f"{split}.npz",
        subject.config,
        subject.likelihood,
        identity=subject.work.identity(),
        fingerprint=subject.description["fingerprint"],
    )
    if found is None:
        raise UserError(
            f"{subject.work.path} keeps sums over draws, as earlier versions did, which cannot be "
            "chosen by; train again with the same --workdir"
        )
    return found


def _log_densities(subjects: Sequence[Subject], stored: Sequence[StoredPredictions]) -> Floats:
    """[M, N] of the targets that are known, nats, member by member."""
    views = [said.view(one.likelihood) for one, said in zip(subjects, stored, strict=True)]
    found = -np.concatenate([member_terms(view, "nll") for view in views])
    found = found[:, ~np.isnan(found).any(axis=0)]
    impossible = int(np.isneginf(found).all(axis=0).sum())
    if impossible or np.isposinf(found).any():
        what = f"{impossible} targets are impossible by all members"
        raise UserError(
            f"{what if impossible else 'a density is infinite by a member'} of "
            f"{', '.join(str(one.work.path) for one in subjects)}, so nothing can be chosen by "
            "NLL; give other runs"
        )
    return found


def _of_run(
    subject: Subject, log_densities: Floats, weights: Floats, test: StoredPredictions
) -> dict[str, Any]:
    """What is said of a run beside the selection; the weights [M] are of its members."""
    chosen = weights > 0
    return {
        "workdir": os.fspath(subject.work.path),
        "method": subject.config["method"],
        "model": subject.config["model"],
        "num_members": len(weights),
        "members": test.members[chosen].tolist(),
        "weights": weights[chosen].tolist(),
        "nll": loss(log_densities, np.ones(len(weights), int)),
        "test_nll": score_split(test.view(subject.likelihood), intervals=False, names=["nll"])[
            "scores"
        ]["nll"]["value"],
    }


def _write(
    out: Workdir,
    subjects: Sequence[Subject],
    stored: dict[str, list[StoredPredictions]],
    counts: Sequence[NDArray],
    chosen: Sequence[Selected],
    by: str,
) -> dict[str, Any]:
    """Writes all but the report, which is returned."""
    first = next(one for one, own in zip(subjects, counts, strict=True) if own.any())
    config = ml_collections.FrozenConfigDict(first.config)
    weights = np.concatenate([np.asarray(one.weights) for one in chosen])
    members = list(range(len(weights)))
    sections = {}
    sizes = dict(first.description["num_examples"])
    if by == "calibration":  # What is fitted to rows that have chosen would be too sure.
        del sizes[by]
    with out.opened():
        out.write_config(config, first.description["fingerprint"])
        write_selection(out, chosen)
        out.predictions.mkdir(parents=True, exist_ok=True)
        for split, of_runs in stored.items():
            if split not in sizes:
                continue
            said = [
                one.said.of_members(np.flatnonzero(own).tolist())
                for one, own in zip(of_runs, counts, strict=True)
                if own.any()
            ]
            whole = together(said, weights, first.likelihood)
            write_predictions(
                out.predictions / f"{split}.npz",
                whole,
                of_runs[0].targets,
                members,
                first.config,
                identity=out.identity(),
                fingerprint=first.description["fingerprint"],
            )
            if split != "calibration":
                view = whole.view(first.likelihood, of_runs[0].targets)
                sections[split] = score_split(view, intervals=False)
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": first.config,
        "dataset": {**first.description, "num_examples": sizes},
        "method": first.config["method"],
        "num_members": len(members),
        "live_members": members,
        "failed_members": {},
        "stopped_early": [],
        "num_train_examples": first.report["num_train_examples"],
        **sections,
        "timing": {},
        "notes": _notes(subjects, counts),
        "selection": {},
    }


def lines_of(report: dict[str, Any]) -> list[str]:
    """What was chosen, in lines."""
    found = report["selection"]
    test = report["test"]["scores"]["nll"]["value"]
    best = min(found["runs"], key=lambda one: one["test_nll"])
    alone = min(one["nll"] for one in found["runs"])
    lines = [
        f"{one['workdir']} ({one['method']}, {one['model']}): {_chosen_of(one)}. NLL "
        f"{one['nll']:.4f} on the {found['by']} split, {one['test_nll']:.4f} on the test split."
        for one in found["runs"]
    ]
    gains = found["cross_validated_nll"] < alone
    return [
        *lines,
        f"The selection of {report['num_members']}: NLL {found['nll']:.4f} on the {found['by']} "
        f"split, which it was chosen by, and {found['cross_validated_nll']:.4f} by cross-"
        f"validation, an optimism of {found['optimism']:.4f}.",
        *([] if gains else [f"By that it is no better than the best run alone: {alone:.4f}."]),
        f"On the test split its NLL is {test:.4f}; that of the best run there is "
        f"{best['test_nll']:.4f}.",
    ]


def _chosen_of(run: dict[str, Any]) -> str:
    """Which members of a run were chosen, their weights in brackets."""
    if not run["members"]:
        return f"none of {run['num_members']} members"
    pairs = zip(run["members"], run["weights"], strict=True)
    each = ", ".join(f"{k} ({weight:.2f})" for k, weight in pairs)
    return f"member{'s' * (len(run['members']) > 1)} {each} of {run['num_members']}"
