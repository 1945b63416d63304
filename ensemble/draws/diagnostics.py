"""Diagnostics of draws by ArviZ: R-hat, ESS, MCSE and LOO; draws in the form that ArviZ takes.

R-hat and ESS are rank-normalised (Vehtari et al. 2021, https://doi.org/10.1214/20-BA1221). This
module alone knows that there are two generations of ArviZ: 0.2x, the last one for Python 3.11, and
1.x. ArviZ takes seconds to import and brings Matplotlib's pyplot along, so it is imported when it
is first needed.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from ensemble.draws.store import LOG_PROB, Arrays
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
_STATIONARY = 1.1
"""R-hat of a chain's halves, below which it is taken to stay where it is."""
ERROR = "posterior/predictive/error"
"""Name of the predictive error among the scalars of a run that goes on."""
_REACH = 2.13
"""Standard errors of a bound of 95%: Student's on 15 degrees of freedom, for densities are skewed,
and their errors known the less."""

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


def summarise(scalars: Arrays) -> Diagnostics:
    """Diagnoses the draws after the warm-up.

    Args:
        scalars: [C, T] each, by name.

    Returns:
        The diagnostics.
    """
    varying = {
        name: _diagnose(np.asarray(values, np.float64))
        for name, values in scalars.items()
        if values.shape[1] < MIN_DRAWS or np.any(values != values.flat[0])
    }
    table = np.array([*varying.values()] or [_UNKNOWN])
    place = int(np.nan_to_num(table[:, 0], nan=math.inf).argmax())  # NaN is the worst,
    rhat = float(table[place, 0])
    bulk, tail = table[:, 1:3].min(axis=0).tolist()  # and the least.
    num_constant = len(scalars) - len(varying)
    return Diagnostics(rhat, [*varying, None][place], bulk, tail, num_constant, varying)


def judge_chains(rhat: float, *ess: float | None) -> str:
    """Judges chains: `AGREE`, `DISAGREE` or `TOO_FEW`.

    Args:
        rhat: Largest R-hat; infinite where each chain stays at a value of its own.
        *ess: Least ESS of bulk and of tails; None or NaN: unknown.
    """
    least = np.min(np.array(ess, np.float64))  # NaN is the least.
    if rhat < GOOD_RHAT and least > GOOD_ESS:
        return AGREE
    return TOO_FEW if rhat < BAD_RHAT else DISAGREE  # NaN is not below.


def _diagnose(values: np.ndarray) -> ScalarDiagnostics:
    """Diagnoses one scalar [C, T] in float64."""
    if values.shape[1] < MIN_DRAWS or not np.isfinite(values).all():
        return _UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):  # Without its middle it may be constant.
        return ScalarDiagnostics(
            rhat=split_rhat(values),
            ess_bulk=ess(values, "bulk"),
            ess_tail=ess(values, "tail"),
            mean=float(values.mean()),
            mcse=mcse(values),
        )


def ess(values: NDArray, method: str) -> float:
    """Effective sample size of a scalar [C, T]; the tail's is that of the 5% and 95% quantiles."""
    prob = {"prob": (0.05, 0.95)} if method == "tail" else {}
    return _number(import_arviz().ess(values, method=method, **prob))


def mcse(values: NDArray) -> float:
    """Standard error of the mean of a scalar [C, T]."""
    scale = float(np.ptp(values))
    centred = values - values.mean()
    if scale == 0:
        return 0.0
    # ArviZ takes a range of 1e-15 for a constant's: a probability's may be smaller.
    return _number(import_arviz().mcse(centred / scale, method="mean")) * scale


def _number(result) -> float:
    """The number that ArviZ returns; with Numba it may be an array."""
    return float(np.asarray(result).item())


def split_rhat(values: NDArray) -> float:
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


def modes_apart(scalars: Arrays) -> tuple[str | None, int | None]:
    """Finds a scalar whose values lie apart between chains that each stay where they are.

    Args:
        scalars: Scalars [C, T] by name.

    Returns:
        The first such scalar, and how many modes the chains are in; None if there is none.
    """
    for name, values in scalars.items():
        if np.isfinite(values).all():
            # Between modes, the middle 90% do not overlap.
            low, high = np.quantile(values, [0.05, 0.95], axis=1)
            order = np.argsort(low)
            begins = low[order][1:] > np.maximum.accumulate(high[order])[:-1]
            if begins.any() and all(split_rhat(chain[None]) < _STATIONARY for chain in values):
                return name, 1 + int(begins.sum())
    return None, None


class PredictiveError(NamedTuple):
    """Monte Carlo error of the mixture over draws, at the targets of n examples; None: unknown.

    Attributes:
        error: Bound in nats: in 95% of runs, the log predictive densities differ from those of
            infinitely many draws by less, as a root mean square over the examples. The NLL is off
            by no more.
        nll: Mean negative log predictive density, nats.
        nll_interval: Interval that holds the NLL of infinitely many draws in 95% of runs.
    """

    error: float | None = None
    nll: float | None = None
    nll_interval: tuple[float, float] | None = None


