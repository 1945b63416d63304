"""What the scores of a finished run say against it, each with a likely cause and a remedy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ensemble.applications import DIVERGENT, MODES, SLOW
from ensemble.likelihood import is_corrected
from ensemble.pictures.plot_style import plural
from ensemble.report.advantage import Advantage, Beaten, advantage, beaten
from ensemble.report.results import reported_split
from ensemble.report.sections import sections_of
from ensemble.report.tuning import too_long, untuned
from ensemble.scoring.sections import values_in
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Scored

_IDLE = 0.05  # Acceptance rate of a chain that hardly moves.
_GOOD_SHARE = 0.2  # Of an independent draw: what a draw of chains that mix well is worth.
_MAX_LOST = 1.0  # Nats beyond a constant's, which weights do not bring about.
_MAX_MODES = 8
_RARE_SWAPS = 0.1  # Share of attempts, between neighbours of a ladder.
_MIN_SWAPPED = 20  # Draws, half of which try each pair.


def findings(
    report: Mapping[str, Any],
    scored: Scored | None,
    predictions: Mapping[str, MemberPredictions],
    losses: Mapping[int, float],
    remedy: str,
    remedy_of_failed: str = "",
) -> list[str]:
    """Looks for signs of a mistake in a report.

    Args:
        report: the content of report.json.
        scored: what predictions are scored by, if there are any.
        predictions: of the live members, by split.
        losses: the last training loss of each member that has one, nats.
        remedy: what to try where training has failed, such as 'lower config.learning_rate=0.1'.
        remedy_of_failed: the same for members that became non-finite; empty: as `remedy`.

    Returns:
        Lines; none where nothing is to be said.
    """
    found = _failures(report, remedy_of_failed or remedy) + _convergence(report) + _ladder(report)
    found += untuned(report) + too_long(report) + _diverged(report)
    for section in sections_of(report):
        found += section.findings(report)
    split = reported_split(report)
    if scored is None:
        return found
    of_classes = report.get("config", {}).get("class_weights", "none") != "none"
    has_weights = scored.dataset.train_weights is not None
    if has_weights or of_classes or not scored.likelihood.has_density:
        losses = {}  # They are weighted, or of standardised targets: a constant's are neither.
    if split is None:
        return found + _training(report, scored, losses, remedy)
    likelihood, targets = scored.likelihood, scored.dataset.targets(split)
    constant = beaten(likelihood, scored.dataset.targets("train"), targets)
    view = predictions[split].view(likelihood, targets)
    gain = advantage(view, constant, likelihood.loss)
    scores = values_in(report[split])
    has_diverged = scores[likelihood.loss] > constant.loss + _MAX_LOST
    is_worse = constant.higher_is_better and not gain.ensemble[0] > 0
    is_weighted = has_weights or (of_classes and not is_corrected(scored.likelihood))
    if is_weighted and is_worse and not has_diverged:
        return [*found, _of_weights(scores, split, constant)]
    return found + _scores(report, split, constant, gain, losses, remedy, likelihood.loss)


def _of_weights(scores: Mapping[str, float], split: str, constant: Beaten) -> str:
    """An ensemble that learned by weights, and is right less often than a constant."""
    return (
        f"On the {split} split the ensemble is not measurably more often right than "
        f"{constant.what}: {scores[constant.score]:.4g} against {constant.value:.4g}. It learned "
        "by weights, which may be meant to bring this about: go by the balanced accuracy and the "
        "classes' recalls of `evaluate`."
    )


def _failures(report: Mapping[str, Any], remedy: str) -> list[str]:
    """Members that are left out."""
    failed = report["failed_members"]
    if not failed:
        return []
    numbers = ", ".join(map(str, failed))
    reasons = " or ".join(sorted(set(failed.values())))
    return [
        f"{len(failed)} of {report['num_members']} became {reasons} and are left out: {numbers}; "
        f"{remedy}."
    ]


def _convergence(report: Mapping[str, Any]) -> list[str]:
    """Chains that disagree."""
    posterior = report.get("posterior", {})
    rhat, ess = posterior.get("rhat_max"), posterior.get("ess_bulk_min")
    if rhat is None or ess is None or not {"num_warmup", "remedy"} & posterior.keys():
        return []
    if np.isnan(rhat):
        return []
    # Of chains alone.
    from ensemble.draws.diagnostics import (
        AGREE,
        DISAGREE,
        GOOD_ESS,
        GOOD_RHAT,
        judge_chains,
        least_ess,
    )

    chance, least = posterior.get("rhat_chance"), least_ess(posterior)
    told = judge_chains(rhat, least, chance)
    if told == AGREE:
        return []
    by_chance = ""
    if told == DISAGREE and chance is not None and np.isfinite(chance):
        by_chance = f", and chance brings it to {chance:.3f} in 1% of runs"
    if np.isinf(rhat):
        by_chance = ", for each chain stays at a value of its own"
    of_tails = "" if least > GOOD_ESS or ess <= GOOD_ESS else f", the tail ESS from {least:.0f}"
    who = "halves of the chain" if posterior.get("num_chains") == 1 else "chains"
    return [
        f"The {who} {told}: R-hat is up to {rhat:.3f} (below {GOOD_RHAT:g} "
        f"is good{by_chance}) and the bulk ESS from {ess:.0f}{of_tails} (above {GOOD_ESS} is "
        f"good). Intervals and averages of these draws may be off. "
        f"{_what_to_do(report, posterior, told)}"
    ]


def _what_to_do(report: Mapping[str, Any], posterior: Mapping[str, Any], told: str) -> str:
    """The likely reason why chains have not converged, and what helps against it."""
    from ensemble.draws.diagnostics import DISAGREE, least_ess  # Of chains alone.

    live = report["live_members"]
    longer = posterior.get("remedy") or (
        f"Raise config.sampler.num_samples={posterior['num_samples']}, or in a new workdir "
        f"config.sampler.num_warmup={posterior['num_warmup']}"
    )
    accepted = posterior.get("accept_by_chain") or []
    idle = [live[i] for i, rate in enumerate(accepted) if rate < _IDLE]
    if idle:
        rates = ", ".join(f"{rate:.0%}" for rate in accepted if rate < _IDLE)
        return (
            f"{plural(len(idle), 'chain')} of {len(live)} hardly moved: "
            f"{', '.join(map(str, idle))}, with {rates} accepted. {longer}, or start elsewhere "
            "with config.init_from."
        )
    if posterior.get("modes"):
        return _of_modes(posterior, report)
    if too_long(report):
        return "Begin with the step size, below."
    if posterior.get("divergences"):
        return f"Begin with the draws that diverged, below. {longer} where there are none."
    num_draws = len(live) * posterior.get("num_samples", np.inf)
    if told != DISAGREE and least_ess(posterior) > _GOOD_SHARE * num_draws:
        return f"Each draw is worth much, and they are too few. {longer}."
    others = _own_remedy(report, SLOW) or (
        "start from trained members with config.init_from, or choose a smaller network"
    )
    return f"The chains mix slowly. {longer}, {others}."


def _own_remedy(report: Mapping[str, Any], fault: str) -> str:
    """What a section of the report knows against a fault of chains; empty: nothing."""
    return "".join(section.remedy(report, fault) for section in sections_of(report))


def _of_modes(posterior: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """What to do about chains that stay in modes of their own."""
    chains = "; ".join(
        f"{', '.join(str(report['live_members'][i]) for i in group)}"
        for group in posterior["modes"][:_MAX_MODES]
    )
    more = "; ..." if len(posterior["modes"]) > _MAX_MODES else ""
    if "ladder" in report:
        remedy = "raise config.ladder.num_replicas, or start wider"
    else:
        remedy = _own_remedy(report, MODES) or (
            "take the chains as an ensemble and their intervals for nothing more, for longer ones "
            "will hardly leave their modes"
        )
    return (
        f"The chains sit in {len(posterior['modes'])} separate modes ({chains}{more}), which "
        f"{posterior['modes_scalar']} tells apart, and each stays in its own, so the weights of "
        f"the modes are not known: {remedy}."
    )


def _ladder(report: Mapping[str, Any]) -> list[str]:
    """Neighbouring temperatures that hardly swap their replicas."""
    if "ladder" not in report or report["posterior"]["num_samples"] < _MIN_SWAPPED:
        return []
    rates = np.asarray(report["ladder"]["swap_rates"])
    if rates.min() >= _RARE_SWAPS:
        return []
    chain, place = np.unravel_index(np.argmin(rates), rates.shape)
    number = report["config"]["ladder"]["num_replicas"]
    return [
        f"Replicas {place} and {place + 1} of chain {chain} swapped in "
        f"only {rates.min():.1%} of attempts: the ladder is too coarse to carry draws between "
        f"modes; raise config.ladder.num_replicas={number}, or config.sampler.num_warmup."
    ]


def _diverged(report: Mapping[str, Any]) -> list[str]:
    """Draws that diverged."""
    posterior = report.get("posterior", {})
    if not posterior.get("divergences") or too_long(report):
        return []
    if "energy_variance" in posterior:  # Every step is accepted, whatever acceptance is asked for.
        remedy = "Compare with config.method='adjusted_mclmc'."
    else:
        target = report["config"]["sampler"]["target_acceptance"]
        remedy = (
            f"Raise config.sampler.target_acceptance={target:g} to such as 0.95"
            f"{_own_remedy(report, DIVERGENT)}."
        )
    return [
        f"{plural(posterior['divergences'], 'draw')} diverged: the posterior has places that "
        f"are too narrow for the step size, and their values may be missing here. {remedy}"
    ]


def _training(
    report: Mapping[str, Any], scored: Scored, losses: Mapping[int, float], remedy: str
) -> list[str]:
    """A training loss, where nothing is held out, that is not below that of a constant."""
    config = report["config"]
    is_plain = all(config.get(key, plain) == plain for key, plain in _PLAIN.items())
    values = [loss for loss in losses.values() if np.isfinite(loss)]
    if not values or not is_plain or config.get("teacher"):  # It is another loss than the NLL.
        return []
    targets = scored.dataset.targets("train")
    constant = beaten(scored.likelihood, targets, targets)
    if np.median(values) < constant.loss:
        return []
    return [
        f"After training, the loss is not below the {constant.loss:.3g} nats of {constant.what}. "
        f"{_cause(losses, constant, remedy)}"
    ]


_PLAIN = {"label_smoothing": 0.0, "prior": "none"}


def _scores(
    report: Mapping[str, Any],
    split: str,
    constant: Beaten,
    gain: Advantage,
    losses: Mapping[int, float],
    remedy: str,
    loss: str,
) -> list[str]:
    """The ensemble or members that are no better than a constant."""
    members, scores = values_in(report[split], "members"), values_in(report[split])
    is_of_classes = constant.higher_is_better
    lost, too_sure = [], []
    for i, k in enumerate(report["live_members"]):
        is_better = gain.members[i][0] > 0 or (not is_of_classes and gain.member_losses[i][0] > 0)
        if not is_better:
            lost.append(k)
        elif loss == "nll" and members[loss][i] > constant.loss + _MAX_LOST:
            too_sure.append(k)
    tells = gain.loss[0] > 0
    if not gain.ensemble[0] > 0 and (is_of_classes or not tells):
        cause = _cause(losses, constant, remedy)
        if tells:
            cause = (
                f"Its NLL of {scores[loss]:.4g} nats is better than the {constant.loss:.4g} of "
                "that, so it does tell classes apart: go by its probabilities, with a threshold "
                "of your own where rare classes matter."
            )
        return [
            f"On the {split} split the ensemble is not measurably better than {constant.what}: "
            f"{_beside(scores, constant, loss)}. {cause}"
        ]
    found = []
    score = "accuracy" if is_of_classes else "RMSE"
    for group, verbs, said in (
        (lost, ("is", "are"), f"not measurably better than {constant.what}"),
        (too_sure, ("has", "have"), f"a worse NLL than {constant.what}, though a better {score}"),
    ):
        if group:
            of_group = {k: one for k, one in losses.items() if k in group}
            verb = verbs[len(group) > 1]
            found.append(
                f"On the {split} split {plural(len(group), 'member')} of "
                f"{len(report['live_members'])} {verb} {said}: {', '.join(map(str, group))}. "
                f"{_cause(of_group, constant, remedy)}"
            )
    if gain.loss[1] < 0:
        title, unit = ("NLL", " nats") if loss == "nll" else (loss, "")
        found.append(
            f"On the {split} split the ensemble's {title} of {scores[loss]:.4g}{unit} is worse "
            f"than the {constant.loss:.4g} of {constant.what}: its probabilities may be too "
            "sure. Train for a shorter time, set config.early_stopping_epochs, or give more data."
        )
    return found


def _beside(scores: Mapping[str, float], constant: Beaten, loss: str) -> str:
    """What was compared: the headline score, and of numbers the loss that was learned."""
    found = {constant.score: constant.value}
    if not constant.higher_is_better:
        found[loss] = constant.loss
    titles = {"rmse": "RMSE", "nll": "NLL"}
    lines = [
        f"{titles.get(name, name)} {scores[name]:.4g} against {value:.4g}"
        for name, value in found.items()
    ]
    if len(lines) > 1:  # The table's constant is normal, whatever was learned.
        lines[-1] += " of one distribution of its kind that all inputs share"
    return ", ".join(lines)


def _cause(losses: Mapping[int, float], constant: Beaten, remedy: str) -> str:
    """The likely cause: the training loss tells, beside the NLL of a constant."""
    values = [loss for loss in losses.values() if np.isfinite(loss)]
    if not values:
        return "Check that inputs and targets belong together."
    loss = float(np.median(values))
    if loss > constant.loss + max(1, abs(constant.loss)):
        return f"The training loss has diverged, to {loss:.3g} nats: {remedy}."
    if loss < constant.loss - max(0.1, 0.5 * abs(constant.loss)):
        return (
            f"The training loss is low, {loss:.3g} nats, so the members know the training examples "
            "by heart: give more data, or check that the splits are alike."
        )
    return (
        f"The training loss is {loss:.3g} nats, beside {constant.loss:.3g} of a constant: check "
        f"that inputs and targets belong together, train longer, or {remedy}."
    )
