"""A log density that a program gives, with the tree of parameters where its chains start."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jax.sharding import Mesh

from ensemble.errors import InputError, in_one_line
from ensemble.numpyro_models.program import digest, dispersed
from ensemble.numpyro_models.refusals import check_function, check_names, failed
from ensemble.numpyro_models.sharded_model import ShardedModel


class DensityProgram:
    """A `Program` of `logdensity_fn(position) -> nats []`.

    Args:
        logdensity_fn: of one chain; JAX must be able to trace and differentiate it.
        start: a position: an array, or a tree of arrays. Every chain starts within 2 of it in each
            coordinate.
        name: of the density, in messages.

    Raises:
        InputError: the function fails, or returns something else than one real number.
    """

    def __init__(self, logdensity_fn: Callable[[Any], jax.Array], start: Any, name: str):
        self.name = name
        self.dims: dict[str, tuple[str | None, ...]] = {}  # Axes have no names.
        self._function = logdensity_fn
        check_function(logdensity_fn, name)
        paths, self._structure = jax.tree_util.tree_flatten_with_path(start)
        names = [".".join(_key(key) for key in path) or "x" for path, _ in paths]
        check_names(name, names, {})
        try:
            self.arrays = {
                key: np.asarray(leaf, np.float32)
                for key, (_, leaf) in zip(names, paths, strict=True)
            }
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the start of {name} must be an array of real numbers, or a tree of them: "
                f"{in_one_line(error)}"
            ) from None
        if not self.arrays or not all(leaf.size for leaf in self.arrays.values()):
            raise InputError(
                f"the start of {name} is empty; it must be an array, or a tree of them"
            )
        self.shapes = {
            key: jax.ShapeDtypeStruct(leaf.shape, np.float32) for key, leaf in self.arrays.items()
        }
        try:
            found = jax.eval_shape(self._of, self.shapes)
        except Exception as error:  # It is a program, and may raise anything.
            raise failed(name, error) from error
        kind, shape = jnp.result_type(found), jnp.shape(found)
        if shape or not jnp.issubdtype(kind, jnp.floating):
            raise InputError(
                f"{name} returns {kind}{list(shape)} for one position, must be one real number, "
                "nats; sum over the axes"
            )

    def _of(self, params: Mapping[str, Any]) -> Any:
        leaves = [params[name] for name in self.arrays]
        return self._function(jax.tree.unflatten(self._structure, leaves))

    def log_density(self, params: Mapping[str, Any], arrays: Any) -> jax.Array:
        """What the function returns."""
        with jax.default_matmul_precision("highest"):
            return jnp.asarray(self._of(params), jnp.float32)

    def log_reference(self, params: Mapping[str, Any], arrays: Any, sd: float) -> jax.Array:
        """A normal density about the start."""
        densities = [norm.logpdf(params[name], arrays[name], sd).sum() for name in self.arrays]
        return jnp.sum(jnp.stack(densities))

    def values(self, params: Mapping[str, Any], arrays: Any) -> dict[str, jax.Array]:
        """The parameters as they are."""
        return dict(params)

    @property
    def latent(self) -> list[str]:
        """All names."""
        return list(self.arrays)

    def start(self, rng_key: jax.Array, from_prior: bool, arrays: Any) -> dict[str, jax.Array]:
        """Draws a position about the given one; it knows no prior."""
        if from_prior:
            raise InputError(
                f"init_from='prior' cannot be used with {self.name}, of which no prior is known; "
                "use 'uniform'"
            )
        return jax.tree.map(jnp.add, arrays, dispersed(rng_key, self.shapes))

    def observations(self, rng_key: jax.Array, params: Any, arrays: Any) -> Any:
        """None is known."""
        return {}, {}

    def observed(self) -> dict[str, np.ndarray]:
        """None is known."""
        return {}

    def on_shards(self, mesh: Mesh) -> None:
        """It knows of no rows."""
        return None

    def reference_on_shards(self, split: ShardedModel) -> ShardedModel:
        """Nothing to ask for: nothing is split."""
        return split

    def fault(self, params: Mapping[str, np.ndarray]) -> str:
        """The fault of a density which is finite nowhere."""
        values = np.asarray(jax.vmap(self._of)(params))
        if np.isfinite(values).any():
            return ""
        return f"the log density is {values.flat[0]} there; give another start"

    @property
    def warning(self) -> str:
        """None is due."""
        return ""

    def identity(self) -> str:
        """The shapes, and the start."""
        return digest(str(self._structure), *self.arrays.values())


def _key(key: Any) -> str:
    """A step of a path, without the brackets of `jax.tree_util`."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
