"""What a sampled model leaves: a table of its variables, LOO, plots, `posterior.nc`."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import Diagnostics, ScalarDiagnostics
from ensemble.draws.store import LOG_DENSITY, Draws, is_diagnostic
from ensemble.report import charts, plots
from ensemble.report.posterior import posterior_section
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
    """What draws leave, as of `ensemble.task.Modelled.results`.

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
        """Entries of results.json: `sites`, a row for each scalar, and what they are worth.

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
            "loo": _loo(self.sites),
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
        """Writes plots, and `posterior.nc` with all groups of ArviZ."""
        scalars, varying = self._draws.scalars(), sorted(self._scalars, key=self._rhat)[::-1]
        worst = [name for name in varying[:_NUM_TRACES] if self._rhat(name) > 0]
        log_density = scalars[LOG_DENSITY][self._live][:, self._first :]
        traces = {"log density (nats)": log_density, **{n: self._scalars[n] for n in worst}}
        ranked = {
            name: (self._scalars[name], self._rhat(name), self.found.scalars[name].ess_bulk)
            for name in worst
        }
        plots.write(work.plots, charts.chains(traces, ranked, 0))
        diagnostics.write_netcdf(work.path / "posterior.nc", self.inference_data)

    def _rhat(self, name: str) -> float:
        """R-hat, that of a constant 0, for nothing can be said of it."""
        one = self.found.scalars.get(name)
        return 0.0 if one is None or math.isnan(one.rhat) else one.rhat

    @functools.cached_property
    def inference_data(self) -> Any:
        """All groups, in the form of the installed ArviZ: `diagnostics.to_arviz`."""
        counted = self._draws.scalars(self._first)
        _, numbers = self._draws.positions()
        kept = numbers - self._first
        stats = {
            name: values[self._live][:, kept]
            for name, values in counted.items()
            if is_diagnostic(name)
        }
        sites = self.sites
        dims = {name: _dims(sites, name) for name in sites.dims}
        drawn = {
            "posterior": sites.values,
            "log_likelihood": sites.log_likelihood,
            "posterior_predictive": sites.predicted,
        }
        groups = {
            name: diagnostics.to_dataset(arrays, np.arange(len(kept)), dims)
            for name, arrays in drawn.items()
            if arrays
        }
        groups["sample_stats"] = diagnostics.sample_stats(stats, np.arange(len(kept)))
        if sites.observed:
            groups["observed_data"] = diagnostics.to_dataset(
                sites.observed, dims=dims, is_data=True
            )
        data = diagnostics.to_arviz(groups)
        data.attrs |= {"chains": self._live}
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
    return [
        plate and diagnostics.dotted(plate)
        for plate, _ in zip(sites.dims[name], same, strict=False)
    ]


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


_FEWEST_DRAWS = 25
"""Draws of which a fifth, the five that a tail is fitted to, are enough for ArviZ."""


def _loo(sites: SiteDraws) -> dict[str, dict[str, Any]]:
    """`diagnostics.loo` of each observed variable.

    What is masked, and is 0 in every draw, is no observation.
    """
    found = {}
    for name, all_values in sites.log_likelihood.items():
        num_chains, num_draws, *shape = all_values.shape
        flat = all_values.reshape(num_chains, num_draws, math.prod(shape))
        values = flat[:, :, np.any(flat != 0, axis=(0, 1))]
        is_short = num_chains * num_draws < _FEWEST_DRAWS
        if values.shape[2] < 2 or is_short or not np.isfinite(values).all():
            continue
        found[name] = diagnostics.loo(values, _efficiency(sites.values, num_chains, num_draws))
    return found


def _efficiency(values: Mapping[str, np.ndarray], num_chains: int, num_draws: int) -> float:
    """ESS of a mean / number of draws, the mean over all scalars; 1 of a single chain, as ArviZ."""
    if num_chains == 1:
        return 1.0
    kept = {
        name: one[:, np.linspace(0, one.shape[1] - 1, num_draws).astype(int)].reshape(
            num_chains, num_draws, -1
        )
        for name, one in values.items()
    }
    scalars = np.concatenate(list(kept.values()), axis=-1)
    sizes = [diagnostics.ess(one, "mean") for one in np.moveaxis(scalars, -1, 0)]
    return float(np.mean(sizes)) / (num_chains * num_draws)
