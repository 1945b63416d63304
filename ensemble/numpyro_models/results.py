"""Results of a sampled model: a table of its variables, LOO, plots, `posterior.nc`."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flax.traverse_util import flatten_dict

from ensemble.draws import diagnostics
from ensemble.draws.diagnostics import Diagnostics
from ensemble.draws.store import LOG_DENSITY, Draws, is_diagnostic
from ensemble.report import charts, plots
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.numpyro_models.model_task import ModelTask

_MAX_SCALARS = 1000  # Of which the table has a row.
_NUM_TRACES = 4
_FEWEST_DRAWS = 25  # A fifth of them, the five that a tail is fitted to, are enough for ArviZ.


Groups = dict[str, Mapping[str, np.ndarray]]
"""Variables by site and by group of ArviZ: `posterior`, `log_likelihood` of each observation and
`posterior_predictive` [C, K, ...], and `observed_data`; on the host, empty where there are none."""


class SiteResults:
    """What draws leave, as of `ensemble.task.Modelled.results`.

    Args:
        task: Task whose model was sampled.
        draws: Draws of the run.
        first: Number of the first draw that counts.
        live: Numbers of the chains.
    """

    def __init__(self, task: "ModelTask", draws: Draws, first: int, live: Sequence[int]):
        self._task = task
        self._draws = draws
        self._first = first
        self._live = list(live)
        self._counted = {name: one[self._live] for name, one in draws.scalars(first).items()}

    @functools.cached_property
    def groups(self) -> Groups:
        """The variables of all draws that are kept."""
        positions = flatten_dict(self._draws.positions()[0], sep="/")  # As `handlers.scope` names.
        return self._task.groups({name: leaf[self._live] for name, leaf in positions.items()})

    @functools.cached_property
    def _scalars(self) -> dict[str, np.ndarray]:
        """Every scalar [C, K], or 1,000 evenly spread ones, by name."""
        values = self.groups["posterior"]
        places = scalar_places({site: one.shape[2:] for site, one in values.items()})
        chosen = np.linspace(0, len(places) - 1, min(_MAX_SCALARS, len(places))).astype(int)
        names = [*places]
        return {
            names[i]: np.asarray(np.moveaxis(values[site], (0, 1), (-2, -1))[index], np.float64)
            for i in chosen
            for site, index in [places[names[i]]]
        }

    @functools.cached_property
    def found(self) -> Diagnostics:
        """Diagnostics of the log density and of all variables."""
        return diagnostics.summarise({LOG_DENSITY: self._counted[LOG_DENSITY], **self._scalars})

    @functools.cached_property
    def sections(self) -> dict[str, Any]:
        """Entries of results.json: `sites`, a row for each scalar, and `loo`."""
        return {
            "sites": {
                name: _row(values, self.found.scalars.get(name))
                for name, values in self._scalars.items()
            },
            "num_values": sum(one[0, 0].size for one in self.groups["posterior"].values()),
            "loo": loo(self.groups["log_likelihood"], self._scalars),
        }

    def write(self, work: Workdir) -> None:
        """Writes plots, and `posterior.nc` with all groups of ArviZ."""
        found = self.found.scalars
        known = [name for name in self._scalars if name in found and found[name].rhat > 0]
        worst = sorted(known, key=lambda name: -found[name].rhat)[:_NUM_TRACES]
        drawn = {name: self._scalars[name] for name in worst}
        traces = {"log density (nats)": self._counted[LOG_DENSITY], **drawn}
        ranks = {n: (one, found[n].rhat, found[n].ess_bulk) for n, one in drawn.items()}
        plots.write(work.plots, charts.chains(traces, ranks, 0))
        diagnostics.write_netcdf(work.path / "posterior.nc", self.inference_data)

    @functools.cached_property
    def inference_data(self) -> Any:
        """All groups, in the form of the installed ArviZ: `diagnostics.to_arviz`."""
        model = self._task.model
        _, numbers = self._draws.positions()
        kept = numbers - self._first

        def dataset(arrays: Mapping[str, np.ndarray], is_data: bool) -> Any:
            def axes(name: str, shape: tuple[int, ...]) -> list[str | None]:
                # What a distribution draws, or its log likelihood, may have fewer than data.
                pairs = zip(model.dims[name], model.sites[name].shape, shape, strict=False)
                return [one and diagnostics.dotted(one) if a == b else None for one, a, b in pairs]

            lead = 0 if is_data else 2
            dims = {name: axes(name, one.shape[lead:]) for name, one in arrays.items()}
            draws = None if is_data else np.arange(len(kept))
            return diagnostics.to_dataset(arrays, draws, dims, is_data=is_data)

        groups = {
            name: dataset(arrays, name == "observed_data")
            for name, arrays in self.groups.items()
            if arrays
        }
        stats = {name: one[:, kept] for name, one in self._counted.items() if is_diagnostic(name)}
        groups["sample_stats"] = diagnostics.sample_stats(stats, np.arange(len(kept)))
        data = diagnostics.to_arviz(groups)
        data.attrs |= {"chains": self._live}
        return data


def scalar_places(
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns `(array, index)` of all scalars of arrays, by names such as 'theta[0]', as ArviZ."""
    return {
        f"{site}[{', '.join(map(str, index))}]" if index else site: (site, index)
        for site, shape in shapes.items()
        for index in np.ndindex(*shape)
    }


def _row(values: np.ndarray, found: Any) -> dict[str, float]:
    """Row of the table of a scalar [C, K]; diagnostics of a constant are NaN."""
    names = ("mcse", "rhat", "ess_bulk", "ess_tail")
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=min(values.size - 1, 1))),
        "q05": float(np.quantile(values, 0.05)),
        "q95": float(np.quantile(values, 0.95)),
        **{name: getattr(found, name, math.nan) for name in names},
    }


def loo(
    log_likelihood: Mapping[str, np.ndarray], scalars: Mapping[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Returns `diagnostics.loo` of each observed variable.

    What is masked, and is 0 in every draw, is no observation.

    Args:
        log_likelihood: Log likelihoods [C, T, ...] of every draw, or of evenly spaced ones.
        scalars: Scalars [C, K] of the draws, whose ESS counts.
    """
    efficiency, results = 1.0, {}  # Of a single chain, as ArviZ has it.
    draws = next(iter(scalars.values()))
    if log_likelihood and len(draws) > 1:
        sizes = [diagnostics.ess(one, "mean") for one in scalars.values()]
        efficiency = float(np.mean(sizes)) / draws.size
    for name, values in log_likelihood.items():
        flat = values.reshape(*values.shape[:2], -1)
        flat = flat[:, :, np.any(flat != 0, axis=(0, 1))]
        is_short = flat.shape[2] < 2 or flat[:, :, 0].size < _FEWEST_DRAWS
        if not is_short and np.isfinite(flat).all():
            results[name] = diagnostics.loo(flat, efficiency)
    return results
