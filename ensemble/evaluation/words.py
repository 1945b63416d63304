"""What findings are in words: a sentence or two for each code.

Nothing is decided here: no number is compared with another, but to choose a singular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ensemble.errors import shown
from ensemble.pictures.plot_style import shorten
from ensemble.scoring.finding import Finding
from ensemble.scoring.score import digits, named

Numbers = Mapping[str, Any]

_SETS = {
    "constant": "inputs whose values are all equal",
    "uniform": "uniform random noise",
    "box": "rows whose columns are drawn independently from their ranges",
    "outside": "rows beyond the training range",
}
"""What inputs that are made for an evaluation are."""
_DETECTORS = {"entropy": "Entropy", "epistemic": "Members' disagreement"}
_METHODS = {
    "sets": "Conformal sets",
    "distance": "Split conformal intervals",
    "quantiles": "Conformalised quantile intervals",
}


def plural(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _who(n: Numbers) -> str:
    if n["noun"] == "chain":
        return f"The average over draws of {plural(n['num_members'], 'chain')}"
    return "The network" if n["num_members"] == 1 else f"The ensemble of {n['num_members']}"


def _pct(share: float | None, digits: int = 1) -> str:
    return "an unknown share" if share is None else f"{100 * share:.{digits}f}%"


def _ends(pair: Sequence[float], spec: str = ".4g", unit: str = "") -> str:
    return f"[{pair[0]:{spec}}{unit}, {pair[1]:{spec}}{unit}]"


def _pct_ends(pair: Sequence[float], digits: int = 1) -> str:
    return f"[{_pct(pair[0], digits)}, {_pct(pair[1], digits)}]"


def _of(n: Numbers) -> str:
    return f"{plural(n['num_rows'], 'test example')}"


def _few(n: Numbers) -> str:
    return f"{plural(n['num_groups'], 'group')} of {shown(n['column'])}"


def _shown(value: float, score: str) -> str:
    return named(score).shown(value)


def _right(n: Numbers) -> str:
    return f"{_who(n)} is right on {_pct(n['value'], 2)} of {_of(n)}"


def _quality(score: str, start: Callable[[Numbers], str]) -> dict[str, Callable[[Numbers], str]]:
    """The headline score of numbers, quantiles or several targets."""
    return {
        f"quality.{score}": lambda n: f"{start(n)} (95% interval {_ends(n['interval'])}).",
        f"quality.{score}_of_few_groups": lambda n: (
            f"{start(n)}. {_few(n)} are too few for an interval."
        ),
        f"quality.{score}_without_interval": lambda n: (
            f"{start(n)}. A few large errors decide it, so it has no interval."
        ),
    }


def _beside_member(n: Numbers) -> str:
    """The NLL beside the average member's; nothing of quantiles."""
    if n["nll"] is None:
        return ""
    nll, of_member = digits(n["nll"]), digits(n["nll_of_member"])
    return f" Its NLL is {nll} nats (average {n['noun']}: {of_member})."


def _gain_of(score: str, title: str) -> dict[str, Callable[[Numbers], str]]:
    def line(word: str) -> Callable[[Numbers], str]:
        return lambda n: (
            f"Its {title} is {_pct(n['share'])} {word} than the average {n['noun']}'s."
            f"{_beside_member(n)}"
        )

    return {f"gain.{word}_{score}": line(word) for word in ("lower", "higher")}


def _simplest(n: Numbers) -> str:
    return "the mean baseline" if n["score"] == "rmse" else "the baseline of training quantiles"


def _baselines(n: Numbers) -> str:
    """The errors of simpler predictors."""
    title = {"rmse": "an RMSE", "pinball": "a pinball loss"}[n["score"]]
    past = "".join(f", {what} {n[name]:.4g}" for name, what in _PAST.items() if name in n)
    if n["linear"] is None:
        return f"For comparison, {_simplest(n)} has {title} of {n['mean']:.4g}{past}."
    simplest = f"{_simplest(n)} {n['mean']:.4g}"
    return f"Linear regression has {title} of {n['linear']:.4g}, {simplest}{past}."


_PAST = {"last_value": "the last value", "last_season": "the value a season before"}


def _baseline(n: Numbers) -> str:
    """The simpler predictor that a finding is about."""
    return {"least_squares": "linear regression", "constant": _simplest(n), **_PAST}[n["name"]]


