"""Sites of a NumPyro model, as a sampler sees them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ensemble.numpyro_models.sharded_distributions import MARK

Trace = Mapping[str, Any]
"""Sites by name, as NumPyro traces them."""

_WRAPPERS = (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)
_IMPUTED = "imputed"  # In `infer` of a latent that `obs_mask` adds.
_ADDED = "_unobserved"  # How NumPyro ends its name, beside another one that ends in `_observed`.


class Rows(NamedTuple):
    """The axis of an array that counts the rows of a sharded plate.

    Attributes:
        size: Number of rows, without padding.
        axis: Axis that counts them, from the left.
        axis_name: Axis of the mesh that they are spread over.
    """

    size: int
    axis: int
    axis_name: str


class Site(NamedTuple):
    """A site of a model.

    Attributes:
        kind: 'latent', 'imputed' (a latent that `obs_mask` adds), 'discrete' (a latent that is
            summed out), 'observed' or 'deterministic'; empty for factors and plates.
        shape: Shape of its value.
        rows: Rows of its sharded plate; None if there is none.
        is_likelihood: True for observations and factors.
        is_flat: True if its distribution is improper, so that nothing can be drawn from it.
    """

    kind: str
    shape: tuple[int, ...]
    rows: Rows | None
    is_likelihood: bool
    is_flat: bool


class Completed(Messenger):
    """Handler around a model that completes the sites of `obs_mask`.

    NumPyro masks the latents of `obs_mask` in observed rows, so that they would move freely there.
    Here they have their density: nothing else depends on them, and they integrate to one, so that
    the posterior of everything else is the same.
    """

    def __init__(self, fn: Any):
        super().__init__(fn)
        self._names: set[Any] = set()

    def process_message(self, msg: Any) -> None:
        name = msg.get("name") or ""
        self._names.add(name)
        is_added = msg["type"] == "sample" and not msg["is_observed"] and name.endswith(_ADDED)
        if is_added and name.removesuffix(_ADDED) + "_observed" in self._names:
            msg["fn"] = _unmasked(msg["fn"])
            msg["infer"] = {**msg["infer"], _IMPUTED: True}


def _unmasked(fn: Any) -> Any:
    if isinstance(fn, dist.ExpandedDistribution):
        return _unmasked(fn.base_dist).expand(fn.batch_shape)
    return _unmasked(fn.base_dist) if isinstance(fn, dist.MaskedDistribution) else fn


def kind_of(site: Any) -> str:
    """Returns the kind of a site of a trace, as of `Site`."""
    if site["type"] != "sample":
        return "deterministic" if site["type"] == "deterministic" else ""
    if isinstance(site["fn"], dist.Unit):
        return ""
    if site["is_observed"]:
        return "observed"
    if site["infer"].get(_IMPUTED):
        return "imputed"
    return "discrete" if site["fn"].support.is_discrete else "latent"


def read_sites(trace: Trace) -> dict[str, Site]:
    """Reads the sites of a trace."""
    return {
        name: Site(
            kind_of(site),
            np.shape(site["value"]),
            _rows_of(site),
            site["type"] == "sample" and site["is_observed"],
            site["type"] == "sample" and is_improper(site["fn"]),
        )
        for name, site in trace.items()
    }


def _rows_of(site: Any) -> Rows | None:
    plate, axis_name = site.get("infer", {}).get(MARK, ("", ""))
    for frame in site.get("cond_indep_stack", ()):
        if frame.name == plate:
            num_axes = np.ndim(site["value"]) - site["fn"].event_dim
            return Rows(frame.size, num_axes + frame.dim, axis_name)
    return None


def is_improper(fn: Any) -> bool:
    """Tells if nothing can be drawn from a distribution, below what expands or masks it."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)
