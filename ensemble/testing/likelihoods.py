"""What every likelihood promises: its probabilities, its views, and what a workdir keeps of it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special

from ensemble.config import likelihood_block
from ensemble.errors import UserError
from ensemble.likelihood import HERE, Likelihood
from ensemble.likelihoods import described, of_data
from ensemble.likelihoods.number_prediction import LEVELS
from ensemble.likelihoods.parametric import MIN_SCALE
from ensemble.scoring.sections import member_terms, score_split, terms_of, values_in, values_of
from ensemble.testing.promises import Promise, demand, keep_all, promise

NUM_MEMBERS = 3
_RNG = np.random.default_rng(0)
REAL = (1 + 3 * _RNG.normal(size=12)).astype(np.float32)
POSITIVE = np.exp(1 + 0.6 * _RNG.normal(size=12)).astype(np.float32)
COUNTED = _RNG.negative_binomial(2, 0.2, 12).astype(np.float32)
SHARES = np.random.default_rng(1).uniform(0.02, 0.98, size=12).astype(np.float32)
LABELS = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1])
KINDS: Mapping[str, tuple[np.ndarray, tuple[str, ...]]] = {
    "real": (REAL, ()),
    "positive": (POSITIVE, ()),
    "share": (SHARES, ()),
    "count": (COUNTED, ()),
    "label": (LABELS, ("a", "b")),
}
"""Targets of each kind and their classes, the most general kind of numbers first."""


def default_settings(name: str) -> dict[str, Any]:
    """The default settings of a likelihood."""
    keys = likelihood_block(name).keys.items()
    return {key.removeprefix(f"{name}."): one.default for key, one in keys}


@dataclasses.dataclass(frozen=True)
class LikelihoodCase:
    """A likelihood of some targets.

    Attributes:
        name: of the likelihood.
        targets: [N] that it is made of.
        class_names: of labels; empty for numbers.
        settings: of `Likelihood.of_data`.
    """

    name: str
    targets: np.ndarray
    class_names: Sequence[str]
    settings: Mapping[str, Any]
    kind: str = "likelihood"

    @functools.cached_property
    def likelihood(self) -> Any:
        """Made of the targets."""
        return of_data(self.name, self.targets, self.class_names, **self.settings)

    @functools.cached_property
    def of_kind(self) -> str:
        """The most general kind of targets that it takes."""
        if self.class_names:
            return "label"
        for kind, (targets, classes) in KINDS.items():
            if not classes and _takes(self.name, targets, classes, self.settings):
                return kind
        raise UserError(
            f"the likelihood {self.name!r} takes the given targets, and none of the kinds "
            f"{', '.join(KINDS)}: its support is not known here"
        )

    @functools.cached_property
    def params(self) -> Any:
        """Parameters of its own, away from their start."""
        return jax.tree.map(lambda leaf: leaf + 0.1, self.likelihood.init(jax.random.key(0)))

    def outputs(self, *shape: int, seed: int = 3) -> jax.Array:
        """Outputs [*shape, K] of networks."""
        size = (*shape, self.likelihood.num_outputs)
        return jnp.asarray(np.random.default_rng(seed).normal(size=size), jnp.float32)

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What three members predict, [3, N, ...]."""
        outputs = self.outputs(NUM_MEMBERS, len(self.targets), seed=4)
        found = jax.jit(jax.vmap(self.likelihood.predict, in_axes=(None, 0)))(self.params, outputs)
        return {key: np.asarray(one) for key, one in found.items()}

    @functools.cached_property
    def support(self) -> tuple[np.ndarray, np.ndarray]:
        """Every target of the kind, or a fine grid of them, and the length each stands for."""
        if self.of_kind == "label":
            number = len(self.class_names)
            return np.arange(number), np.ones(number)
        if self.of_kind == "count":
            return np.arange(5000.0), np.ones(5000)
        at = np.linspace(-25, 25, 20_001)
        step = at[1] - at[0]
        if self.of_kind == "positive":
            return np.exp(at), np.exp(at) * step
        if self.of_kind == "share":
            at, step = 0.6 * at, 0.6 * step  # Float32 tells no shares apart nearer to 1.
            share = scipy.special.expit(at)
            return share, share * scipy.special.expit(-at) * step
        at, step = 0.48 * at, 0.48 * step
        middle, scale = np.mean(self.targets), np.std(self.targets) / 3
        return middle + scale * np.sinh(at), scale * np.cosh(at) * step


