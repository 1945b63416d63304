"""What a sampled model leaves: a table of its variables, LOO and WAIC, pictures, `posterior.nc`."""

import functools
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import Diagnostics, ScalarDiagnostics, dotted
from ensemble.draws.store import LOG_DENSITY, Draws, is_diagnostic
from ensemble.pictures import chain_plots
from ensemble.pictures.plot_style import figure_to_png
from ensemble.report.posterior import posterior_section
from ensemble.storage.files import write_file
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.numpyro_models.model_task import ModelTask

_MAX_SCALARS = 1000  # Of which the table has a row.
_NUM_TRACES = 4


class SiteDraws(NamedTuple):
    """What draws of a model's parameters mean, on the host: [C, K, ...] by site.

    Attributes:
        values: of the latent variables as the model has them, and of what follows from them.
        log_likelihood: of each observation, nats.
        predicted: new observations.
        observed: the observations themselves, without the axes of chains and draws.
        dims: names of the axes after those two; None for an axis without a name.
    """

    values: Mapping[str, np.ndarray]
    log_likelihood: Mapping[str, np.ndarray]
    predicted: Mapping[str, np.ndarray]
    observed: Mapping[str, np.ndarray]
    dims: Mapping[str, tuple[str | None, ...]]


class SiteResults:
    """What draws leave: an `ensemble.task.ModelResults`.

    Args:
        model: that was sampled.
        draws: of the run.
        first: number of the first draw that counts.
        live: numbers of the chains.
    """

    def __init__(self, model: "ModelTask", draws: Draws, first: int, live: Sequence[int]):
        self._model = model
        self._first = first
        self._live = list(live)
        self._draws = draws

    @functools.cached_property
    def sites(self) -> SiteDraws:
        """The variables of all draws that are kept."""
        positions = flatten_dict(self._draws.positions()[0], sep="/")  # As `handlers.scope` names.
        return self._model.site_draws({name: leaf[self._live] for name, leaf in positions.items()})

    @property
    def _num_values(self) -> int:
        """Scalars of all variables."""
        return sum(math.prod(one.shape[2:]) for one in self.sites.values.values())

    @functools.cached_property
    def _scalars(self) -> dict[str, np.ndarray]:
        """Every scalar [C, K], or 1,000 evenly spread ones, by name."""
        names = [
            (site, index)
            for site, values in self.sites.values.items()
            for index in np.ndindex(*values.shape[2:])
        ]
        count = min(_MAX_SCALARS, len(names))
        chosen = [names[i] for i in np.linspace(0, len(names) - 1, count).astype(int)]
        return {
            f"{site}[{', '.join(map(str, index))}]" if index else site: np.asarray(
                self.sites.values[site][(slice(None), slice(None), *index)], np.float64
            )
            for site, index in chosen
        }

    @functools.cached_property
    def found(self) -> Diagnostics:
        """The diagnostics of the log density and of all variables."""
        log_density = self._draws.scalars(self._first)[LOG_DENSITY][self._live]
        return diagnostics.summarise({LOG_DENSITY: log_density, **self._scalars})

    def sections(
        self, config: ml_collections.FrozenConfigDict, num_gradients: int, rate: float | None
    ) -> dict[str, Any]:
        """Entries of report.json: `sites`, a row for each scalar, and what they are worth.

        Args:
            config: of the run.
            num_gradients: of all chains.
            rate: gradients of single chains per second.
        """
        counted = self._draws.scalars(self._first)
        of_live = {name: values[self._live] for name, values in counted.items()}
        num_params = sum(leaf.size for leaf in jax.tree.leaves(self._model.params_shapes()))
        return {
            "sites": {
                name: _row(values, self.found.scalars.get(name))
                for name, values in self._scalars.items()
            },
            "num_values": self._num_values,
            "information_criteria": _information_criteria(self.sites),
            "posterior": posterior_section(
                of_live,
                self.found,
                config,
                num_gradients,
                rate,
                None,
                (),
                num_params,
                np.zeros(0, int),  # It predicts nothing.
            ),
        }

    def write(self, work: Workdir) -> None:
        """Writes pictures, and `posterior.nc` with all groups of ArviZ."""
        work.plots.mkdir(parents=True, exist_ok=True)
        for name, figure in self._figures().items():
            write_file(work.plots / f"{name}.png", figure_to_png(figure))
        diagnostics.write_netcdf(work.path / "posterior.nc", self.inference_data)

    def _figures(self) -> dict[str, Any]:
        scalars = self._draws.scalars()
        worst = sorted(self._scalars, key=self._rhat, reverse=True)[:_NUM_TRACES]
        traces = {"log density": scalars[LOG_DENSITY]}
        title = "The chains, draw by draw"
        varying = {name: self._scalars[name] for name in worst}
        ranked = {name: self._scalars[name] for name in self._scalars if self._rhat(name) > 0}
        least = sorted(ranked, key=lambda name: self.found.scalars[name].ess_bulk)
        paired = {name: ranked[name] for name in least[: chain_plots.MAX_PANELS]}
        _, numbers = self._draws.positions()
        diverged = self._draws.scalars(self._first)["is_divergent"][self._live]
        return {
            "traces": chain_plots.trace_plot(
                {**traces, "step size": scalars["step_size"]}, self._first, title
            ),
            "sites": chain_plots.trace_plot(
                varying,
                0,
                f"Chains that agree least, draw by draw{self._left_out(len(varying))}",
            ),
            "ranks": chain_plots.rank_plot(
                ranked,
                self.found,
                "Do the chains agree? Ranks of their draws"
                f"{self._left_out(min(len(ranked), chain_plots.MAX_PANELS))}",
            ),
            "pairs": chain_plots.pair_plot(
                paired,
                diverged[:, numbers - self._first],
                f"Pairs, least bulk ESS first{self._left_out(len(paired))}",
            ),
        }

    def _left_out(self, num_shown: int) -> str:
        """What a title says of scalars that are not drawn."""
        total = self._num_values
        return "" if num_shown >= total else f" ({num_shown} of {total:,} variables are shown)"

    def _rhat(self, name: str) -> float:
        """R-hat, that of a constant 0, for nothing can be said of it."""
        one = self.found.scalars.get(name)
        return 0.0 if one is None or math.isnan(one.rhat) else one.rhat

    @functools.cached_property
    def inference_data(self) -> Any:
        """All groups of ArviZ, `arviz.InferenceData`."""
        arviz = diagnostics.import_arviz()
        counted = self._draws.scalars(self._first)
        _, numbers = self._draws.positions()
        kept = numbers - self._first
        stats = {
            diagnostics.SAMPLE_STATS.get(name, name): values[self._live][:, kept]
            for name, values in counted.items()
            if is_diagnostic(name)
        }
        sites = self.sites
        groups = {
            "posterior": sites.values,
            "sample_stats": stats,
            "log_likelihood": sites.log_likelihood,
            "posterior_predictive": sites.predicted,
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "More chains", UserWarning)
            data = arviz.from_dict(
                **{group: _dotted(arrays) for group, arrays in groups.items() if arrays},
                **({"observed_data": _dotted(sites.observed)} if sites.observed else {}),
                dims={dotted(name): _dims(sites, name) for name in sites.dims},
            )
        data.attrs |= {"chains": self._live}
        for name in sites.values:
            data.posterior[dotted(name)].attrs["site"] = name
        return data


