"""Results of a sampled model: a table of its variables, LOO, plots, `posterior.nc`, a report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax import random
from numpy.typing import NDArray

from ensemble.draws import diagnostics
from ensemble.draws.store import LOG_DENSITY, Draws, is_diagnostic
from ensemble.errors import plural
from ensemble.notes import note
from ensemble.pytrees import ByName
from ensemble.report import charts, plots
from ensemble.report.findings import Finding
from ensemble.report.svg import Chart
from ensemble.report.table import DIVERGENT, MODES, Section, grid
from ensemble.sharding import transfer
from ensemble.sharding.mesh import compiled_soon
from ensemble.storage.workdir import Workdir

_MAX_SCALARS = 1000  # Of which the table has a row.
_FEWEST_DRAWS = 25  # A fifth of them, the five that a tail is fitted to, are enough for ArviZ.
_BATCH = 64
_MAX_OBSERVED = 2**26  # Numbers of log likelihoods, and of predictions: 256 MiB each.
_MAX_SITES = 40
_COLUMNS = {
    "mean": ("mean", ".5g"), "mcse": ("+-", ".2g"), "sd": ("sd", ".5g"), "q05": ("5%", ".5g"),
    "q95": ("95%", ".5g"), "rhat": ("R-hat", ".3f"), "ess_bulk": ("bulk ESS", ".0f"),
    "ess_tail": ("tail ESS", ".0f"),
}  # fmt: skip

Arrays = Mapping[str, NDArray]
"""Arrays by site, or by the name of a scalar."""


class SiteResults(NamedTuple):
    """Results of draws, as of `ensemble.task.Modelled.results`.

    Attributes:
        found: Diagnostics of the log density and of 1,000 scalars of variables, at most.
        sections: Entries of results.json: `sites`, a row for each of these scalars, `num_values`
            of all, and `loo`.
        charts: Traces.
        inference_data: All groups of ArviZ, in the form of the installed one.
    """

    found: diagnostics.Diagnostics
    sections: ByName
    charts: list[Chart]
    inference_data: Any

    def write(self, work: Workdir) -> None:
        """Writes plots, and `posterior.nc` with all groups of ArviZ."""
        plots.write(work.plots, {"traces": self.charts})
        diagnostics.write_netcdf(work.path / "posterior.nc", self.inference_data)


def results_of(model: Any, draws: Draws, first: int, live: Sequence[int]) -> SiteResults:
    """Computes the results of draws.

    Args:
        model: `Model` that was sampled.
        draws: Draws of the run.
        first: Number of the first draw that counts.
        live: Numbers of the chains.
    """
    chains = list(live)
    counted = {name: one[chains] for name, one in draws.scalars(first).items()}
    positions, numbers = draws.positions()
    params = flatten_dict(positions, sep="/")  # As `handlers.scope` names.
    groups = groups_of(model, {name: leaf[chains] for name, leaf in params.items()})
    values = groups["posterior"]
    places = scalar_places({site: one.shape[2:] for site, one in values.items()})
    chosen = [places[i] for i in evenly_spread(len(places), _MAX_SCALARS)]
    scalars = {name: values[site][:, :, *index].astype(np.float64) for name, site, index in chosen}
    found = diagnostics.summarise({LOG_DENSITY: counted[LOG_DENSITY], **scalars})
    sections = {
        "sites": {name: _row(one, found.scalars.get(name)) for name, one in scalars.items()},
        "num_values": len(places),
        "loo": loo(groups["log_likelihood"], scalars),
    }
    panels = charts.traces({**counted, **scalars}, 0, str(found.rhat_worst))
    info = {name: one[:, numbers - first] for name, one in counted.items() if is_diagnostic(name)}
    kept = np.arange(len(numbers))
    datasets = {"sample_stats": diagnostics.sample_stats(info, kept)}
    for group, arrays in groups.items():
        if arrays:
            numbers_of = None if group == "observed_data" else kept
            datasets[group] = diagnostics.to_dataset(arrays, numbers_of)
    data = diagnostics.to_arviz(datasets)
    data.attrs |= {"chains": chains}
    return SiteResults(found, sections, panels, data)


def groups_of(model: Any, params: Arrays) -> dict[str, Arrays]:
    """Computes the groups of ArviZ of draws [C, K, ...].

    The observed variables of very many draws times observations are those of evenly spaced draws.

    Returns:
        Arrays by group: `posterior`, `log_likelihood` of each observation and
        `posterior_predictive` [C, K, ...], and `observed_data`; empty if there are none.
    """
    num_chains, num_kept = next(iter(params.values())).shape[:2]

    def of_draws(function, most: int):
        places = evenly_spread(num_kept, most)
        num_draws = num_chains * len(places)
        flat = {
            name: leaf[:, places].reshape(num_draws, *leaf.shape[2:])
            for name, leaf in params.items()
        }
        batch_size = math.gcd(num_draws, _BATCH)  # A rest would be a second form of the function.

        @compiled_soon
        def run(flat, arrays):
            each = random.split(random.key(0), num_draws), flat
            return jax.lax.map(lambda one: function(*one, arrays), each, batch_size=batch_size)

        return jax.tree.map(
            lambda leaf: leaf.reshape(num_chains, -1, *leaf.shape[1:]),
            transfer.fetch(run(flat, model.arrays)),
        )

    found = of_draws(lambda _, *one: model.values(*one), num_kept)
    observed = model.data()
    likelihood: Arrays = {}
    predicted: Arrays = {}
    if size := num_chains * sum(one.size for one in observed.values()):
        likelihood, predicted = of_draws(model.observations, max(1, _MAX_OBSERVED // size))
        if not predicted:
            note(
                "There is no posterior predictive: the distribution of an observed site has no "
                "sample method."
            )
    return {
        "posterior": {name: found[name] for name in model.variables},  # JAX sorts names.
        "log_likelihood": likelihood,
        "posterior_predictive": predicted,
        "observed_data": observed,
    }


def evenly_spread(number: int, most: int) -> NDArray:
    """Returns at most so many of the numbers from 0 to below `number`, from the first to the last.

    Args:
        number: How many numbers there are.
        most: Limit.
    """
    return np.linspace(0, number - 1, min(number, most)).astype(int)


def scalar_places(shapes: Mapping[str, Sequence[int]]) -> list[tuple[str, str, Any]]:
    """Returns `(name, array, index)` of all scalars of arrays; names as ArviZ's, as 'theta[0]'."""
    return [
        (f"{site}[{', '.join(map(str, index))}]" if index else site, site, index)
        for site, shape in shapes.items()
        for index in np.ndindex(*shape)
    ]


