"""Chooses members of several runs that predict best together, and how much each counts.

Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models" (2004): in
each round the member joins whose vote improves the mixture most, and a member may join again. How
often it did is its weight. What is chosen is the best of all rounds, of each run by itself, and of
all members together, so that on the rows that it is chosen by none of these is better.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np
from numpy.typing import NDArray

from ensemble.config import FORMAT
from ensemble.errors import UserError
from ensemble.evaluation.subject import Subject
from ensemble.metrics.checks import Floats
from ensemble.scoring.sections import VERSION, member_terms, score_split
from ensemble.selected import together
from ensemble.storage.held_out import read_held_out
from ensemble.storage.predictions import StoredPredictions, read_predictions, write_predictions
from ensemble.storage.search import is_search
from ensemble.storage.selection import Selected, is_selection, newest_step, write_selection
from ensemble.storage.workdir import Workdir

HELD_OUT = "held_out"
"""Chooses by the training rows that cross-fitted members hold out, of which each has its own: whole
runs are chosen then."""
CHOSEN_BY = ("validation", "calibration", HELD_OUT)
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
        by: the split that is chosen by, `validation` or `calibration`; or `held_out`, the training
            rows that members of `method='cross_fitted'` hold out.

    Returns:
        The content of its report.json.

    Raises:
        UserError: the runs cannot be one ensemble, or have no such split.
    """
    out = Workdir(workdir)
    if is_search(out) or (out.config.exists() and (out.report.exists() or not is_selection(out))):
        raise UserError(f"{out.path} has a run already; choose another --workdir")
    if by not in CHOSEN_BY:
        raise UserError(f"--by={by} must be one of {', '.join(CHOSEN_BY)}")
    chosen = choose_from(workdirs, by)
    with out.opened():
        return write(out, chosen)


class Chosen(NamedTuple):
    """Members of finished runs, chosen.

    Attributes:
        subjects: [R], the runs.
        stored: what these say of each split, run by run.
        log_densities: [E, N] of known targets that were chosen by, nats.
        sizes: [R], how many of the E belong to each run.
        counts: [E], how much each counts.
        by: as of `select`.
    """

    subjects: Sequence[Subject]
    stored: Mapping[str, Sequence[StoredPredictions]]
    log_densities: Floats
    sizes: Sequence[int]
    counts: NDArray
    by: str

    @property
    def weights_of(self) -> list[Floats]:
        """[R] arrays [M] of the weights of each run's live members, 0 of those not chosen."""
        shares = np.split(self.counts / self.counts.sum(), np.cumsum(self.sizes)[:-1])
        if self.by != HELD_OUT:
            return shares
        live = [len(one.report["live_members"]) for one in self.subjects]
        return [np.repeat(own / number, number) for own, number in zip(shares, live, strict=True)]


def choose_from(workdirs: Sequence[str | os.PathLike[str]], by: str) -> Chosen:
    """Chooses members as `select` does, and writes nothing.

    Raises:
        UserError: as of `select`.
    """
    subjects = [_subject(os.fspath(one), by) for one in workdirs]
    if not subjects:
        raise UserError("there is no run to select from; name some workdirs")
    _check_alike(subjects)
    stored = {split: [_stored(one, split) for one in subjects] for split in _common(subjects)}
    log_densities, sizes = _log_densities(subjects, stored, by)
    if log_densities.shape[1] < _MIN_ROWS:
        raise UserError(
            f"{_place(by)} have {log_densities.shape[1]} known targets, too few to choose by; "
            f"{_MIN_ROWS} are needed"
        )
    return Chosen(subjects, stored, log_densities, sizes, choose(log_densities, sizes), by)


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
    if by != HELD_OUT and by not in subject.description["num_examples"]:
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


