"""Convergence of chains by ArviZ: R-hat, ESS, MCSE and LOO; draws in the form that ArviZ takes.

R-hat and ESS are rank-normalised (Vehtari et al. 2021, https://doi.org/10.1214/20-BA1221). This
module alone knows that there are two generations of ArviZ: 0.2x, the last one for Python 3.11, and
1.x. ArviZ takes seconds to import and brings Matplotlib's pyplot along, so it is imported when it
is first needed.
"""

import functools
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy
from etils import epath

from ensemble.storage.files import write_file

MIN_DRAWS = 4
"""Draws of a chain without which nothing can be said about it."""

MIN_ESS = 100
"""Bulk ESS below which no interval is told, and no run ends as converged."""
GOOD_RHAT, GOOD_ESS = 1.01, 400
"""What Vehtari et al. 2021 ask of four chains: less than the one, and more than the other of both
bulk and tail ESS."""
AGREE, DISAGREE, TOO_FEW = "agree", "do not agree", "hold too few independent draws"
"""What can be said of chains."""

_MIN_BATCHES = 8
_FALSE_ALARMS = 0.01
_GAINED_BY_CENTRING = 4.0
"""Draws that an autoregressive sequence seems worth beyond what it is, about its own mean."""

SAMPLE_STATS = {
    "log_density": "lp",
    "is_divergent": "diverging",
    "num_gradients": "n_steps",
}
"""Names of ArviZ for diagnostics of a draw; the others have the same name there."""


class ScalarDiagnostics(NamedTuple):
    """Diagnostics of one scalar over all chains.

    Attributes:
        rhat: 1 if the chains agree; infinite if each stays at a value of its own.
        ess_bulk: how many independent draws locate its centre as well.
        ess_tail: the same for its 5% and 95% quantiles, the worse of the two.
        mean: over all draws.
        mcse: standard error of the mean, for the chains are finite.
    """

    rhat: float
    ess_bulk: float
    ess_tail: float
    mean: float
    mcse: float


class Diagnostics(NamedTuple):
    """Diagnostics of the worst scalars, and of each.

    NaN stands for what cannot be said: too few draws, or a scalar that is not finite throughout. It
    compares as false with any goal, so it never counts as converged.

    Attributes:
        rhat_max: over the scalars.
        rhat_worst: the scalar that has it; None if there is no scalar that varies.
        ess_bulk_min: over the scalars.
        ess_bulk_worst: the scalar that has it.
        ess_tail_min: over the scalars.
        ess_tail_worst: the scalar that has it.
        rhat_chance: what chains that agree would exceed in 1% of runs, in any of so many scalars.
        num_constant: scalars with one value in all draws of all chains, such as a probability that
            is always rounded to 1: nothing can be said of them, and they are left out.
        scalars: of each that is not left out.
    """

    rhat_max: float
    rhat_worst: str | None
    ess_bulk_min: float
    ess_bulk_worst: str | None
    ess_tail_min: float
    ess_tail_worst: str | None
    rhat_chance: float
    num_constant: int
    scalars: dict[str, ScalarDiagnostics]

    @property
    def ess_min(self) -> float:
        """The least ESS of bulk and tails, over the scalars."""
        return float(np.min([self.ess_bulk_min, self.ess_tail_min]))  # NaN is the least.


def summarise(scalars: Mapping[str, np.ndarray]) -> Diagnostics:
    """Diagnoses the draws after the warm-up.

    R-hat compares the halves of all chains. Of a single chain ArviZ gives none; here it is that of
    its two halves, which needs 8 draws and sees a drift, but no second mode.

    Args:
        scalars: [C, T] each, by name.

    Returns:
        The diagnostics.
    """
    varying: dict[str, ScalarDiagnostics] = {}
    num_constant = 0
    for name, values in scalars.items():
        values = np.asarray(values, np.float64)
        if values.shape[1] >= MIN_DRAWS and np.all(values == values.flat[0]):
            num_constant += 1
        else:
            varying[name] = _diagnose(values)
    rhat, least = _worst("rhat", max, varying)
    chance = math.nan
    if least is not None and math.isfinite(rhat):
        chance = _rhat_by_chance(np.asarray(scalars[least], np.float64), len(varying))
    bulk, tail = (_worst(field, min, varying) for field in ("ess_bulk", "ess_tail"))
    return Diagnostics(rhat, least, *bulk, *tail, chance, num_constant, varying)