def error_of_draws(log_probs: NDArray, ess: float) -> PredictiveError:
    """Finds the error from the standard errors of mean densities.

    Args:
        log_probs: Log densities [C, T, n] of the targets, of every draw.
        ess: Least bulk ESS over the examples.

    Returns:
        The error; unknown of fewer than 8 draws of a chain, a bulk ESS of 100 or less, or of
        densities that are not finite, or zero in all draws.
    """
    top = log_probs.astype(np.float64).max(axis=(0, 1), initial=-np.inf)  # NaN where one is.
    if log_probs.shape[1] < 2 * MIN_DRAWS or not (ess > MIN_ESS and np.isfinite(top).all()):
        return PredictiveError()
    densities = np.exp(log_probs - top)
    means = densities.mean(axis=(0, 1))
    relative = np.moveaxis(densities / means, -1, 0)
    # Sums of squares of normal errors, however correlated, are beyond so often at most: Szekely and
    # Bakirov 2003, "Extremal probabilities for Gaussian quadratic forms".
    square = float(np.mean([mcse(one) ** 2 for one in relative]))
    bound = _REACH * math.sqrt(square)
    margin = _REACH * mcse(relative.mean(axis=0))
    nll = -float(np.mean(np.log(means) + top))
    centre = nll - square / 2  # The logarithm of a mean with an error is too small on average.
    return PredictiveError(bound, nll, (centre - margin, centre + margin))


def predictive_section(
    scalars: Arrays, found: Diagnostics, predicting: Sequence[int] | NDArray
) -> dict | None:
    """Returns entries of a report for the predictions of chains at fixed examples.

    Args:
        scalars: Scalars [C, T] of the draws that count, of the live chains; those of the log
            density of a target have names that begin with `LOG_PROB`.
        found: Diagnostics of the scalars whose convergence counts.
        predicting: Places of the draws that predict.

    Returns:
        `num_examples`; of their log predictive densities `rhat_max` and `ess_bulk_min`; `num_draws`
        of each chain that predict, and the `PredictiveError` of these by name. None of a run
        without predictions.
    """
    names = [name for name in scalars if name.startswith(LOG_PROB)]
    table = np.array([found.scalars[name] for name in names if name in found.scalars])
    if not len(table):
        return None
    ess = float(table[:, 1].min())  # NaN, of too few draws, is the worst.
    log_probs = np.stack([scalars[name][:, predicting] for name in names], axis=-1)
    return {
        "num_examples": len(names),
        "num_draws": len(predicting),
        "rhat_max": float(table[:, 0].max()),
        "ess_bulk_min": ess,
        **error_of_draws(log_probs, min(ess, log_probs[..., 0].size))._asdict(),
    }


def expected_bias(energy_variance: float, num_params: int) -> float | None:
    """Returns the error of standard deviations where a sampler accepts every step.

    The energy that such a sampler should keep varies with its finite steps, and so do the moments
    of its draws (Robnik, Cohn-Gordon and Seljak 2024, arXiv:2412.08876). For MCLMC by McLachlan's
    steps a variance errs in proportion to step_size^2 and the energy's variance to step_size^6, so
    the first goes with the cube root of the second. The factor was found on Gaussians of any
    widths; a test simulates them. Far above the limits, widths err by anything.

    Args:
        energy_variance: Mean square of a step's energy error, nats^2 per parameter.
        num_params: Number of parameters.

    Returns:
        The relative error in the mean over directions, 0.01 for one percent; None where it is not
        known.
    """
    is_known = energy_variance * num_params < 0.1 or energy_variance < 2e-3
    return 0.13 * energy_variance ** (1 / 3) if is_known else None


def loo(log_likelihood: NDArray, efficiency: float) -> dict:
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
    draws = np.arange(log_likelihood.shape[1])
    data = to_arviz({"log_likelihood": to_dataset({"y": log_likelihood}, draws)})
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


def to_arviz(groups: Mapping):
    """Returns groups of `to_dataset` in the form of the installed ArviZ.

    Returns:
        `arviz.InferenceData` of ArviZ 0.2x, `xarray.DataTree` of ArviZ 1.
    """
    if _is_old():
        return import_arviz().InferenceData(**groups)
    import xarray

    return xarray.DataTree.from_dict(dict(groups))


def to_dataset(arrays: Mapping, draws: NDArray | None):
    """Lays out a group for `to_arviz`; a slash in a name becomes a dot.

    Args:
        arrays: [C, T, ...] by name; of data without the first two axes.
        draws: Numbers [T] of the draws; None: the arrays are data.

    Returns:
        `xarray.Dataset`; the attribute `site` of a variable has its name with slashes.
    """
    import xarray

    first = [] if draws is None else ["chain", "draw"]
    variables = {}
    for name, values in arrays.items():
        short = name.replace("/", ".")  # In files of netCDF, a slash parts groups.
        axes = [f"{short}_dim_{k}" for k in range(np.ndim(values) - len(first))]
        variables[short] = [*first, *axes], values, {"site": name}
    dataset = xarray.Dataset(variables)
    dataset = dataset.assign_coords({axis: np.arange(n) for axis, n in dataset.sizes.items()})
    return dataset if draws is None else dataset.assign_coords(draw=draws)


def sample_stats(draw_info: Arrays, draws: NDArray):
    """The group `sample_stats` of ArviZ, from fields [C, T] of `DrawInfo`; draws: their numbers."""
    stats = {SAMPLE_STATS.get(name, name): values for name, values in draw_info.items()}
    dataset = to_dataset(stats, draws)
    if "diverging" in dataset:
        dataset["diverging"] = dataset["diverging"].astype(bool)
    return dataset


def write_netcdf(path: epath.Path, data) -> None:
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


@cache
def import_arviz():
    """Imports ArviZ without the notice that 0.2x gives once a day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz  # Seven seconds to import.
    return arviz
