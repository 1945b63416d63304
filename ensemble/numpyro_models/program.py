"""What a model that is sampled has to be, whoever wrote it: pure functions of its parameters."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from ensemble.numpyro_models.sharded_model import ShardedModel

Params = Mapping[str, Any]
"""Arrays by name, on the whole real line."""


class Program(Protocol):
    """A log density of named parameters, and what they mean.

    Attributes:
        name: of the model, in messages.
        arrays: what the functions below take beside the parameters: the data, on the host.
        shapes: of the parameters.
        dims: by variable, the names of its axes; None for an axis without one.
    """

    name: str
    arrays: Any
    shapes: dict[str, jax.ShapeDtypeStruct]
    dims: Mapping[str, tuple[str | None, ...]]

    def log_density(self, params: Params, arrays: Any) -> jax.Array:
        """Nats [], up to a constant."""

    def log_reference(self, params: Params, arrays: Any, sd: float) -> jax.Array:
        """Nats [] of the prior; where none is known, of a normal density with this deviation."""

    def values(self, params: Params, arrays: Any) -> dict[str, jax.Array]:
        """The variables of the model, by name, those that follow from others last."""

    @property
    def latent(self) -> Sequence[str]:
        """Names of the variables that do not follow from others."""

    def start(self, rng_key: jax.Array, from_prior: bool, arrays: Any) -> dict[str, jax.Array]:
        """Draws parameters where a chain may start, if their density is finite."""

    def observations(
        self, rng_key: jax.Array, params: Params, arrays: Any
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Returns the observed variables' log likelihoods, elementwise, and new observations."""

    def observed(self) -> dict[str, np.ndarray]:
        """The observations."""

    def on_shards(self, mesh: Mesh) -> ShardedModel | None:
        """The model with its rows spread over the mesh; None where all is whole on every device.

        Raises:
            InputError: its rows cannot be split.
        """

    def reference_on_shards(self, split: ShardedModel) -> ShardedModel:
        """The density of `log_reference`, for the model of `on_shards`."""

    def fault(self, params: Mapping[str, np.ndarray]) -> str:
        """What is wrong with the log density at parameters [C, ...]; empty where nothing is."""

    @property
    def warning(self) -> str:
        """What a report should say of the model; empty: nothing."""

    def identity(self) -> str:
        """What makes it another model than others, beside its values."""


def dispersed(rng_key: jax.Array, shapes: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Draws parameters evenly from -2 to 2, as Stan does where nothing is known."""
    keys = jax.random.split(rng_key, len(shapes))
    return {
        name: jax.random.uniform(key, leaf.shape, minval=-2, maxval=2)
        for key, (name, leaf) in zip(keys, shapes.items(), strict=True)
    }


def scalar_names(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """The names of all scalars of arrays, such as 'theta[0]', as ArviZ has them."""
    return {
        site: [
            f"{site}[{', '.join(map(str, index))}]" if index else site
            for index in np.ndindex(*shape)
        ]
        for site, shape in shapes.items()
    }


def digest(*parts: Any) -> str:
    """A short hash of arrays and of what has a text."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray | jax.Array):
            part = np.ascontiguousarray(part)
            found.update(f"{part.dtype} {part.shape} ".encode())
            found.update(part.tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]


def depends_on_tracing(program: Program) -> bool:
    """Whether a density is another one each time that it is traced, as with NumPy's random numbers.

    Traces are compared first, which compiles nothing. They may differ and mean the same.
    """

    def fresh() -> Any:  # JAX does not trace the same function again.
        return lambda params, arrays: program.log_density(params, arrays)

    one, other = (jax.make_jaxpr(fresh())(program.shapes, program.arrays) for _ in range(2))
    if _ADDRESS.sub("", str(one)) == _ADDRESS.sub("", str(other)) and all(
        np.array_equal(a, b) for a, b in zip(one.consts, other.consts, strict=True)
    ):
        return False
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype)
        for name, leaf in program.shapes.items()
    }
    values = [np.asarray(jax.jit(fresh())(params, program.arrays)) for _ in range(2)]
    return not np.array_equal(values[0], values[1], equal_nan=True)


_ADDRESS = re.compile("0x[0-9a-f]+")