def _takes(name: str, targets: np.ndarray, classes: Sequence[str], settings: Any) -> bool:
    try:
        of_data(name, targets, classes, **settings)
    except UserError:
        return False
    return True


def likelihood_case(
    name: str,
    targets: np.ndarray | None = None,
    class_names: Sequence[str] = (),
    **settings: Any,
) -> LikelihoodCase:
    """A likelihood of targets as `check_likelihood` takes them.

    Raises:
        UserError: there is no such likelihood, or it takes no such targets.
    """
    settings = {**default_settings(name), **settings}
    if targets is not None:
        case = LikelihoodCase(name, np.asarray(targets), class_names, settings)
        _ = case.likelihood, case.of_kind  # Refuses what it cannot have.
        return case
    for of_kind, classes in KINDS.values():
        if _takes(name, of_kind, classes, settings):
            return LikelihoodCase(name, of_kind, classes, settings)
    raise UserError(
        f"the likelihood {name!r} takes targets of none of the kinds {', '.join(KINDS)}; give "
        "check_likelihood targets, and class_names where they are labels"
    )


def check_likelihood(
    name: str,
    targets: np.ndarray | None = None,
    class_names: Sequence[str] = (),
    **settings: Any,
) -> None:
    """Checks what every likelihood promises.

    Args:
        name: of a likelihood that is built in, registered or installed.
        targets: [N] that it is for, at least five. Left out: numbers, positive numbers, shares,
            counts, or labels of two classes, the first of these that it takes.
        class_names: of labels; empty for numbers.
        **settings: of `Likelihood.of_data`, beside the defaults of its keys.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such likelihood, or it takes no such targets.
    """
    keep_all(PROMISES, likelihood_case(name, targets, class_names, **settings))


_FOUND: list[Promise] = []


def _has_density(case: LikelihoodCase) -> bool:
    return bool(case.likelihood.has_density)


def _has_parts(case: LikelihoodCase) -> bool:
    return hasattr(case.likelihood, "log_density")


def _is_count(case: LikelihoodCase) -> bool:
    return case.of_kind == "count"


@promise(
    _FOUND,
    "the Block that its entry names",
)
def keys_have_its_name(case: LikelihoodCase) -> None:
    """Its keys of the configuration begin with its name and a dot."""
    for key in likelihood_block(case.name).keys:
        demand(key.startswith(f"{case.name}."), f"{key!r} does not begin with '{case.name}.'")


@promise(
    _FOUND,
    "log_density or class_log_probs: a constant that is left out, or a change of units",
    _has_density,
)
def total_probability_is_one(case: LikelihoodCase) -> None:
    """The probabilities of all targets sum, or integrate, to one."""
    targets, lengths = case.support
    if case.of_kind != "label":
        targets = targets.astype(np.float32)
    one = jax.vmap(case.likelihood.log_prob, in_axes=(None, None, 0))
    rows = np.broadcast_to(targets[:, None], (len(targets), 4))
    log_probs = jax.jit(one)(case.params, case.outputs(4), rows)
    total = np.exp(np.asarray(log_probs, np.float64)).T @ lengths
    np.testing.assert_allclose(total, 1, rtol=2e-3)