def _dims(sites: SiteDraws, name: str) -> list[str | None]:
    """Names of the first axes of a variable: those that it has wherever it stands.

    A log likelihood has no axis for the parts of a vector, and what a distribution draws may have
    fewer than its data.
    """
    drawn = (sites.values, sites.log_likelihood, sites.predicted)
    shapes = [of[name].shape[2:] for of in drawn if name in of]
    shapes += [sites.observed[name].shape] if name in sites.observed else []
    same = itertools.takewhile(lambda sizes: len(set(sizes)) == 1, zip(*shapes, strict=False))
    return [plate and dotted(plate) for plate, _ in zip(sites.dims[name], same, strict=False)]


def _dotted(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {dotted(name): array for name, array in arrays.items()}


def _row(values: np.ndarray, found: ScalarDiagnostics | None) -> dict[str, float]:
    """What the table says of a scalar [C, K]; diagnostics of a constant are NaN."""
    low, high = np.quantile(values, [0.05, 0.95])
    names = ("mcse", "rhat", "ess_bulk", "ess_tail")
    spread = 1 if values.size > 1 else 0
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=spread)),
        "q05": float(low),
        "q95": float(high),
        **{name: getattr(found, name, math.nan) for name in names},
    }


def _information_criteria(sites: SiteDraws) -> dict[str, dict[str, Any]]:
    """LOO by PSIS and WAIC of each observed variable, by ArviZ, in nats.

    `num_bad_k` counts observations whose Pareto k is above `good_k`: of these LOO says nothing
    reliable. It is 0.7, or of S draws 1 - 1 / log10(S) where that is less (Vehtari et al. 2024,
    "Pareto smoothed importance sampling"). What is masked, and is 0 in every draw, is no
    observation.
    """
    arviz = diagnostics.import_arviz()
    found = {}
    for name, all_values in sites.log_likelihood.items():
        num_chains, num_draws, *shape = all_values.shape
        flat = all_values.reshape(num_chains, num_draws, math.prod(shape))
        values = flat[:, :, np.any(flat != 0, axis=(0, 1))]
        if values.shape[2] < 2 or num_chains * num_draws < 2 or not np.isfinite(values).all():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # What they say is among the numbers.
            data = arviz.from_dict(
                posterior=_aligned(sites.values, num_draws), log_likelihood={name: values}
            )
            loo = arviz.loo(data, pointwise=True, var_name=name, scale="log")
            waic = arviz.waic(data, var_name=name, scale="log")
        found[name] = {
            "elpd_loo": float(loo.elpd_loo),
            "se_loo": float(loo.se),
            "p_loo": float(loo.p_loo),
            "good_k": float(loo.good_k),
            "num_bad_k": int(np.sum(loo.pareto_k.values > loo.good_k)),
            "elpd_waic": float(waic.elpd_waic),
            "se_waic": float(waic.se),
            "p_waic": float(waic.p_waic),
        }
    return found


def _aligned(values: Mapping[str, np.ndarray], num_draws: int) -> dict[str, np.ndarray]:
    """Leaves as many draws of the variables as log likelihoods have."""
    kept = {
        name: np.linspace(0, one.shape[1] - 1, num_draws).astype(int)
        for name, one in values.items()
    }
    return {name: one[:, kept[name]] for name, one in values.items()}