def least_ess(posterior: Mapping[str, Any]) -> float:
    """The least ESS, of bulk and tails, of a report's entry `posterior`; NaN: unknown."""
    bulk = posterior["ess_bulk_min"]
    both = bulk, posterior.get("ess_tail_min", bulk)
    return math.nan if None in both else float(np.min(both))


def judge_chains(rhat: float, ess: float, rhat_chance: float | None = None) -> str:
    """What can be said of chains: `AGREE`, `DISAGREE` or `TOO_FEW`.

    Args:
        rhat: the largest; infinite where each chain stays at a value of its own.
        ess: the least ESS, of bulk and tails.
        rhat_chance: as in `Diagnostics`; None or NaN: unknown.
    """
    if rhat < GOOD_RHAT:
        return AGREE if ess > GOOD_ESS else TOO_FEW
    # Nothing is at most NaN.
    return TOO_FEW if rhat_chance is not None and rhat <= rhat_chance else DISAGREE


def _rhat_by_chance(values: np.ndarray, num_scalars: int) -> float:
    """`Diagnostics.rhat_chance` from the scalar [C, T] whose R-hat is the largest of so many.

    R-hat is about sqrt(1 + F / ESS of a half) (Vats & Knudson 2021, "Revisiting the Gelman-Rubin
    diagnostic"); F is a ratio of two variances.
    """
    freedom = 2 * len(values) - 1
    worth = _worth_of_half(values)
    level, freedom_within = 1 - _FALSE_ALARMS / num_scalars, (freedom + 1) * worth / 2
    quantile = float(scipy.stats.f.ppf(level, freedom, freedom_within))
    return math.sqrt(1 + quantile / worth)


def _worth_of_half(values: np.ndarray) -> float:
    """How many independent draws half a chain of [C, T] is worth, wherever the others are.

    Found about the mean of each half, where it seems worth more than it is; of the draws or of
    their distances from the median, whose R-hat counts too, whatever is worth less. Draws of hmc
    that jump from side to side are worth much, and their distances little.
    """
    half = values.shape[1] // 2
    if half < MIN_DRAWS:
        return math.nan
    worths = []
    for one in (values, np.abs(values - np.median(values))):
        scores = _normal_scores(one)
        halves = np.concatenate([scores[:, :half], scores[:, -half:]])
        centred = halves - halves.mean(axis=1, keepdims=True)
        worths.append(ess(centred, "identity") / len(halves))
    found = min(worths)
    return max(found - _GAINED_BY_CENTRING, _GAINED_BY_CENTRING / 8)


def _worst(
    field: str, choose: Callable[..., str], scalars: Mapping[str, ScalarDiagnostics]
) -> tuple[float, str | None]:
    """The worst value of a diagnostic and the scalar that has it; NaN is worse than any number."""
    values = {name: getattr(scalar, field) for name, scalar in scalars.items()}
    unknown = [name for name, value in values.items() if math.isnan(value)]
    if unknown or not values:
        return math.nan, unknown[0] if unknown else None
    name = choose(values, key=values.__getitem__)
    return values[name], name