@promise(
    _FOUND,
    "predict, check_predictions, view, prediction, entry and as_columns",
)
def there_is_a_row_for_each_example(case: LikelihoodCase) -> None:
    """Predictions, scores and columns have a row for each example, and can be written as JSON."""
    likelihood, targets = case.likelihood, case.targets
    number, params = len(targets), case.params
    outputs = case.outputs(number)
    shape = likelihood.log_prob(params, outputs, targets).shape
    demand(shape == (number,), f"log_prob of {number} examples has the shape {shape}")
    predicted = likelihood.predict(params, outputs)
    lengths = {key: len(one) for key, one in predicted.items()}
    demand(set(lengths.values()) == {number}, f"predict of {number} examples: {lengths} rows")
    arrays = {key: np.stack([one, one]) for key, one in predicted.items()}
    likelihood.check_predictions(arrays, targets)
    view = likelihood.view(arrays, targets)
    scores = score_split(view)
    members = values_in(scores, "members")
    missing = set(likelihood.columns) - {"crps"} - members.keys()
    demand(not missing, f"members have no {', '.join(sorted(missing))}, which columns names")
    demand({len(one) for one in members.values()} == {2}, "a score is not of both members")
    losses = terms_of(view, likelihood.loss)
    demand(losses.shape == (number,), f"the terms of the loss have the shape {losses.shape}")
    terms = member_terms(view, likelihood.headline[0]).shape
    demand(terms == (2, number), f"terms of members have the shape {terms}, not {(2, number)}")
    np.testing.assert_allclose(np.mean(losses), values_in(scores)[likelihood.loss], rtol=1e-4)
    prediction = likelihood.prediction(arrays, None)
    rows = len(likelihood.uncertainty(prediction))
    demand(rows == number, f"uncertainty is of {rows} examples, not {number}")
    json.dumps(likelihood.entry(prediction, 0))
    columns = likelihood.as_columns(prediction)
    shapes = {key: one.shape for key, one in columns.items()}
    demand(set(shapes.values()) == {(number,)}, f"as_columns has the shapes {shapes}")
    json.dumps({key: one.tolist() for key, one in columns.items()}, allow_nan=False)


@promise(
    _FOUND,
    "what of prediction, view and exported does not heed weights",
)
def weights_count_as_members(case: LikelihoodCase) -> None:
    """A member of twice the weight counts as two members."""
    likelihood, arrays, targets = case.likelihood, case.arrays, case.targets
    twice = {key: one[[0, 1, 2, 2]] for key, one in arrays.items()}
    weights = np.array([1, 1, 2]) / 4
    weighted = likelihood.view(arrays, targets, weights=weights)
    losses = terms_of(likelihood.view(twice, targets), likelihood.loss)
    np.testing.assert_allclose(terms_of(weighted, likelihood.loss), losses, rtol=1e-6)

    def compare(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)

    one = likelihood.prediction(arrays, None, weights=weights)
    other = likelihood.prediction(twice, None)
    for field, found in one._asdict().items():
        if isinstance(found, np.ndarray) and not field.startswith("member"):
            compare(found, getattr(other, field))
    exported_of = jax.jit(lambda said, weights: likelihood.exported(said, None, weights=weights))
    exported = exported_of(arrays, jnp.asarray(weights, jnp.float32))
    for key, expected in exported_of(twice, None).items():
        if not key.startswith("member"):
            compare(exported[key], expected)
            compare(exported[key], getattr(one, key, expected))


@promise(
    _FOUND,
    "log_prob, which must be of targets in their own units, and log_density",
    _has_density,
)
def the_loss_is_what_is_learned(case: LikelihoodCase) -> None:
    """The loss of training is that of reports."""
    likelihood, targets = case.likelihood, case.targets
    outputs = case.outputs(len(targets))
    predicted = likelihood.predict(case.params, outputs).items()
    arrays = {key: np.asarray(one)[None] for key, one in predicted}
    learned = -float(likelihood.log_prob(case.params, outputs, targets).mean())
    view = likelihood.view(arrays, targets)
    reported = float(member_terms(view, likelihood.loss).mean(axis=1)[0])
    np.testing.assert_allclose(reported, learned, rtol=1e-4)
    np.testing.assert_allclose(values_of(view)["nll"], learned, rtol=1e-4)