def _points(number: float) -> str:
    return f"{number:g} point" if number == 1 else f"{number:g} points"


def _temperature(n: Numbers, verb: str) -> str:
    return (
        f"Temperature scaling (T = {n['factor']:.2f}) {verb} the test NLL from "
        f"{digits(n['nll_before'])} to {digits(n['nll_after'])}"
    )


def _scale(n: Numbers, verb: str) -> str:
    return (
        f"Scaling the predicted spread by {n['factor']:.2f} {verb} the test NLL from "
        f"{digits(n['nll_before'])} to {digits(n['nll_after'])}"
    )


def _recalibration(
    factor: str, start: Callable[[Numbers, str], str]
) -> dict[str, Callable[[Numbers], str]]:
    def rows(n: Numbers) -> str:
        return f"{n['num_rows']:,} calibration examples"

    def open_answers(word: str, verb: str, link: str) -> dict[str, Callable[[Numbers], str]]:
        code = f"recalibration.{factor}_{word}"
        return {
            f"{code}_too_few_examples": lambda n: (
                f"{start(n, verb)}, {link} {rows(n)} are too few to prove a gain. Hold out more "
                "before you use it."
            ),
            f"{code}_too_few_groups": lambda n: (
                f"{start(n, verb)}, {link} the calibration split has too few groups to prove it."
            ),
            f"{code}_inconclusive": lambda n: (
                f"{start(n, verb)}. On {rows(n)} a gain is not significant. About "
                f"{n['needed']:,} would show {n['notable']:g} nats."
            ),
        }

    return {
        f"recalibration.{factor}_helps": lambda n: (
            f"{start(n, 'takes')}. Held-out calibration examples show a gain: use it."
        ),
        f"recalibration.{factor}_hurts": lambda n: f"{start(n, 'takes')}: leave it out.",
        f"recalibration.{factor}_needless": lambda n: (
            f"{start(n, 'takes')}. The {rows(n)} show no gain, and would most likely show one of "
            f"{n['notable']:g} nats: leave it out."
        ),
        **open_answers("lower", "lowers", "but"),
        **open_answers("higher", "raises", "and"),
    }


def _wrong_coverage(what: str) -> Callable[[Numbers], str]:
    return lambda n: f"{_covers(n)}: they are {what}."


def _covers(n: Numbers) -> str:
    return f"Its 90% intervals cover {_pct(n['coverage'])} {_pct_ends(n['interval'])} of targets"


def _pit(n: Numbers) -> str:
    return f"the PIT is {n['distance']:.3f} from uniform, p = {n['p_value']:.2g}"


def _band(n: Numbers) -> str:
    return (
        f"Bands of {n['percent']}% cover {_pct(n['coverage'])} {_pct_ends(n['interval'])} of "
        "targets"
    )


def _conformal(n: Numbers) -> str:
    method = _METHODS.get(n["method"], f"Conformalised bands of {n['method']}%")
    return f"{method} cover {_pct(n['coverage'])} of test targets"


def _size(n: Numbers) -> str:
    return f"with a mean size of {n['size']:.4g}"


def _shifted(n: Numbers) -> str:
    return f"{shown(n['kind'])} leaves {_pct(n['accuracy'])} right"


def _cost(n: Numbers) -> str:
    return f"{n['cost'][0]:.1f} to {n['cost'][1]:.1f} points less"


def _rmse_shift(n: Numbers) -> str:
    return (
        f"Among {n['number']} shifts at the middle severity, {shown(n['kind'])} has the largest "
        f"RMSE: {n['rmse']:.4g}. There 90% intervals cover {_pct(n['coverage'], 0)}."
    )


def _detected(n: Numbers) -> str:
    inputs = _SETS.get(n["set"], shown(n["set"]))
    return f"{inputs} ({plural(n['num_rows'], 'example')}; AUROC {n['auroc']:.3f} "


def _chains(n: Numbers) -> str:
    text = f"R-hat up to {n['rhat']:.3f}, bulk ESS from {n['ess']:.0f}"
    return text if n["ess_tail"] is None else f"{text}, tail ESS from {n['ess_tail']:.0f}"


def plain(value: float, digits: int = 2) -> str:
    """A number with so many significant digits, never in powers of ten."""
    text = f"{value:.{digits}g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def _signed(value: float) -> str:
    text = plain(value)
    return text if text.startswith("-") else f"+{text}"


