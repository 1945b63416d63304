"""Compares methods on one network and one data set at equal training steps.

One network trains as configured. Each family then has as many steps in all, then four and sixteen
times as many, as far as the time reaches. Nothing else is tuned. Each is an ordinary run. The
validation split chooses the best; the test split only says how far the others are behind it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils.epath import PathLike

from ensemble.config import build, by_path
from ensemble.data.catalogue import complete
from ensemble.errors import InputError, TrainingError
from ensemble.report.table import digits, grid
from ensemble.storage.workdir import COMPARISON, Trial, Workdir
from ensemble.tuning.trials import UNWATCHED, Keys, Trials, open_trials

ROUNDS = (1, 4, 16)
"""Networks whose steps each family has, round after round."""
SINGLE = "single"
FAMILIES = (
    *(SINGLE, "deep_ensemble", "kfold_bagging", "mc_dropout", "batch_ensemble"),
    *("packed_ensemble", "snapshot_ensemble", "swag", "sghmc", "laplace"),
)
"""All families; those that start from others' networks come after these."""
STARTS = {"sghmc": "deep_ensemble", "laplace": SINGLE}
"""Families whose networks of the same round others start from."""
_WIDE_PRIOR = "*kernel=normal(8/sqrt(fan_in)), *=normal(1)"
"""The prior of `configs/mnist_sghmc.py`, with which a posterior predicts better than by He's."""


class MethodComparison(dict[str, Any]):
    """Result of `compare_methods`: its `rows` and the `recommendation`, shown as a table."""

    def __repr__(self) -> str:
        rows = self["rows"]
        titles = ["method", "networks", "members", "validation", "test", "95% CI", "seconds"]
        failed = [f"{row['name']} failed: {row['failure']}" for row in rows if row["failure"]]
        return "\n\n".join([grid(titles, [*map(_cells, rows)]), *failed, self["recommendation"]])


def _cells(row: Keys) -> list[str]:
    """A line of the table."""
    scores = ["-", "failed", "", ""]
    if details := row["details"]:
        value, low, high = (details["test"][one] for one in ("value", "low", "high"))
        interval = "" if low is None else f"{digits(low)} to {digits(high)}"
        scores = [str(details["members"]), digits(row["score"]), digits(value), interval]
    return [row["method"], str(row["times"]), *scores, f"{row['seconds']:.1f}"]


def compare_methods(
    config: Mapping[str, Any],
    time_limit: float | str = 600,
    workdir: PathLike | None = None,
    data: Any = None,
    *,
    methods: Sequence[str] | None = None,
    show_progress: bool = True,
) -> MethodComparison:
    """Trains families of methods at equal training steps, and recommends one.

    The same call resumes an interrupted comparison; with more seconds it goes on to longer
    training.

    Args:
        config: Keys of the network and its training, as of `train`; its method is replaced.
        time_limit: Seconds over all calls with this workdir; or a text such as `10m`. The first
            round is finished in any case.
        workdir: Directory of all runs, each in `runs/NAME`, and of trials.json; None keeps nothing.
        data: As of `train`; None: `config.dataset` names it.
        methods: Names of families to compare, such as `['swag', 'mc_dropout']`; None: all. Those
            that they start from, and the single network, are always compared.
        show_progress: If True, show the runs and the time left.

    Returns:
        `rows`, round after round by validation score, failed ones last, and the `recommendation`.

    Raises:
        InputError: The configuration, the data, the time or the workdir cannot be used.
        TrainingError: The single network could not be trained.
        Interrupted: SIGTERM or Ctrl-C; the same call resumes the comparison.
    """
    chosen = methods or FAMILIES
    for name in chosen:
        if name not in FAMILIES:
            raise InputError(f"methods={name} is not a family; choose from {', '.join(FAMILIES)}")
    names = {SINGLE, *chosen, *(STARTS.get(one, SINGLE) for one in chosen)}
    families = [one for one in FAMILIES if one in names]
    base = _network(config, data)
    rows, line = [], ""
    with open_trials(COMPARISON, base, data, time_limit, workdir, show_progress) as trials:
        for times in ROUNDS:
            ran = {one: trial for one in families if (trial := _run(trials, one, times))}
            ranked = sorted(ran.items(), key=lambda one: (one[1].score is None, one[1].score))
            rows += [{"method": one, "times": times, **trial._asdict()} for one, trial in ranked]
            if len(ran) < len(families):
                line += " The time is over. The same command with a longer time resumes."
                break
            line = _recommendation(*ranked[0])
    return MethodComparison(rows=rows, recommendation=line)