@promise(
    _FOUND,
    "mixture_scores",
)
def mixtures_on_devices_are_those_of_reports(case: LikelihoodCase) -> None:
    """The loss of members together, some of which have failed, is that of reports of the others."""
    likelihood, arrays, targets = case.likelihood, case.arrays, case.targets
    scores = jax.jit(lambda *of: likelihood.mixture_scores(*of, HERE))
    for chosen in (np.array([True, True, True]), np.array([True, False, True])):
        failed = {key: one.copy() for key, one in arrays.items()}
        for one in failed.values():
            one[~chosen] = np.nan
        found = scores(failed, jnp.asarray(targets), jnp.asarray(chosen))[likelihood.loss]
        view = likelihood.view({key: one[chosen] for key, one in arrays.items()}, targets)
        expected = terms_of(view, likelihood.loss)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@promise(
    _FOUND,
    "describe and described, or described_settings",
)
def a_description_makes_the_same_likelihood(case: LikelihoodCase) -> None:
    """What `describe` writes is read back as the same likelihood."""
    likelihood, outputs = case.likelihood, case.outputs(len(case.targets))
    description = likelihood.describe()
    again: Likelihood = described(case.name, json.loads(json.dumps(description)))
    said = again.describe()
    demand(said == description, f"{description} became {said}")
    jax.tree.map(
        np.testing.assert_array_equal,
        likelihood.predict(case.params, outputs),
        again.predict(case.params, outputs),
    )


@promise(
    _FOUND,
    "what grows without bound, or rounds to 0: parametric.positive and parametric.bounded help",
)
def extreme_outputs_are_finite(case: LikelihoodCase) -> None:
    """Extreme outputs give finite probabilities, gradients and predictions, and positive scales."""
    likelihood, targets = case.likelihood, case.targets
    size = (len(targets), likelihood.num_outputs)
    outputs = jnp.asarray(np.random.default_rng(2).choice([-60.0, 0, 60.0], size), jnp.float32)
    params = likelihood.init(jax.random.key(0))

    def total(params: Any, outputs: Any) -> Any:
        return likelihood.log_prob(params, outputs, targets).sum()

    @jax.jit
    def all_of(params: Any, outputs: Any) -> Any:
        parts = likelihood.predict(params, outputs)
        variance = likelihood.variance(parts, jnp, likelihood.units[1]) if has_parts else None
        of_total = jax.value_and_grad(total, argnums=(0, 1))(params, outputs)
        return of_total, parts, variance

    has_parts = _has_parts(case)
    of_total, parts, variance = all_of(params, outputs)
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(of_total))
    demand(finite, "log_prob, or its gradient, is not finite where outputs are -60, 0 and 60")
    likelihood.check_predictions({key: np.asarray(one)[None] for key, one in parts.items()})
    if not has_parts:
        return
    demand(np.isfinite(variance).all(), "the variance is not finite")
    scale = parts["scale"] / likelihood.scale if "scale" in parts else np.sqrt(variance)
    demand((scale > 0.99 * MIN_SCALE).all(), f"a scale falls to {np.min(scale):.3g} deviations")


@promise(
    _FOUND,
    "log_density, cdf, mean and variance: use the arguments xp and special alone",
    _has_parts,
)
def both_sides_agree(case: LikelihoodCase) -> None:
    """JAX and NumPy give the same densities, CDFs and moments."""
    likelihood, targets = case.likelihood, case.targets
    on_host = {key: np.asarray(one, np.float64) for key, one in case.arrays.items()}

    def all_of(parts: Any, y: Any, xp: Any, special: Any) -> dict[str, Any]:
        return {
            "log_density": likelihood.log_density(parts, y, xp, special),
            "cdf": likelihood.cdf(parts, y, xp, special),
            "cdf between": likelihood.cdf(parts, y - 0.4, xp, special),  # Of counts.
            "mean": likelihood.mean(parts, xp),
            "variance": likelihood.variance(parts, xp),
            "variance in tens": likelihood.variance(parts, xp, 10.0),
        }

    expected = all_of(on_host, targets.astype(np.float64), np, scipy.special)
    on_devices = jax.jit(lambda parts, y: all_of(parts, y, jnp, jax.scipy.special))
    for key, found in on_devices(case.arrays, np.float32(targets)).items():
        atol = 0 if key.startswith(("mean", "variance")) else 3e-5
        np.testing.assert_allclose(found, expected[key], rtol=3e-5, atol=atol, err_msg=key)
    np.testing.assert_allclose(100 * expected["variance in tens"], expected["variance"], rtol=1e-9)