def _notes(subjects: Sequence[Subject], weights_of: Sequence[NDArray]) -> list[str]:
    """The notes of the runs that members were chosen from; those of all are told once."""
    chosen = [one for one, own in zip(subjects, weights_of, strict=True) if own.any()]
    runs_of: dict[str, list[str]] = {}
    for one in chosen:
        for note in one.report.get("notes", ()):
            runs_of.setdefault(note, []).append(str(one.work.path))
    return [
        note if len(runs) == len(chosen) > 1 else f"{', '.join(runs)}: {note}"
        for note, runs in runs_of.items()
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


def _place(by: str) -> str:
    """What is chosen by, in words."""
    return "the training rows held out" if by == HELD_OUT else f"the rows of the {by} split"


def _log_densities(
    subjects: Sequence[Subject], stored: Mapping[str, Sequence[StoredPredictions]], by: str
) -> tuple[Floats, list[int]]:
    """The log densities [E, N] of known targets, nats, and how many of the E belong to each run.

    They are of members one by one; of rows held out they are of runs.
    """
    if by == HELD_OUT:
        sizes = [1] * len(subjects)
        rows = [read_held_out(one.work, one.report["num_train_examples"]) for one in subjects]
        found = -np.stack(rows)
    else:
        sizes = [len(one.members) for one in stored[by]]
        views = [said.view(one.likelihood) for one, said in zip(subjects, stored[by], strict=True)]
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
    return found, sizes


def _of_runs(found: Chosen) -> list[dict[str, Any]]:
    """What is said of each run beside the selection."""
    densities = np.split(found.log_densities, np.cumsum(found.sizes)[:-1])
    runs = []
    for i, (subject, weights) in enumerate(zip(found.subjects, found.weights_of, strict=True)):
        chosen = weights > 0
        run = {
            "workdir": os.fspath(subject.work.path),
            "method": subject.config["method"],
            "model": subject.config["model"],
            "num_members": len(weights),
            "members": np.asarray(subject.report["live_members"])[chosen].tolist(),
            "weights": weights[chosen].tolist(),
            "nll": loss(densities[i], np.ones(len(densities[i]), int)),
        }
        if "test" in found.stored:
            view = found.stored["test"][i].view(subject.likelihood)
            scores = score_split(view, intervals=False, names=["nll"])["scores"]
            run["test_nll"] = scores["nll"]["value"]
        runs.append(run)
    return runs


def write(out: Workdir, found: Chosen, also: Mapping[str, Any] | None = None) -> Selection:
    """Writes a choice into a workdir that is open, in the place of an earlier one.

    Args:
        out: the workdir.
        found: the choice.
        also: further entries of the report.

    Returns:
        The content of its report.json.
    """
    subjects, stored, weights_of = found.subjects, found.stored, found.weights_of
    parts = [
        Selected(
            subject.work,
            subject.work.identity(),
            [int(k) for k in np.asarray(subject.report["live_members"])[own > 0]],
            [float(one) for one in own[own > 0]],
            newest_step(subject.work),
        )
        for subject, own in zip(subjects, weights_of, strict=True)
        if own.any()
    ]
    first = next(one for one, own in zip(subjects, weights_of, strict=True) if own.any())
    config = ml_collections.FrozenConfigDict(first.config)
    weights = np.concatenate([np.asarray(one.weights) for one in parts])
    members = list(range(len(weights)))
    sections = {}
    sizes = dict(first.description["num_examples"])
    if found.by == "calibration":  # What is fitted to rows that have chosen would be too sure.
        del sizes[found.by]
    for file in (out.report, out.config):
        file.unlink(missing_ok=True)
    out.write_config(config, first.description["fingerprint"])
    write_selection(out, parts)
    out.predictions.mkdir(parents=True, exist_ok=True)
    for split, of_runs in stored.items():
        if split not in sizes:
            continue
        said = [
            one.said.of_members(np.flatnonzero(own).tolist())
            for one, own in zip(of_runs, weights_of, strict=True)
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
    report = {
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
        "notes": _notes(subjects, weights_of),
        "selection": {
            "by": found.by,
            "num_rows": found.log_densities.shape[1],
            **_losses(found.log_densities, found.sizes, found.counts),
            "runs": _of_runs(found),
        },
        **(also or {}),
    }
    out.write_report(report)
    return Selection(report)


def lines_of(report: dict[str, Any]) -> list[str]:
    """What was chosen, in lines."""
    found = report["selection"]
    place = "held-out rows" if found["by"] == HELD_OUT else f"the {found['by']} split"
    alone = min(one["nll"] for one in found["runs"])
    lines = [
        f"{one['workdir']} ({one['method']}, {one['model']}): {_chosen_of(one)}. NLL "
        f"{one['nll']:.4f} on {place}"
        + (f", {one['test_nll']:.4f} on the test split." if "test" in report else ".")
        for one in found["runs"]
    ]
    gains = found["cross_validated_nll"] < alone
    lines += [
        f"The selection of {report['num_members']}: NLL {found['nll']:.4f} on {place}, which it "
        f"was chosen by, and {found['cross_validated_nll']:.4f} by cross-validation, an optimism "
        f"of {found['optimism']:.4f}.",
        *([] if gains else [f"By that it is no better than the best run alone: {alone:.4f}."]),
    ]
    if "test" in report:
        best = min(one["test_nll"] for one in found["runs"])
        test = report["test"]["scores"]["nll"]["value"]
        lines.append(
            f"On the test split its NLL is {test:.4f}; that of the best run there is {best:.4f}."
        )
    return lines


def _chosen_of(run: dict[str, Any]) -> str:
    """Which members of a run were chosen, their weights in brackets."""
    if not run["members"]:
        return f"none of {run['num_members']} members"
    pairs = zip(run["members"], run["weights"], strict=True)
    each = ", ".join(f"{k} ({weight:.2f})" for k, weight in pairs)
    return f"member{'s' * (len(run['members']) > 1)} {each} of {run['num_members']}"