def _change(n: Numbers) -> str:
    low, high = map(_signed, n["interval"])
    return f"{n['score']} {_signed(n['difference'])} [{low}, {high}]"


def _recipes(n: Numbers) -> str:
    return f"{_change(n)} over {n['over']}"


def _ways(n: Numbers, what: str) -> str:
    ways = [f"{n['examples']:,} {what}"] if n["examples"] else []
    ways += [f"{n['members']:,} members of each"] if n["members"] else []
    ways.append(f"{plain(n['times'])} times as many of both")
    return (
        f"Seeing a difference of {plain(n['margin'])} in 80% of cases takes about "
        f"{' or '.join(ways)}."
    )


def _share_of_one_more(n: Numbers) -> tuple[str, str, str]:
    """The least gain that is worth a member, the mean gain, and the interval of a single one."""
    low, high = n["share_interval"]
    ends = " to ".join(f"{round(100 * one, 1) + 0.0:+.1f}%" for one in (low, high))  # No -0.0.
    return _pct(n["least"], 0), _pct(n["share"]), ends


def _nats_of_one_more(n: Numbers) -> tuple[str, str, str]:
    low, high = map(_signed, n["interval"])
    return f"{plain(n['least'])} nats", f"{plain(n['gain'])} nats", f"{low} to {high}"


def _one_more(
    kind: str, told: Callable[[Numbers], tuple[str, str, str]]
) -> dict[str, Callable[[Numbers], str]]:
    """What one more member brings, by its gain in such a unit."""

    def gains(n: Numbers) -> str:
        _, gain, ends = told(n)
        start = f"One more {n['noun']} should lower the NLL by about {gain} on average"
        return f"{start}. For a single one the 95% interval is {ends}"

    return {
        f"next_member.stop_{kind}": lambda n: (
            f"One more {n['noun']} should lower the NLL by less than {told(n)[0]} on average. For "
            f"a single one the 95% interval is {told(n)[2]}: stop here."
        ),
        f"next_member.pays_{kind}": lambda n: f"{gains(n)}: more {n['noun']}s pay.",
        f"next_member.inconclusive_{kind}": lambda n: f"{gains(n)}, so it may not pay.",
    }


_GROUPS = "examples come in groups ({column})"