def _row(values: NDArray, found) -> dict[str, float]:
    """Row of the table of a scalar [C, K]; diagnostics of a constant are NaN."""
    low, high = np.quantile(values, [0.05, 0.95])
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=min(values.size - 1, 1))),
        "q05": float(low),
        "q95": float(high),
        **{
            name: getattr(found, name, math.nan)
            for name in ("mcse", "rhat", "ess_bulk", "ess_tail")
        },
    }


def loo(log_likelihood: Arrays, scalars: Arrays) -> dict[str, ByName]:
    """Returns `diagnostics.loo` of each observed variable.

    What is masked, and is 0 in every draw, is no observation.

    Args:
        log_likelihood: Log likelihoods [C, T, ...] of every draw, or of evenly spaced ones.
        scalars: Scalars [C, K] of the draws, whose ESS counts.
    """
    shares = [
        diagnostics.ess(one, "mean") / one.size
        for one in scalars.values()
        if log_likelihood and len(one) > 1
    ]
    efficiency = float(np.mean(shares or 1))  # Of a single chain it is 1, as ArviZ has it.
    results = {}
    for name, values in log_likelihood.items():
        flat = values.reshape(*values.shape[:2], -1)
        flat = flat[:, :, np.any(flat != 0, axis=(0, 1))]
        is_long = flat.shape[2] > 1 and math.prod(flat.shape[:2]) >= _FEWEST_DRAWS
        if is_long and np.isfinite(flat).all():
            results[name] = diagnostics.loo(flat, efficiency)
    return results


# The report.


def _contents(report: ByName) -> list[str]:
    """Returns the table of a model's variables, and the LOO of its observations."""
    sites = report["sites"]
    rows = [
        [site, *(f"{row[n]:{form}}".replace("nan", "") for n, (_, form) in _COLUMNS.items())]
        for site, row in [*sites.items()][:_MAX_SITES]
    ]
    lines = [grid(["variable", *(title for title, _ in _COLUMNS.values())], rows)]
    if report["num_values"] > len(rows):
        lines.append(
            f"These are {len(rows)} of {report['num_values']:,} values; results.json has "
            f"{len(sites):,}, posterior.nc has all."
        )
    for site, one in report["loo"].items():
        lines.append(
            f"LOO of {site}: {one['elpd_loo']:.1f} nats +- {one['se_loo']:.1f}, with "
            f"{one['p_loo']:.1f} effective parameters."
        )
    return lines


def _findings(results: ByName) -> list[Finding]:
    """Returns observations that LOO cannot judge."""
    return [
        Finding(
            "loo",
            "warning",
            f"LOO of {site} is unreliable: Pareto k exceeds {one['good_k']:.2g} for "
            f"{plural(one['num_bad_k'], 'observation')}.",
            {"num_bad_k": one["num_bad_k"]},
        )
        for site, one in results["loo"].items()
        if one["num_bad_k"]
    ]


def _remedy(results: ByName, fault: str) -> str:
    """Returns what helps a model where a network needs something else."""
    if fault == MODES:
        return (
            "Set config.method='parallel_tempering', or order parameters of mirror images in the "
            "model."
        )
    if fault == DIVERGENT:
        return "Raise config.sampler.target_accept to 0.95, or write the model without centring."
    mass = results.get("config", {}).get("sampler", {}).get("mass_matrix")
    remedy = "set config.sampler.mass_matrix='low_rank', or reparametrise"
    # A ladder has a diagonal mass.
    if mass in ("low_rank", "dense") or len(results["sites"]) == 1 or "ladder" in results:
        remedy = "write the model with another centring of its groups"
    return f"The worst is {results['posterior']['rhat_worst']}: {remedy}."


SECTION = Section(_contents, stands_alone=True, findings=_findings, remedy=_remedy)