@promise(
    _FOUND,
    "cdf or count_cdf, mean and variance",
    _has_parts,
)
def the_cdf_and_moments_are_of_the_density(case: LikelihoodCase) -> None:
    """The CDF is the sum, or integral, of the density, and mean and variance are of it too."""
    likelihood, (y, lengths) = case.likelihood, case.support
    parts = {key: np.asarray(one[:, :1], np.float64) for key, one in case.arrays.items()}
    log_density = likelihood.log_density(parts, y, np, scipy.special)
    mass = np.exp(np.asarray(log_density, np.float64)) * lengths
    below = np.cumsum(mass, axis=-1) - (0 if _is_count(case) else mass / 2)
    cdf = likelihood.cdf(parts, y, np, scipy.special)
    np.testing.assert_allclose(cdf, below, atol=1e-3, err_msg="cdf")
    mean = np.asarray(likelihood.mean(parts, np))[:, 0]
    np.testing.assert_allclose(mass @ y, mean, rtol=1e-3, err_msg="mean")
    squares = mass * (y - mean[:, None]) ** 2
    few = len(y) // 20
    within = squares[:, 0 if _is_count(case) else few : -few].sum(axis=-1)
    if np.allclose(within, squares.sum(axis=-1), rtol=1e-4):  # A heavy tail goes beyond any grid.
        variance = np.asarray(likelihood.variance(parts, np))[:, 0]
        np.testing.assert_allclose(squares.sum(axis=-1), variance, rtol=2e-3, err_msg="variance")


@promise(
    _FOUND,
    "bracket, cdf or count_cdf, and closed_crps",
    _has_parts,
)
def crps_and_quantiles_are_of_the_mixture(case: LikelihoodCase) -> None:
    """Quantiles invert the CDF of the mixture of members, and the CRPS is the integral over it."""
    likelihood, arrays, targets = case.likelihood, case.arrays, case.targets
    exact = {key: np.asarray(one, np.float64) for key, one in arrays.items()}
    first = {key: one[:, :1] for key, one in exact.items()}
    y, lengths = case.support
    cdf = np.mean(likelihood.cdf(first, y, np, scipy.special), axis=0)
    quadrature = np.sum(lengths * (cdf - (y >= targets[0])) ** 2)
    crps = likelihood.distribution(arrays).crps(targets)[0]
    rtol = 1e-6 if _is_count(case) else 5e-3
    np.testing.assert_allclose(crps, quadrature, rtol=rtol, err_msg="crps")
    exported = jax.jit(likelihood.exported)(arrays, None)
    found = likelihood.prediction(arrays, None)
    for level, values in zip(LEVELS, found.quantiles.T, strict=True):
        at_value = np.mean(likelihood.cdf(exact, values, np, scipy.special), axis=0)
        if not _is_count(case):
            np.testing.assert_allclose(at_value, level, atol=1e-6, err_msg="quantiles")
            continue
        before = np.mean(likelihood.cdf(exact, values - 1, np, scipy.special), axis=0)
        holds = (at_value >= level - 1e-12).all() and (before < level).all()
        demand(holds, f"a quantile of level {level} is not the least count that reaches it")
        demand((values == np.floor(values)).all(), "a quantile is no whole number")
    for key in ("mean", "standard_deviation", "aleatoric", "epistemic", "quantiles"):
        np.testing.assert_allclose(
            exported[key], getattr(found, key), rtol=1e-3, atol=2e-3, err_msg=f"exported {key}"
        )
    demand(found.first(5).quantiles.shape == (5, len(LEVELS)), "first(5) is not of five")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of likelihoods, in order."""
