"""`ensemble.sample`: the posterior of a NumPyro model, or of any log density, in one call."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from etils.epath import PathLike

from ensemble.config import Config, checked, flatten
from ensemble.configs import numpyro_nuts
from ensemble.errors import InputError, shown
from ensemble.pytrees import ByName, Function
from ensemble.report.training import as_text
from ensemble.run.loop import run

if TYPE_CHECKING:
    from ensemble.numpyro_models.model import Model


@dataclass(repr=False, eq=False)
class Samples:
    """Draws of a posterior, with what they are worth.

    Attributes:
        report: the content of results.json.
        data: what the installed ArviZ takes (`InferenceData`, or `DataTree` of ArviZ 1), with the
            groups posterior, sample_stats and, if the model has observations, log_likelihood,
            posterior_predictive and observed_data. A slash in a name, as of
            `numpyro.handlers.scope`, is a dot there.
        workdir: where the run lives; None where nothing was kept.
    """

    report: ByName
    data: Any
    workdir: str | None

    @cached_property
    def draws(self) -> dict[str, np.ndarray]:
        """Draws [C, T, ...] of every variable, by name, deterministic sites included."""
        if self.data is None:
            return {}
        variables = self.data.posterior.data_vars
        return {one.attrs.get("site", name): one.values for name, one in variables.items()}

    @property
    def summary(self) -> Any:
        """Mean, sd, quantiles, R-hat and ESS of every scalar, by name."""
        return self.report.get("sites", {})

    def __repr__(self) -> str:
        return as_text(self.report, None)


def sample(
    model: Function,
    data: Mapping[str, Any] | tuple[Any, ...] | None = None,
    *,
    method: str = "nuts",
    workdir: PathLike | None = None,
    start: Any = None,
    config: Mapping[str, Any] | None = None,
    show_progress: bool = True,
) -> Samples:
    """Samples the posterior of a NumPyro model, or goes on with the run in `workdir`.

    Args:
        model: a NumPyro model. With a `start`, a log density: a function from a position to nats
            [], which JAX can differentiate.
        data: arguments of the model: a mapping by name, or a tuple by position; None: it takes
            none. Arrays are traced, numbers are not.
        method: 'nuts', 'hmc', 'adjusted_mclmc', 'mclmc', or for several modes
            'parallel_tempering'.
        workdir: directory for checkpoints, metrics and results; a run that is already there is
            resumed, on any devices. None keeps nothing.
        start: of a log density, an array or a tree of arrays. Each chain starts within 2 of it in
            every coordinate.
        config: more keys of the configuration, such as
            `{"num_chains": 8, "sampler.num_samples": 500}`; what is left out is as in
            `configs/numpyro_nuts.py`.
        show_progress: as of `ensemble.train`.

    Returns:
        The draws; of several processes only the main one gets them.

    Raises:
        InputError: the model, the data or the configuration cannot be used.
        TrainingError: as of `ensemble.train`.
        Interrupted: as of `ensemble.train`.
    """
    name = shown(getattr(model, "__name__", type(model).__name__))
    kind = "numpyro" if start is None else "logdensity"
    given = {"method": method, **flatten(config or {}), "model": f"{kind}:{name}"}
    given = {**numpyro_nuts.get_config(), **given}
    make_model = partial(_model, model, data, start, name)  # When devices are set up.
    where = None if workdir is None else os.fspath(workdir)
    result = run(checked(given), lambda: make_model, where, show_progress)
    return Samples(result.report, result.data, where)


def create_task(config: Config, data: Any) -> "Model":
    """Makes the task of a run.

    Raises:
        InputError: As `ensemble.numpyro_models.model.create`; or NumPyro is not installed.
    """
    try:
        import numpyro  # noqa: F401  It may start JAX: not before the devices are set up.
    except ModuleNotFoundError as error:
        raise InputError(
            "models are sampled with NumPyro, which is not installed: pip install "
            "'flax-ensembles[numpyro]', or -r requirements-numpyro.txt in the repository"
        ) from error
    from ensemble.numpyro_models.model import create

    return create(config, data)


def _model(model: Function, data, start, name: str) -> "Model":
    from ensemble.numpyro_models.model import Model, density_model

    if not isinstance(data, Mapping | tuple | None) or (start is not None and data is not None):
        raise InputError(
            f"data are a {type(data).__name__}, must be the arguments of a NumPyro model, a "
            "mapping by name or a tuple; a log density, which has a start, closes over its data"
        )
    if start is not None:
        return density_model(model, start, f"log density {name!r}")
    args, kwargs = (data, {}) if isinstance(data, tuple) else ((), data)
    return Model(model, args, kwargs, f"model {name!r}")
