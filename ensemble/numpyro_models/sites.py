"""Sites of a NumPyro model, as a sampler sees them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ensemble.errors import calling_place
from ensemble.numpyro_models.sharded_distributions import MARK

Trace = Mapping[str, Any]
"""Sites by name, as NumPyro traces them."""

_IMPUTED = "imputed"  # In `infer` of a latent that `obs_mask` adds.
_ADDED = "_unobserved"  # How NumPyro ends its name, beside another one that ends in `_observed`.


class Site(NamedTuple):
    """A site of a model.

    Attributes:
        kind: 'latent', 'imputed' (a latent that `obs_mask` adds), 'discrete' (a latent that is
            summed out), 'observed' or 'deterministic'; empty for factors and plates.
        fn: Name of its distribution.
        shape: Shape of its value.
        rows: `(plate, axis of the value)` of its sharded plate; None if there is none.
        is_likelihood: True for observations and factors.
        is_flat: True if its distribution is improper, so that nothing can be drawn from it.
    """

    kind: str
    fn: str
    shape: tuple[int, ...]
    rows: tuple[str, int] | None
    is_likelihood: bool
    is_flat: bool


class Reading(Messenger):
    """Handler around a model that notes its sites, and completes those of `obs_mask`.

    NumPyro masks the latents of `obs_mask` in observed rows, so that they would move freely there.
    Here they have their density: nothing else depends on them, and they integrate to one, so that
    the posterior of everything else is the same.

    Attributes:
        places: Places in the user's code, by site.
    """

    def __init__(self, fn: Any):
        super().__init__(fn)
        self.places: dict[str, str] = {}

    def process_message(self, msg: Any) -> None:
        name = msg.get("name")
        if name not in self.places:
            self.places[name] = calling_place()
        is_added = msg["type"] == "sample" and not msg["is_observed"] and name.endswith(_ADDED)
        if is_added and name.removesuffix(_ADDED) + "_observed" in self.places:
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


def read_site(site: Any) -> Site:
    """Reads a site of a trace."""
    if site["type"] != "sample":
        shape = np.shape(site["value"]) if site["type"] == "deterministic" else ()
        return Site(kind_of(site), "", shape, None, False, False)
    fn = innermost(site["fn"])
    rows = None
    if MARK in site["infer"]:
        plate, _ = site["infer"][MARK]
        [dim] = [frame.dim for frame in site["cond_indep_stack"] if frame.name == plate]
        rows = plate, len(site["fn"].batch_shape) + dim
    return Site(
        kind_of(site),
        type(fn).__name__,
        np.shape(site["value"]),
        rows,
        site["is_observed"],
        is_improper(fn),
    )


def innermost(fn: Any) -> Any:
    """Returns the distribution below expansions, masks and independent axes."""
    wrappers = (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)
    while isinstance(fn, wrappers):
        fn = fn.base_dist
    return fn


def is_improper(fn: Any) -> bool:
    """Tells if nothing can be drawn from a distribution."""
    return isinstance(innermost(fn), dist.ImproperUniform)


def plate_dims(sites: Trace) -> dict[str, tuple[str | None, ...]]:
    """Names the axes of variables by their plates; None where a name is taken.

    Args:
        sites: Sites of a trace, the variables alone.
    """
    sizes = dict.fromkeys(("chain", "draw", *sites), -1)
    result = {}
    for name, site in sites.items():
        shape = np.shape(site["value"])
        num_batch = len(shape) - (site["fn"].event_dim if site["type"] == "sample" else 0)
        dims: list[str | None] = [None] * len(shape)
        for plate in site.get("cond_indep_stack", ()):
            axis = num_batch + plate.dim
            is_of_plate = axis >= 0 and shape[axis] == plate.size
            if is_of_plate and sizes.setdefault(plate.name, plate.size) == plate.size:
                dims[axis] = plate.name
        result[name] = tuple(dims)
    return result
