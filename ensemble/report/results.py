"""What a finished run leaves: scores, predictions, pictures."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from ensemble.config import FORMAT
from ensemble.draws.store import Draws
from ensemble.errors import RunFailed
from ensemble.method import FAILURES, Examined, Info, Method, PredictingMethod, State, Status
from ensemble.notes import note
from ensemble.pictures import curves
from ensemble.pictures.plot_style import figure_to_png, plural
from ensemble.report.sections import sections_of
from ensemble.report.simple_predictors import MAX_PRODUCTS, score_simple
from ensemble.scoring.sections import VERSION, score_split
from ensemble.storage.files import write_file
from ensemble.storage.metrics_log import read_metrics
from ensemble.storage.predictions import MemberPredictions, write_predictions
from ensemble.storage.workdir import Workdir
from ensemble.task import Scored

logger = logging.getLogger("ensemble")

REPORTED_SPLITS = ("test", "validation")  # The most telling first.


def live_predictions(
    method: Method[State, Info], state: State, splits: Sequence[str], draws: Draws
) -> tuple[dict[str, MemberPredictions], dict[int, Status]]:
    """Predicts splits with the members, and leaves out those that have failed.

    A member whose parameters are finite but whose predictions are not has failed too.

    Args:
        method: of the run.
        state: of the method.
        splits: names.
        draws: that were kept so far.

    Returns:
        `(predictions, status)`: of the live members by split, and every member's status.

    Raises:
        RunFailed: no member is live.
    """
    predictions = {}
    if isinstance(method, PredictingMethod):
        predictions = {name: method.predict_split(state, name, draws) for name in splits}
    status = method.status(state)
    for one in predictions.values():
        for k, has_nan in zip(method.indices, one.have_nan(), strict=True):
            if has_nan:
                status[k] = Status.NON_FINITE
    live = [i for i, k in enumerate(method.indices) if status[k] not in FAILURES]
    if not live:
        raise all_failed(method, state, status, state.step)
    return {name: one.of_members(live) for name, one in predictions.items()}, status


def remedy(method: Method[State, Info], state: State) -> str:
    """What to try where members have failed: by the method, unless the fault is elsewhere."""
    fault = method.fault(state) if isinstance(method, Examined) else ""
    return fault or method.remedy


def all_failed(
    method: Method[State, Info], state: State, status: Mapping[int, Status], step: int
) -> RunFailed:
    """The end of a run whose members under way have all failed."""
    reasons = " or ".join(sorted({FAILURES[one] for one in status.values()}))
    return RunFailed(
        f"all of the {len(status)} {method.noun}s under way became {reasons} by step {step}; "
        f"{remedy(method, state)}"
    )


def log_stopped(stopped: Mapping[int, int], num_members: int, steps_per_epoch: int) -> None:
    """Logs how many members stopped early, and when.

    Args:
        stopped: steps that these had taken, by number.
        num_members: in all.
        steps_per_epoch: of the method.
    """
    if not stopped:
        return
    members = plural(num_members, "member")
    which = f"{len(stopped)} of {members}" if len(stopped) < num_members else f"All {members}"
    which = "The member" if num_members == 1 else which
    epochs = sorted({step // steps_per_epoch for step in stopped.values()})
    when = f"at epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"at epoch {epochs[0]}"
    logger.info(
        "%s stopped early, %s; the best weights of each are kept.",
        which,
        when,
        extra={"stays": True},
    )


def build_report(
    config: ml_collections.FrozenConfigDict,
    description: Mapping[str, Any],
    num_train_examples: int,
    scored: Scored | None,
    predictions: Mapping[str, MemberPredictions],
    status: Mapping[int, Status],
    timing: Mapping[str, float | None],
) -> dict[str, Any]:
    """Scores the live members and their mean.

    Args:
        config: of the run.
        description: of the task.
        num_train_examples: of the task.
        scored: what predictions are scored by, if there are any.
        predictions: of the live members, by split.
        status: of all members, by number.
        timing: seconds and rates, as they go into the report.

    Returns:
        The content of report.json.
    """
    failed = {k: FAILURES[s] for k, s in status.items() if s in FAILURES}
    sections = {} if scored is None else _sections(scored, predictions)
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": config.to_dict(),
        "dataset": dict(description),
        "method": config.method,
        "num_members": len(status),
        "live_members": [k for k in status if k not in failed],
        "failed_members": failed,
        "stopped_early": [k for k, s in status.items() if s == Status.STOPPED_EARLY],
        "num_train_examples": num_train_examples,
        **sections,
        "timing": dict(timing),
    }


def _sections(scored: Scored, predictions: Mapping[str, MemberPredictions]) -> dict[str, Any]:
    """The scores of each split, and `simple`, of what should be beaten on the most telling one."""
    source, likelihood = scored.dataset, scored.likelihood
    views = {
        name: predictions[name].view(likelihood, source.targets(name))
        for name in REPORTED_SPLITS
        if name in source.sizes
    }
    found: dict[str, Any] = {
        name: score_split(view, strata=source.strata(name)) for name, view in views.items()
    }
    if views and likelihood.is_of_numbers:
        split, view = next(iter(views.items()))
        strata = source.strata(split)
        groups = None if strata is None else strata.groups
        found["simple"] = score_simple(
            likelihood, source, split, view, groups=groups, max_products=MAX_PRODUCTS
        )
        if reason := found["simple"].get("last_season", {}).get("reason"):
            note(f"There is no row of the value a season before, as config.season asks: {reason}.")
    elif any(strata is not None and strata.season for strata in map(source.strata, views)):
        note("Classes have no row of the value a season before, as config.season asks: numbers do.")
    return found


def write_results(
    workdir: Workdir,
    scored: Scored | None,
    report: Mapping[str, Any],
    predictions: Mapping[str, MemberPredictions],
) -> None:
    """Writes predictions, plots and, last, the report that says that all is there."""
    workdir.predictions.mkdir(parents=True, exist_ok=True)
    workdir.plots.mkdir(parents=True, exist_ok=True)
    if scored is not None:
        for name, values in predictions.items():
            targets = scored.dataset.targets(name)
            path = workdir.predictions / f"{name}.npz"
            write_predictions(
                path,
                values,
                targets,
                report["live_members"],
                report["config"],
                identity=workdir.identity(),
                fingerprint=report["dataset"]["fingerprint"],
            )
        for name, figure in final_figures(workdir, scored, report, predictions).items():
            write_file(workdir.plots / f"{name}.png", figure_to_png(figure))
    workdir.write_report(report)


def final_figures(
    workdir: Workdir,
    scored: Scored,
    report: Mapping[str, Any],
    predictions: Mapping[str, MemberPredictions],
) -> dict[str, Any]:
    """Draws the pictures of a finished run from its predictions of each split."""
    panels = scored.likelihood.curves()
    figures = {"training": curves.training_curves(read_metrics(workdir.metrics), panels)}
    split = reported_split(report)
    if split is None:
        return figures
    for section in sections_of(report):
        figures |= section.figures(report)
    arrays, targets = predictions[split].arrays, scored.dataset.targets(split)
    return {
        **figures,
        **scored.likelihood.final_figures(arrays, targets, report[split]),
        **split_figures(scored, split, predictions[split]),
    }


def split_figures(scored: Scored, split: str, predictions: MemberPredictions) -> dict[str, Any]:
    """Draws the pictures of one split."""
    title = f"{scored.dataset.name} {split}"
    return dict(scored.likelihood.figures(predictions.arrays, scored.dataset, split, title))


def reported_split(report: Mapping[str, Any]) -> str | None:
    """The split whose scores say most: test, else validation; None where all is learned from."""
    return next((name for name in REPORTED_SPLITS if name in report), None)