WORDS: Mapping[str, Callable[[Numbers], str]] = {
    # How good is it?
    "quality.accuracy": lambda n: f"{_right(n)} (95% interval {_pct_ends(n['interval'], 2)}).",
    "quality.accuracy_of_few_groups": lambda n: (
        f"{_right(n)}. {_few(n)} are too few for an interval."
    ),
    "quality.accuracy_without_interval": lambda n: f"{_right(n)}.",
    **_quality("rmse", lambda n: f"{_who(n)} has an RMSE of {n['value']:.4g} on {_of(n)}"),
    **_quality(
        "pinball", lambda n: f"{_who(n)} has a pinball loss of {n['value']:.4g} on {_of(n)}"
    ),
    **_quality("nll", lambda n: f"The NLL of all targets is {n['value']:.4g} nats on {_of(n)}"),
    "impossible.none": lambda n: f"Its NLL of {n['nll']:.4g} nats is finite.",
    "impossible.labels": lambda n: (
        f"Its NLL is infinite: it gave {plural(n['number'], 'label')} a probability of 0."
    ),
    "impossible.targets": lambda n: "Its NLL is infinite: it gave some targets a density of 0.",
    "gain.one_member": lambda n: (
        f"There is one {n['noun']}, so there is no average {n['noun']} to compare with."
    ),
    "gain.more_accurate": lambda n: (
        f"It gains {n['points']:.2f} points over the average {n['noun']}.{_beside_member(n)}"
    ),
    "gain.less_accurate": lambda n: (
        f"It loses {n['points']:.2f} points to the average {n['noun']}.{_beside_member(n)}"
    ),
    "gain.as_accurate": lambda n: (
        f"It is as accurate as the average {n['noun']}.{_beside_member(n)}"
    ),
    **_gain_of("rmse", "RMSE"),
    **_gain_of("pinball", "pinball loss"),
    "gain.lower_nll": lambda n: f"Averaging lowers the NLL.{_beside_member(n)}",
    "gain.higher_nll": lambda n: f"Averaging raises the NLL.{_beside_member(n)}",
    "majority.equal_classes": lambda n: "Classes are about equally frequent.",
    "majority.groups": lambda n: (
        f"Always answering {shown(shorten(n['name']))} is right on {_pct(n['share'], 2)}. The "
        f"difference is not tested: {_GROUPS.format(column=shown(n['column']))}."
    ),
    "majority.better": lambda n: (
        f"Always answering {shown(shorten(n['name']))}, the most frequent class, is right more "
        f"often: {_pct(n['share'], 2)}."
    ),
    "majority.worse": lambda n: (
        f"It beats always answering {shown(shorten(n['name']))}, the most frequent class, which "
        f"is right on {_pct(n['share'], 2)}."
    ),
    "majority.inconclusive": lambda n: (
        f"It is not distinguishable from always answering {shown(shorten(n['name']))}, which is "
        f"right on {_pct(n['share'], 2)}. About {n['needed']:,} examples would show "
        f"{_points(n['points'])}."
    ),
    "balance.equal_classes": lambda n: f"Balanced accuracy is {_pct(n['value'], 2)}.",
    "balance.groups": lambda n: (
        f"Balanced accuracy, the mean recall of the classes, is {_pct(n['value'], 2)}."
    ),
    "balance.accuracy": lambda n: (
        f"Balanced accuracy, the mean recall of the classes, is {_pct(n['value'], 2)} "
        f"{_pct_ends(n['interval'], 2)}."
    ),
    "baseline.no_data": lambda n: (
        "It is not compared with simple baselines: the data are not available here."
    ),
    "baseline.few_examples": lambda n: f"{_baselines(n)} {_of(n)} are too few to compare.",
    "baseline.better": lambda n: (
        f"{_baselines(n)} The ensemble is better than {_baseline(n)} by "
        f"{n['interval'][0]:.3g} to {n['interval'][1]:.3g}."
    ),
    "baseline.worse": lambda n: (
        f"{_baselines(n)} The ensemble is worse than {_baseline(n)} by "
        f"{n['interval'][0]:.3g} to {n['interval'][1]:.3g}."
    ),
    "baseline.inconclusive": lambda n: (
        f"{_baselines(n)} The ensemble is not distinguishable from {_baseline(n)} on "
        f"{n['num_rows']:,} examples (difference {n['interval'][0]:.3g} to "
        f"{n['interval'][1]:.3g})."
    ),
    "baseline.few_groups": lambda n: f"{_baselines(n)} {_few(n)} are too few to compare.",
    "baseline.heavy_tail": lambda n: (
        f"{_baselines(n)} A few large errors decide, so the comparison is inconclusive."
    ),
    # Its chains.
    "tempered.no": lambda n: "The likelihood is as it is defined.",
    "tempered.yes": lambda n: (
        f"The likelihood has temperature {n['temperature']:g}, so this is not the Bayesian "
        "posterior."
    ),
    "selection.members": lambda n: (
        f"Its {n['number']} weighted members were selected from {plural(n['runs'], 'run')} by the "
        f"{n['by']} split. By cross-validation its NLL there is {n['optimism']:.3g} nats too low."
    ),
    "convergence.ensemble": lambda n: "Its members were trained, not sampled.",
    "convergence.untold": lambda n: (
        "Convergence is unknown: there are too few draws, or they do not move."
    ),
    "convergence.one_chain": lambda n: (
        f"There is one chain of {n['num_samples']:,} draws: {_chains(n)}. One chain cannot show "
        "modes that it has not visited."
    ),
    "convergence.agree": lambda n: (
        f"Its {n['num_chains']} chains of {n['num_samples']:,} draws agree ({_chains(n)})."
    ),
    "convergence.few_chains_agree": lambda n: (
        f"Its {n['num_chains']} chains agree ({_chains(n)}). R-hat does not see a mode that no "
        "chain has found: of two equal ones, so few chains miss one in "
        f"{_pct(n['missed'], 0)} of runs."
    ),
    "convergence.disagree": lambda n: (
        f"Its {n['num_chains']} chains do not agree ({_chains(n)}), so intervals of the posterior "
        "may be wrong."
    ),
    "convergence.few_draws": lambda n: (
        f"Its {n['num_chains']} chains hold too few independent draws ({_chains(n)})."
    ),
    "monte_carlo.untold": lambda n: "The Monte Carlo error of the test NLL is unknown.",
    "monte_carlo.error": lambda n: (
        f"The test NLL is {digits(n['nll'])} nats; infinitely many draws would give between "
        f"{digits(n['interval'][0])} and {digits(n['interval'][1])}."
    ),
    # Can its uncertainty be trusted?
    "calibration.few_examples": lambda n: (
        f"{_of(n)} are too few to test calibration (confidence less accuracy: "
        f"{n['points']:+.1f} points)."
    ),
    "calibration.groups": lambda n: (
        "Calibration is not tested: the test assumes independent examples, and these come in "
        f"groups ({shown(n['column'])})."
    ),
    "calibration.overconfident": lambda n: (
        f"It is overconfident: mean confidence exceeds accuracy by {n['points']:.1f} points "
        f"{_ends(n['interval'], '.1f')}."
    ),
    "calibration.underconfident": lambda n: (
        f"It is underconfident: mean confidence is {n['points']:.1f} points "
        f"{_ends(n['interval'], '.1f')} below accuracy."
    ),
    "calibration.by_level": lambda n: (
        f"Its confidence is right on average but not at every level: ECE is {n['ece']:.3f}, and "
        f"chance alone seldom exceeds {n['ece_by_chance']:.3f}."
    ),
    "calibration.too_small": lambda n: (
        f"Calibration is inconclusive: confidence less accuracy is {n['points']:+.1f} points "
        f"{_ends(n['interval'], '+.1f')}. About {n['needed']:,} examples would show "
        f"{_points(n['margin'])}."
    ),
    "calibration.consistent": lambda n: (
        f"It is calibrated on average: confidence agrees with accuracy to within "
        f"{_points(n['margin'])}. An ECE of up to {n['ece_by_chance']:.3f} may be chance."
    ),
    "coverage.few_groups": lambda n: (
        f"Its 90% intervals cover {_pct(n['coverage'])} of these targets. {_few(n)} are too few "
        "to test calibration."
    ),
    "coverage.few_examples": lambda n: f"{_covers(n)}. {_of(n)} are too few to test calibration.",
    "coverage.groups_too_narrow": _wrong_coverage("too narrow, by an interval over groups"),
    "coverage.groups_too_wide": _wrong_coverage("too wide, by an interval over groups"),
    "coverage.groups_consistent": lambda n: (
        f"{_covers(n)}, which is consistent with 90% over groups of {shown(n['column'])}."
    ),
    "coverage.too_narrow": _wrong_coverage("too narrow, so it is overconfident"),
    "coverage.too_wide": _wrong_coverage("too wide, so it is underconfident"),
    "coverage.counts": lambda n: (
        f"{_covers(n)}. Intervals of counts include their ends, so this is as it should be."
    ),
    "coverage.wrong_shape": lambda n: (
        f"{_covers(n)}, but the predicted distributions have the wrong shape: {_pit(n)}."
    ),
    "coverage.censored": lambda n: f"{_covers(n)}, as far as censored targets let it be known.",
    "coverage.too_small": lambda n: (
        f"Calibration is inconclusive: 90% intervals cover {_pct(n['coverage'])} "
        f"{_pct_ends(n['interval'])}. With so few examples, coverage below "
        f"{_pct(n['noticed'], 0)} would be noticed in {_pct(n['power'], 0)} of cases."
    ),
    "coverage.consistent": lambda n: (
        f"It is calibrated as far as this test split tells: 90% intervals cover "
        f"{_pct(n['coverage'])} {_pct_ends(n['interval'])}. The PIT agrees (p = "
        f"{n['p_value']:.2g})."
    ),
    "bands.few_groups": lambda n: f"{_few(n)} are too few to test the coverage of bands.",
    "bands.none": lambda n: "No two of its levels are the ends of a central band.",
    "bands.few_examples": lambda n: f"{_band(n)}. {_of(n)} are too few to test coverage.",
    "bands.consistent": lambda n: f"{_band(n)}. No band is significantly wrong.",
    "bands.too_narrow": lambda n: f"{_band(n)}. Some of its bands are too narrow.",
    "bands.too_wide": lambda n: f"{_band(n)}. Some of its bands are too wide.",
    "bands.too_narrow_or_wide": lambda n: (
        f"{_band(n)}. Some of its bands are too narrow, others too wide."
    ),
    "targets.measured": lambda n: (
        f"{n['number']:,} of {_of(n)} have a measurement error, whose variance is added to each "
        "prediction before it is scored."
    ),
    "targets.censored": lambda n: (
        f"{n['number']:,} of {_of(n)} are censored. Coverage is a Kaplan-Meier estimate; without "
        f"its assumption it lies between {_pct(n['bounds'][0])} and {_pct(n['bounds'][1])}."
    ),
    "targets.few_distinct": lambda n: (
        f"The targets of {_of(n)} have only {n['number']} distinct values, so NLL and PIT say "
        "little: compare by CRPS and RMSE."
    ),
    "weights.none": lambda n: "It learned without class weights.",
    "weights.classes": lambda n: (
        "It learned with class weights, so its probabilities of rare classes are too high. One "
        "temperature cannot undo that."
    ),
    "weights.corrected": lambda n: (
        "It learned with class weights, for which its probabilities are corrected. Where rare "
        "classes matter, decide by a threshold on these or by costs."
    ),
    "recalibration.no_split": lambda n: "The run holds out no calibration split.",
    "recalibration.unfitted": lambda n: f"Recalibration is {n['reason']}.",
    **_recalibration("temperature", _temperature),
    **_recalibration("scale", _scale),
    "conformal.none": lambda n: "There are no conformal predictions.",
    "conformal.groups": lambda n: (
        f"{_conformal(n)}, {_size(n)}. The expected range assumes independent examples, and these "
        f"come in groups ({shown(n['column'])})."
    ),
    "conformal.sets_as_expected": lambda n: (
        f"{_conformal(n)}, {_size(n)}. This agrees with the guarantee of {_pct(n['level'], 0)}: "
        f"chance alone gives {_pct_ends(n['expected'])}."
    ),
    "conformal.intervals_as_expected": lambda n: (
        f"{_conformal(n)}, {_size(n)}. This agrees with the guarantee of {_pct(n['level'], 0)}: "
        f"chance alone gives {_pct_ends(n['expected'])}."
    ),
    "conformal.sets_outside": lambda n: (
        f"{_conformal(n)}, outside the expected {_pct_ends(n['expected'])}: calibration and test "
        "examples may differ."
    ),
    "conformal.intervals_outside": lambda n: (
        f"{_conformal(n)}, outside the expected {_pct_ends(n['expected'])}: calibration and test "
        "examples may differ."
    ),
    "strata.random": lambda n: "Rows are split at random.",
    "strata.time": lambda n: (
        f"Rows are split by time ({shown(n['column'])}), so conformal guarantees assume that "
        "later rows are like those of calibration."
    ),
    "strata.time_last_period": lambda n: (
        f"Rows are split by time ({shown(n['column'])}). In the last period, {shown(n['name'])}, "
        f"conformal predictions cover {_pct(n['share'])} {_pct_ends(n['interval'])}."
    ),
    "strata.time_last_period_outside": lambda n: (
        f"Rows are split by time ({shown(n['column'])}). In the last period, {shown(n['name'])}, "
        f"conformal predictions cover {_pct(n['share'])}, outside the expected "
        f"{_pct_ends(n['expected'])}: the latest rows are not like those of calibration."
    ),
    "strata.groups": lambda n: (
        f"Rows are split by {shown(n['column'])}, so conformal guarantees hold on average over "
        "groups, not in each."
    ),
    "strata.groups_differ": lambda n: (
        f"Conformal coverage differs significantly between {n['number']} groups of "
        f"{shown(n['column'])}: from {_pct(n['least'])} to {_pct(n['most'])}."
    ),
    "strata.groups_alike": lambda n: (
        f"Conformal coverage does not differ significantly between {n['number']} groups of "
        f"{shown(n['column'])} ({_pct(n['least'])} to {_pct(n['most'])})."
    ),
    # Does it know where it errs?
    "ranking.few_examples": lambda n: f"{_of(n)} are too few to rank by uncertainty.",
    "ranking.groups": lambda n: (
        "Whether uncertain predictions err more is not tested: examples come in groups "
        f"({shown(n['column'])})."
    ),
    "ranking.constant": lambda n: "It is equally uncertain of every example.",
    "ranking.right": lambda n: (
        "It errs more where it is less certain: rank correlation "
        f"{n['correlation']:.2f} {_ends(n['interval'], '.2f')}."
    ),
    "ranking.inverted": lambda n: (
        "It errs less where it is less certain, which is wrong: rank correlation "
        f"{n['correlation']:.2f} {_ends(n['interval'], '.2f')}."
    ),
    "ranking.inconclusive": lambda n: (
        "Whether it errs more where it is less certain is inconclusive: rank correlation "
        f"{n['correlation']:.2f} {_ends(n['interval'], '.2f')}."
    ),
    "abstention.groups": lambda n: (
        "No error rate is guaranteed for accepted predictions: examples come in groups "
        f"({shown(n['column'])})."
    ),
    "abstention.none_proved": lambda n: "The calibration split proves no target error rate.",
    "abstention.accepts_all": lambda n: (
        f"It meets a target error rate of {100 * n['max_error']:.3g}% without abstaining: "
        f"{_pct(n['error'], 2)} {_pct_ends(n['interval'], 2)} of test examples are wrong."
    ),
    "abstention.confidence": lambda n: (
        f"To meet a target error rate of {100 * n['max_error']:.3g}% with 95% confidence, it "
        f"abstains on {_pct(n['abstained'])} of test examples. It errs on {_pct(n['error'], 2)} "
        f"{_pct_ends(n['interval'], 2)} of the others."
    ),
    "abstention.widths": lambda n: (
        f"To miss by more than {n['tolerance']:.4g} on at most {100 * n['max_error']:.3g}%, it "
        f"abstains on {_pct(n['abstained'])}, where its interval is wider than "
        f"{n['max_width']:.4g}. Of the others {_pct(n['error'])} {_pct_ends(n['interval'])} miss."
    ),
    # What does it do on inputs unlike its training data?
    "shift.none": lambda n: "No shifted inputs were scored.",
    "shift.groups": lambda n: (
        "Whether shifts cost accuracy is not tested: examples come in groups "
        f"({shown(n['column'])})."
    ),
    "shift.harmless": lambda n: (
        f"At the middle severity, none of {n['number']} shifts costs more than {n['points']:g} "
        "points of accuracy."
    ),
    "shift.none_significant": lambda n: (
        f"At the middle severity, none of {n['number']} shifts costs accuracy significantly. The "
        f"lowest found: {_shifted(n)}, {_cost(n)}."
    ),
    "shift.others_significant": lambda n: (
        f"At the middle severity, accuracy falls significantly under {n['known']}. The lowest "
        f"found, which may be chance: {_shifted(n)}, {_cost(n)}."
    ),
    "shift.worst": lambda n: (
        f"Of {n['number']} shifts at the middle severity, {shown(n['kind'])} costs most: "
        f"{_pct(n['accuracy'])} are right, {_cost(n)}."
    ),
    "shift.lowest": lambda n: (
        f"Of {n['number']} shifts at the middle severity, {_shifted(n)}, the lowest found "
        f"({_cost(n)}). Others may cost as much."
    ),
    "shift.error_harmless": lambda n: (
        f"At the middle severity, none of {n['number']} shifts raises the RMSE by more than "
        f"{_pct(n['share'], 0)}."
    ),
    "shift.error_few_groups": lambda n: f"{_rmse_shift(n)} There are too few groups to test it.",
    "shift.error_heavy_tail": lambda n: f"{_rmse_shift(n)} A few large errors decide it.",
    "shift.error_higher": lambda n: (
        f"{_rmse_shift(n)} The shift raises the RMSE by {n['percent'][0]:.1f}% to "
        f"{n['percent'][1]:.1f}%."
    ),
    "shift.error_lower": lambda n: (
        f"{_rmse_shift(n)} The shift changes the RMSE by {n['percent'][0]:.1f}% to "
        f"{n['percent'][1]:.1f}%."
    ),
    "shift.error_inconclusive": lambda n: (
        f"{_rmse_shift(n)} The change is not significant ({n['percent'][0]:+.1f}% to "
        f"{n['percent'][1]:+.1f}%)."
    ),
    "detection.none": lambda n: "No out-of-distribution inputs were scored.",
    "detection.all": lambda n: (
        f"{_DETECTORS[n['score']]} detects all out-of-distribution inputs tried. The hardest: "
        f"{_detected(n)}{_ends(n['interval'], '.3f')})."
    ),
    "detection.inverted": lambda n: (
        f"{_DETECTORS[n['score']]} is lower on {_detected(n)}{_ends(n['interval'], '.3f')}) than "
        "on test data."
    ),
    "detection.worst": lambda n: (
        f"Hardest to detect by {_DETECTORS[n['score']].lower()} is "
        f"{_detected(n)}{_ends(n['interval'], '.3f')}). "
        f"Catching 95% of them also flags {_pct(n['flagged'])} "
        f"{_pct_ends(n['flagged_interval'])} of test examples."
    ),
    # Others.
    "comparison.none": lambda n: f"{shown(n['name'])} is not compared by its recipe.",
    "comparison.untold": lambda n: (
        f"Whether the recipe of {shown(n['name'])} is better is unknown: {n['reason']}."
    ),
    "comparison.better": lambda n: f"The recipe of {shown(n['name'])} is better: {_recipes(n)}.",
    "comparison.worse": lambda n: f"The recipe of {shown(n['name'])} is worse: {_recipes(n)}.",
    "comparison.no_worse": lambda n: (
        f"The recipe of {shown(n['name'])} is at most {_pct(n['share'], 0)} worse in "
        f"{n['score']}: {_recipes(n)}."
    ),
    "comparison.inconclusive": lambda n: (
        f"The recipe is not distinguishable from that of {shown(n['name'])}: {_recipes(n)}. A "
        f"difference of {plain(n['could_see'])} would have been significant in 80% of cases."
    ),
    "start.untold": lambda n: (
        "Whether the posterior is better than the ensemble that it starts from is unknown: "
        f"{n['reason']}."
    ),
    "start.better": lambda n: (
        f"The posterior is better than the ensemble that it starts from, {shown(n['name'])}: "
        f"{_recipes(n)}."
    ),
    "start.worse": lambda n: (
        f"The posterior is worse than the ensemble that it starts from, {shown(n['name'])}: "
        f"{_recipes(n)}. Use the ensemble."
    ),
    "start.inconclusive": lambda n: (
        "The posterior is not distinguishable from the ensemble that it starts from, "
        f"{shown(n['name'])}: {_recipes(n)}. A difference of {plain(n['could_see'])} would have "
        "been significant in 80% of cases."
    ),
    "these.not_asked": lambda n: "",
    "these.untold": lambda n: f"Nor is it known which of these two has the lower {n['score']}.",
    "these.lower": lambda n: (
        f"{shown(n['name'])} itself has the lower {n['score']}: {_change(n)} over examples."
    ),
    "these.higher": lambda n: (
        f"{shown(n['name'])} itself has the higher {n['score']}: {_change(n)} over examples."
    ),
    "these.inconclusive": lambda n: (
        f"The two ensembles themselves are not distinguishable: {_change(n)} over examples."
    ),
    "power.untold": lambda n: "",
    "power.enough": lambda n: (
        f"There are enough examples and members to see {plain(n['margin'])} in 80% of cases."
    ),
    "power.more_examples": lambda n: _ways(n, "test examples"),
    "power.more_groups": lambda n: _ways(n, "groups of test examples"),
    "next_member.none": lambda n: (
        f"What one more {n['noun']} would bring is not said of quantiles, nor of a selection."
    ),
    "next_member.one": lambda n: (
        f"One {n['noun']} cannot tell what a second would bring: run at least {n['fewest']}."
    ),
    "next_member.two": lambda n: (
        f"Two {n['noun']}s cannot tell what a third would bring: run one more to know."
    ),
    "next_member.untold": lambda n: (
        f"What one more {n['noun']} would bring is unknown: with fewer the NLL is infinite."
    ),
    **_one_more("share", _share_of_one_more),
    **_one_more("nats", _nats_of_one_more),
}
"""By code: the sentences of a finding, from its numbers."""

SILENT = frozenset(
    {
        "impossible.none",
        "majority.equal_classes",
        "balance.equal_classes",
        "weights.none",
        "tempered.no",
        "convergence.ensemble",
        "monte_carlo.untold",
        "recalibration.no_split",
        "conformal.none",
        "strata.random",
        "ranking.few_examples",
        "abstention.none_proved",
        "shift.none",
        "detection.none",
        "comparison.none",
        "these.not_asked",
        "power.untold",
        "power.enough",
        "power.more_examples",
        "power.more_groups",
        "next_member.none",
    }
)
"""Answers that a summary leaves out: what does not apply, or stands elsewhere on the page."""


def say(finding: Finding) -> str:
    """The sentences of a finding.

    Raises:
        KeyError: its code has no words.
    """
    return WORDS[finding.code](finding.numbers)
