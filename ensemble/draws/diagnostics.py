"""Convergence of chains by ArviZ: R-hat, ESS, MCSE and LOO; draws in the form that ArviZ takes.

R-hat and ESS are rank-normalised (Vehtari et al. 2021, https://doi.org/10.1214/20-BA1221). This
module alone knows that there are two generations of ArviZ: 0.2x, the last one for Python 3.11, and
1.x. ArviZ takes seconds to import and brings Matplotlib's pyplot along, so it is imported when it
is first needed.
"""

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from ensemble.storage.files import write_file

MIN_DRAWS = 4
"""Draws of a chain without which nothing can be said about it."""

MIN_ESS = 100
"""Bulk ESS below which no interval is told, and no run ends as converged."""
GOOD_RHAT = 1.01
BAD_RHAT = 1.1
GOOD_ESS = 400
"""Vehtari et al. 2021 ask of four chains less than the first, and more than the last of both bulk
and tail ESS. Short chains that agree mostly stay below the second."""
AGREE = "agree"
DISAGREE = "do not agree"
TOO_FEW = "hold too few independent draws"
"""What can be said of chains."""
NORMAL_95 = 1.96
"""Standard errors on either side of an estimate that an interval of 95% reaches."""

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

    @property
    def interval(self) -> tuple[float, float] | None:
        """A 95% interval for the mean; None of a bulk ESS of 100 or less."""
        margin = NORMAL_95 * self.mcse
        return (self.mean - margin, self.mean + margin) if self.ess_bulk > MIN_ESS else None


_UNKNOWN = ScalarDiagnostics(*[math.nan] * 5)


class Diagnostics(NamedTuple):
    """Diagnostics of the worst scalars, and of each.

    NaN stands for what cannot be said: too few draws, or a scalar that is not finite throughout. It
    compares as false with any goal, so it never counts as converged.

    Attributes:
        rhat_max: Largest R-hat of the scalars.
        rhat_worst: Scalar that has it; None if there is no scalar that varies.
        ess_bulk_min: Least bulk ESS of the scalars.
        ess_tail_min: Least tail ESS of the scalars.
        num_constant: Scalars with one value in all draws of all chains, such as a probability that
            is always rounded to 1: nothing can be said of them, and they are left out.
        scalars: Diagnostics of each that is not left out.
    """

    rhat_max: float
    rhat_worst: str | None
    ess_bulk_min: float
    ess_tail_min: float
    num_constant: int
    scalars: dict[str, ScalarDiagnostics]

    @property
    def ess_min(self) -> float:
        """The least ESS of bulk and tails, over the scalars."""
        return float(np.min([self.ess_bulk_min, self.ess_tail_min]))  # NaN is the least.


def summarise(scalars: Mapping[str, np.ndarray]) -> Diagnostics:
    """Diagnoses the draws after the warm-up.

    Args:
        scalars: [C, T] each, by name.

    Returns:
        The diagnostics.
    """
    varying = {}
    for name, values in scalars.items():
        if np.shape(values)[1] < MIN_DRAWS or np.any(values != values.flat[0]):
            varying[name] = _diagnose(np.asarray(values, np.float64))
    table = np.array([*varying.values()] or [_UNKNOWN])
    place = int(np.nan_to_num(table[:, 0], nan=math.inf).argmax())  # NaN is the worst,
    rhat = float(table[place, 0])
    bulk, tail = table[:, 1:3].min(axis=0).tolist()  # and the least.
    num_constant = len(scalars) - len(varying)
    return Diagnostics(rhat, [*varying, None][place], bulk, tail, num_constant, varying)


def least_ess(posterior: Mapping[str, Any]) -> float:
    """The least ESS, of bulk and tails, of a report's entry `posterior`; NaN: unknown."""
    bulk = posterior["ess_bulk_min"]
    return float(np.min(np.array([bulk, posterior.get("ess_tail_min", bulk)], np.float64)))