def _diagnose(values: np.ndarray) -> ScalarDiagnostics:
    """Diagnoses one scalar [C, T] in float64."""
    num_draws = values.shape[1]
    if not np.isfinite(values).all() or num_draws == 0:
        return ScalarDiagnostics(*[math.nan] * 5)
    mean = float(values.mean())
    if num_draws < MIN_DRAWS:
        return ScalarDiagnostics(math.nan, math.nan, math.nan, mean, math.nan)
    # For the mean ArviZ takes a range of 1e-15 for a constant's: a probability's may be smaller.
    scale = float(np.ptp(values))
    with np.errstate(divide="ignore", invalid="ignore"):  # Without its middle it may be constant.
        return ScalarDiagnostics(
            rhat=_rhat(values),
            ess_bulk=ess(values, "bulk"),
            ess_tail=ess(values, "tail"),
            mean=mean,
            mcse=_number(import_arviz().mcse((values - mean) / scale, method="mean")) * scale,
        )


def ess(values: np.ndarray, method: str) -> float:
    """Effective sample size of a scalar [C, T]; the tail's is that of the 5% and 95% quantiles."""
    prob = {"prob": (0.05, 0.95)} if method == "tail" else {}
    return _number(import_arviz().ess(values, method=method, **prob))


def _number(result: Any) -> float:
    """The number that ArviZ returns; with Numba it may be an array."""
    return float(np.asarray(result).item())


