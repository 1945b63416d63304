"""What the sites of a NumPyro model are to a sampler."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from ensemble.errors import calling_place


class Site(NamedTuple):
    """A variable of the model.

    Attributes:
        kind: 'latent', 'discrete' of latents that are summed out, 'observed' or 'deterministic'.
        fn: the name of its distribution.
        shape: of its value.
    """

    kind: str
    fn: str
    shape: tuple[int, ...]


class Places(Messenger):
    """Notes where in the user's code each site is written."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def process_message(self, msg: Any) -> None:
        self.found.setdefault(msg.get("name"), calling_place())


def kind_of(site: Mapping[str, Any]) -> str:
    """What a site is to a sampler; empty: nothing."""
    if site["type"] == "deterministic":
        return "deterministic"
    if site["type"] != "sample" or isinstance(site["fn"], dist.Unit):
        return ""
    if site["is_observed"]:
        return "observed"
    return "discrete" if site["fn"].support.is_discrete else "latent"


def read_site(site: Mapping[str, Any]) -> Site:
    """What is kept of a site: its kind, the name of its distribution, its shape."""
    fn = type(innermost(site["fn"])).__name__ if site["type"] == "sample" else ""
    return Site(kind_of(site), fn, jnp.shape(site["value"]))


def innermost(fn: Any) -> Any:
    """The distribution below expansions, masks and independent axes."""
    wrappers = (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)
    while isinstance(fn, wrappers):
        fn = fn.base_dist
    return fn


def is_flat(fn: Any) -> bool:
    """Whether nothing can be drawn from a distribution, for it is improper."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)