def judge_chains(rhat: float, ess: float) -> str:
    """What can be said of chains: `AGREE`, `DISAGREE` or `TOO_FEW`.

    Args:
        rhat: the largest; infinite where each chain stays at a value of its own.
        ess: the least ESS, of bulk and tails.
    """
    if rhat < GOOD_RHAT and ess > GOOD_ESS:
        return AGREE
    return TOO_FEW if rhat < BAD_RHAT else DISAGREE  # NaN is not below.


def _diagnose(values: np.ndarray) -> ScalarDiagnostics:
    """Diagnoses one scalar [C, T] in float64."""
    if values.shape[1] < MIN_DRAWS or not np.isfinite(values).all():
        return _UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):  # Without its middle it may be constant.
        return ScalarDiagnostics(
            *(split_rhat(values), ess(values, "bulk"), ess(values, "tail")),
            *(float(values.mean()), mcse(values)),
        )


def ess(values: np.ndarray, method: str) -> float:
    """Effective sample size of a scalar [C, T]; the tail's is that of the 5% and 95% quantiles."""
    prob = {"prob": (0.05, 0.95)} if method == "tail" else {}
    return _number(import_arviz().ess(values, method=method, **prob))


def mcse(values: np.ndarray) -> float:
    """Standard error of the mean of a scalar [C, T]."""
    scale = float(np.ptp(values))
    centred = values - values.mean()
    if scale == 0:
        return 0.0
    # ArviZ takes a range of 1e-15 for a constant's: a probability's may be smaller.
    return _number(import_arviz().mcse(centred / scale, method="mean")) * scale


def _number(result: Any) -> float:
    """The number that ArviZ returns; with Numba it may be an array."""
    return float(np.asarray(result).item())


def split_rhat(values: np.ndarray) -> float:
    """Rank-normalised split R-hat of one scalar [C, T] that is finite.

    Of a single chain ArviZ gives none; here its two halves stand for two chains, which needs 8
    draws and sees a drift, but no second mode.
    """
    if np.all(values == values[:, :1]):  # Rounding would make it finite.
        return math.inf
    if len(values) == 1:
        half = values.shape[1] // 2
        values = np.concatenate([values[:, :half], values[:, -half:]])
    return _number(import_arviz().rhat(values)) if values.shape[1] >= MIN_DRAWS else math.nan


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
    arviz = import_arviz()
    is_old = _is_old()
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
    *,
    is_data: bool = False,
) -> Any:
    """Lays out a group for `to_arviz`; a slash in a name becomes a dot.

    Args:
        arrays: [C, T, ...] by name; of data without the first two axes.
        draws: [T], numbers of the draws.
        is_data: whether the arrays have no axes of chains and draws.

    Returns:
        `xarray.Dataset`; the attribute `site` of a variable has its name with slashes.
    """
    import xarray

    first = [] if is_data else ["chain", "draw"]
    variables = {}
    for name, values in arrays.items():
        axes = [f"{dotted(name)}_dim_{k}" for k in range(np.ndim(values) - len(first))]
        variables[dotted(name)] = [*first, *axes], values, {"site": name}
    dataset = xarray.Dataset(variables)
    coordinates = {axis: np.arange(number) for axis, number in dataset.sizes.items()}
    return dataset.assign_coords(coordinates if draws is None else coordinates | {"draw": draws})


def sample_stats(draw_info: Mapping[str, np.ndarray], draws: np.ndarray) -> Any:
    """The group `sample_stats` of ArviZ, from fields [C, T] of `DrawInfo`; draws: their numbers."""
    stats = {SAMPLE_STATS.get(name, name): values for name, values in draw_info.items()}
    dataset = to_dataset(stats, draws)
    if "diverging" in dataset:
        dataset["diverging"] = dataset["diverging"].astype(bool)
    return dataset


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
    import xarray

    if _is_old():
        data = xarray.DataTree.from_dict({name: data[name] for name in data.groups()})
    content = data.to_netcdf(engine="h5netcdf")  # HDF5 dies of a disk that takes no more.
    write_file(path, lambda file: file.write(content))


def _is_old() -> bool:
    """Whether ArviZ is 0.2x."""
    return import_arviz().__version__.startswith("0.")


@functools.cache
def import_arviz() -> Any:
    """Imports ArviZ without the notice that 0.2x gives once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz  # Seven seconds to import.
    return arviz