def mean_interval(values: np.ndarray) -> tuple[float, float] | None:
    """A 95% interval for the mean of a scalar [C, T], by Student's t over means of batches.

    They are those of chains, or of equal parts of them where there are fewer than eight: whatever
    the autocorrelation within a batch, the spread of their means says how far the mean may be off
    (Flegal & Jones 2010, "Batch means and spectral variance estimators in MCMC").

    Args:
        values: [C, T].

    Returns:
        Its ends; None where it is not known: of a constant, of fewer than 8 draws of a chain, or
        of a bulk ESS of 100 or less.
    """
    is_short = values.shape[1] < max(MIN_DRAWS, _MIN_BATCHES)
    if is_short or not np.isfinite(values).all() or np.ptp(values) == 0:
        return None
    if not ess(values, "bulk") > MIN_ESS:
        return None
    num_parts = -(-_MIN_BATCHES // len(values))
    length = values.shape[1] // num_parts
    parts = values[:, values.shape[1] - num_parts * length :]
    means = parts.reshape(len(values) * num_parts, length).mean(axis=1)
    error = means.std(ddof=1) / math.sqrt(len(means))
    margin = float(scipy.stats.t.ppf(0.975, len(means) - 1) * error)
    return float(means.mean()) - margin, float(means.mean()) + margin


def _rhat(values: np.ndarray) -> float:
    """Rank-normalised split R-hat of one scalar [C, T] that is finite and varies."""
    arviz = import_arviz()
    num_chains, num_draws = values.shape
    if np.all(values == values[:, :1]):  # Rounding would make it finite.
        return math.inf
    if num_chains > 1:
        return _number(arviz.rhat(values, method="rank"))
    half = num_draws // 2
    if half < MIN_DRAWS:
        return math.nan
    halves = np.stack([values[0, :half], values[0, -half:]])
    folded = np.abs(halves - np.median(halves))
    return max(
        _number(arviz.rhat(_normal_scores(array), method="identity")) for array in (halves, folded)
    )


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Ranks over all draws, as quantiles of a normal distribution (Blom 1958)."""
    ranks = scipy.stats.rankdata(values).reshape(values.shape)
    return scipy.stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4))


def loo(log_likelihood: np.ndarray, efficiency: float) -> dict[str, Any]:
    """Leave-one-out cross-validation by PSIS (Vehtari, Gelman and Gabry 2017), in nats.

    Args:
        log_likelihood: [C, T, n], of n observations.
        efficiency: ESS of the parameters / number of draws.

    Returns:
        `elpd_loo`, its standard error `se_loo`, the effective number of parameters `p_loo`, and
        `num_bad_k`: observations whose Pareto k is above `good_k`, for which LOO is not reliable.
        `good_k` is 0.7, or of S draws 1 - 1 / log10(S) if that is less (Vehtari et al. 2024,
        "Pareto smoothed importance sampling").
    """
    arviz, is_old = import_arviz(), _is_old()
    data = to_arviz({"log_likelihood": to_dataset({"y": log_likelihood})})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `num_bad_k` says the same.
        found = arviz.loo(data, True, "y", efficiency, **({"scale": "log"} if is_old else {}))
    return {
        "elpd_loo": float(found.elpd_loo if is_old else found.elpd),
        "se_loo": float(found.se),
        "p_loo": float(found.p_loo if is_old else found.p),
        "good_k": float(found.good_k),
        "num_bad_k": int(np.sum(found.pareto_k.values > found.good_k)),
    }


def to_arviz(groups: Mapping[str, Any]) -> Any:
    """Returns groups of `to_dataset` in the form of the installed ArviZ.

    Returns:
        `arviz.InferenceData` of ArviZ 0.2x, `xarray.DataTree` of ArviZ 1.
    """
    if _is_old():
        return import_arviz().InferenceData(**groups)
    import xarray

    return xarray.DataTree.from_dict(dict(groups))


def to_dataset(
    arrays: Mapping[str, Any],
    draws: np.ndarray | None = None,
    dims: Mapping[str, list[str | None]] | None = None,
    *,
    is_data: bool = False,
) -> Any:
    """Lays out a group for `to_arviz`; a slash in a name becomes a dot.

    Args:
        arrays: [C, T, ...] by name; of data without the first two axes.
        draws: [T], numbers of the draws.
        dims: names of the axes after the first two, by name; None for an axis without a name.
        is_data: whether the arrays have no axes of chains and draws.

    Returns:
        `xarray.Dataset`; the attribute `site` of a variable has its name with slashes.
    """
    options: dict[str, Any] = {} if draws is None else {"coords": {"draw": draws}}
    if is_data:
        options["default_dims" if _is_old() else "sample_dims"] = []
    with warnings.catch_warnings():
        # A run of fewer draws than chains is no mistake.
        warnings.filterwarnings("ignore", "More chains|Found chain dimension", UserWarning)
        dataset = import_arviz().dict_to_dataset(
            {dotted(name): np.asarray(values) for name, values in arrays.items()},
            dims={dotted(name): axes for name, axes in (dims or {}).items() if name in arrays},
            **options,
        )
    for name in arrays:
        dataset[dotted(name)].attrs["site"] = name
    return dataset


def sample_stats(draw_info: Mapping[str, np.ndarray], draws: np.ndarray) -> Any:
    """The group `sample_stats` of ArviZ, from fields [C, T] of `DrawInfo`; draws: their numbers."""
    stats = {SAMPLE_STATS.get(name, name): np.asarray(values) for name, values in draw_info.items()}
    if "diverging" in stats:
        stats["diverging"] = stats["diverging"].astype(bool)
    return to_dataset(stats, draws)


def dotted(name: str) -> str:
    """A name as files of netCDF allow it, in which a slash parts groups."""
    return name.replace("/", ".")


def write_netcdf(path: epath.Path, data: Any) -> None:
    """Writes a file for `arviz.from_netcdf`, whole or not at all.

    Args:
        path: of the file, local or remote.
        data: of `to_arviz`.

    Raises:
        OSError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as directory:
        local = epath.Path(directory) / "posterior.nc"
        data.to_netcdf(os.fspath(local), engine="h5netcdf")
        write_file(path, local.read_bytes())


def _is_old() -> bool:
    """Whether ArviZ is 0.2x."""
    return import_arviz().__version__.startswith("0.")


@functools.cache
def import_arviz() -> Any:
    """Imports ArviZ without the notice that 0.2x gives once a day.

    It notes the day below the user's cache directory; if that is read-only, elsewhere.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz  # Seven seconds to import.
        except OSError:
            usual = os.environ.get("XDG_CACHE_HOME")
            with tempfile.TemporaryDirectory() as directory:
                os.environ["XDG_CACHE_HOME"] = directory
                try:
                    import arviz  # Once more.
                finally:
                    os.environ.pop("XDG_CACHE_HOME")
                    if usual is not None:
                        os.environ["XDG_CACHE_HOME"] = usual
    return arviz