def _network(config, data) -> Keys:
    """The configuration of one network, flat.

    Raises:
        InputError: It cannot be built.
    """
    _, values = complete(by_path(config), {}, data)
    build(values)
    single = {"method": "deep_ensemble", "ensemble_size": 1}
    return dict(build({**values, **UNWATCHED}, single).values)


def settings_of(family: str, config: Keys, steps: int, times: int) -> Keys:
    """Returns the keys with which a family spends the steps of some networks.

    Args:
        family: Name in `FAMILIES`.
        config: Configuration that is compared.
        steps: Steps of one network.
        times: Number of networks whose steps it spends.
    """
    if family == "laplace":  # It trains nothing.
        return {"method": family}
    several = {SINGLE: 1, "deep_ensemble": max(2, times), "kfold_bagging": max(4, times)}
    several["swag"] = times
    number = several.get(family, max(1, times // 2))  # The others bear twice the length.
    length = max(1, steps * times // number)
    keys: Keys = {"method": "deep_ensemble" if family == SINGLE else family}
    if family == "sghmc":
        return {**keys, "num_chains": number, **_cyclical(config, length)}
    own: dict[str, Keys] = {
        "kfold_bagging": {
            "kfold_bagging.folds": number,
            "early_stopping_epochs": config.get("early_stopping_epochs") or 40,
        },
        "mc_dropout": {"dropout": 0.1} if config.get("dropout") == 0 else {},
        "snapshot_ensemble": {"snapshot_ensemble.num_cycles": min(5, max(2, length // 20))},
        "swag": {"swag.num_iterates": min(20, max(2, length // 4))},
    }
    keys |= {"num_steps": length, "num_epochs": 0, "ensemble_size": number}
    return keys | own.get(family, {})


def _cyclical(config: Keys, steps: int) -> Keys:
    """One cycle, which descends like networks by plain gradients."""
    draws = min(20, max(1, steps // 2))
    apart = max(1, (steps - steps // 4) // draws)
    keys = {
        "sgmcmc.schedule": "cyclical",
        "sgmcmc.num_burn_in": max(0, steps - draws * apart),
        "sgmcmc.num_samples": draws,
        "sgmcmc.steps_per_draw": apart,
    }
    if config["prior"] == "none":
        keys["prior"] = _WIDE_PRIOR
    if config["optimizer"] != "sgd":
        keys["learning_rate"] = 0.05
    return keys


def _run(trials: Trials, family: str, times: int) -> Trial | None:
    """Runs a family in a round; returns None if the time is over."""
    name, first = f"{family}_{times}", f"{SINGLE}_1"
    settings: dict = {}
    if name != first:  # It trains as configured, and the others as long.
        steps = trials.folder(first).newest_step
        settings |= settings_of(family, trials.config, steps, times)
    if family in STARTS:
        start = trials.folder(f"{STARTS[family]}_{times}")
        settings["init_from"] = os.path.abspath(start.path)
    trial = trials.run(name, settings, _score, must_end=times == ROUNDS[0])
    if name == first and trial is not None and trial.failure:
        raise TrainingError(trial.failure)
    return trial


def _score(out: Workdir, report: Keys) -> tuple[float, Keys]:
    """The validation score of a run, its CRPS or else its NLL, and its score of the test split.

    Raises:
        InputError: The run has no validation split, or neither metric.
    """
    metrics = report["metrics"]
    found = metrics.get("validation", {})
    name = "crps" if "crps" in found else "nll"
    if name not in found:
        raise InputError(
            "methods are compared by the NLL of classes or the CRPS of a number on a validation "
            "split. Set config.train_on_all=False, and one target with a likelihood such as "
            "'gaussian'"
        )
    members, test = len(report["active_members"]), metrics["test"][name]
    return found[name]["value"], {"members": members, "test": test}


def _recommendation(method: str, trial: Trial) -> str:
    """Which method to use, the best of a complete round, and how sure that is."""
    return (
        f"Use {method} (runs/{trial.name}): its validation score is lowest, "
        f"{digits(trial.score)}, of one seed. `ensemble evaluate --compare` shows which "
        "differences on the test split are significant."
    )
