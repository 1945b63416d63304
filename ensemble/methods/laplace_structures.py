"""Covariances of Laplace approximations: how a curvature is added up, and what is drawn of it.

The curvature is that of Gauss and Newton, sum_n J_n' L_n J_n: J_n [K, P] are derivatives of an
example's outputs by the parameters, and L_n is the Fisher information of its target's distribution
in the outputs. Everything is of one member, whose parameters are a tree of matrices [I, F], and is
given rows R_n J_n, where R_n' R_n = L_n: the same tree, [R, I, F]. Together with a prior of
precision tau a structure makes of it a normal distribution of the parameters.

Daxberger et al., "Laplace redux" (2021), arXiv:2106.14806, has such structures. Kronecker factors
are made by one step of the power method for the nearest Kronecker product (Van Loan and Pitsianis
1993), which needs rows alone, whatever the layer is.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ensemble import pytrees

Rows = Any
"""A tree of arrays [R, I, F]; of structures of the last layer features [B, I] and information
R_n' R_n [B, F, F], or the features [I] of one example."""
Curvature = dict[str, Any]
"""A curvature as it is added up, or its spectrum: a tree of arrays."""

_TINY = 1e-30
_NOTHING = 1e-6
"""The share of the largest eigenvalue that rounding leaves of none."""
_OVERSAMPLED = 3


class Diagonal:
    """Parameters are independent.

    Other structures have eigenvalues in other coordinates.

    Attributes:
        num_passes: Passes over the data.
        adds: Whether what examples add does not depend on the examples before.
    """

    num_passes = 1
    adds = True

    def nothing(self, params: Any) -> Curvature:
        """The curvature of no example."""
        return {"values": jax.tree.map(jnp.zeros_like, params)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Terms of rows in a curvature, in a pass of this number."""
        return {"values": jax.tree.map(lambda leaf: jnp.sum(leaf**2, axis=0), rows)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The spectrum of a curvature: `values`, and what turns parameters."""
        return curvature

    def turned(self, spectrum: Curvature, rows: Rows) -> Any:
        """Rows in the eigenvectors' coordinates, [R, ...] as `values`."""
        return rows

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters, from the eigenvectors' coordinates."""
        return scaled

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """Log determinant of the posterior's precision."""
        leaves = jax.tree.leaves(spectrum["values"])
        return sum((jnp.sum(jnp.log(leaf + precision)) for leaf in leaves), jnp.zeros(()))

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """A draw around zero, by standard normal numbers."""
        scaled = jax.tree.map(
            lambda z, leaf: z / jnp.sqrt(leaf + precision), normal, spectrum["values"]
        )
        return self.back(spectrum, scaled)

    def kept(self, spectrum: Curvature, precision: jax.Array) -> Curvature:
        """The part of a spectrum that `variances` needs."""
        return spectrum

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> Any:
        """Variances [R] of the products of rows with the parameters."""
        shares = jax.tree.map(
            lambda r, h: r**2 / (h + precision), self.turned(spectrum, rows), spectrum["values"]
        )
        return jnp.sum(_flat(shares), axis=1)


class Kronecker(Diagonal):
    """Each matrix of parameters has the curvature A x G, of its first axis and its last."""

    num_passes = 2

    def nothing(self, params: Any) -> Curvature:
        """Both factors of each matrix, trees like the parameters."""

        def zeros(axis: int) -> Any:
            return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[axis],) * 2), params)

        return {"left": zeros(0), "right": zeros(1)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """The left factor in the first pass, for a right one of 1; in the second the right one."""

        def right_of(one: jax.Array, a: jax.Array) -> jax.Array:
            found = jnp.einsum("rif,ij,rjg->fg", one, a, one)
            return found / jnp.maximum(jnp.sum(a * a), _TINY)

        def left_of(one: jax.Array) -> jax.Array:
            return jnp.einsum("rif,rjf->ij", one, one) / one.shape[2]

        nothing = jax.tree.map(jnp.zeros_like, curvature)
        return jax.lax.cond(
            number == 0,
            lambda: {**nothing, "left": jax.tree.map(left_of, rows)},
            lambda: {**nothing, "right": jax.tree.map(right_of, rows, curvature["left"])},
        )

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Products of the factors' eigenvalues, and eigenvectors: trees like the parameters."""
        values, vectors = (
            jax.tree.map(lambda leaf, i=i: jnp.linalg.eigh(leaf)[i], curvature) for i in (0, 1)
        )
        products = jax.tree.map(
            lambda a, g: jnp.maximum(a, 0)[:, None] * jnp.maximum(g, 0), *values.values()
        )
        return {"values": products, "vectors": vectors}

    def turned(self, spectrum: Curvature, rows: Rows) -> Any:
        """Rows between both factors' eigenvectors."""
        return jax.tree.map(
            lambda one, left, right: jnp.einsum("ij,rif,fg->rjg", left, one, right),
            rows,
            *spectrum["vectors"].values(),
        )

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters between both factors' eigenvectors."""
        return jax.tree.map(
            lambda one, left, right: left @ one @ right.T, scaled, *spectrum["vectors"].values()
        )


class LowRank(Diagonal):
    """The largest eigenvectors of the curvature; in all other directions there is the prior alone.

    They are principal components of rows that come in batches, of which three times as many as are
    used are kept on the way: exact while no more directions than these have a curvature, and else
    somewhat short of the largest. Coordinates are those along eigenvectors, and what is left.

    Attributes:
        rank: Directions.
    """

    adds = False
    rank = 20

    def nothing(self, params: Any) -> Curvature:
        """Rows of zeros, [R, P] of all parameters."""
        return {"rows": jnp.zeros((_OVERSAMPLED * self.rank, pytrees.size(params)))}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """The change of the largest principal components by new rows."""
        kept = curvature["rows"]
        return {"rows": _largest(jnp.concatenate([kept, _flat(rows)]), len(kept)) - kept}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues, and eigenvectors of length 1; of none, where there are fewer, zeros."""
        rows = _largest(curvature["rows"], self.rank)
        values = jnp.sum(rows**2, axis=1)
        is_known = values > _NOTHING * jnp.max(values)
        shrink = jnp.where(is_known, 1 / jnp.sqrt(jnp.maximum(values, _TINY)), 0)
        known = jnp.where(is_known, values, 0)
        return {"values": (known, jnp.zeros(())), "vectors": shrink[:, None] * rows}

    def turned(self, spectrum: Curvature, rows: Rows) -> Any:
        """Rows along the eigenvectors, and what is left of them."""
        flat = _flat(rows)
        along = flat @ spectrum["vectors"].T
        return along, flat - along @ spectrum["vectors"]

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """Log determinant of the eigenvalues that are kept, and of the prior."""
        rank, size = spectrum["vectors"].shape
        rest = (size - rank - 1) * jnp.log(precision)
        return super().log_det(spectrum, precision) + rest

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """A draw of the prior, shrunk along the eigenvectors."""
        flat, restore = ravel_pytree(normal)
        coordinates = self.turned(spectrum, flat[None])
        along, rest = super().draw(spectrum, precision, coordinates)
        return restore((along @ spectrum["vectors"] + rest)[0])


class LastLayer(Diagonal):
    """All covariances of the layer that puts the outputs out, a matrix [F', K].

    Its rows are not made: R_n J_n is a product of the layer's inputs, features [F'] with a 1 for
    the bias, and of R_n.
    """

    def nothing(self, params: Any) -> Curvature:
        """Zeros [F', K, F', K]."""
        return {"sums": jnp.zeros(params.shape * 2)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums of products of features, times the information."""
        features, information = rows
        return {"sums": jnp.einsum("nf,ng,nkl->fkgl", features, features, information)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues [F', K], and eigenvectors [F', K, F' K]."""
        shape = curvature["sums"].shape[:2]
        size = math.prod(shape)
        values, vectors = jnp.linalg.eigh(curvature["sums"].reshape(size, size))
        values = jnp.maximum(values, 0).reshape(shape)
        return {"values": values, "vectors": vectors.reshape(*shape, size)}

    def turned(self, spectrum: Curvature, rows: Rows) -> Any:
        """Rows [K, F', K] of the outputs, by the features of an example."""
        along = jnp.einsum("f,fkp->kp", rows, spectrum["vectors"])
        return along.reshape(-1, *spectrum["values"].shape)

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters by the eigenvectors."""
        return spectrum["vectors"] @ scaled.reshape(-1)

    def kept(self, spectrum: Curvature, precision: jax.Array) -> Curvature:
        """Covariances `blocks` [K, F', F'] of the parameters of each output."""
        scaled = spectrum["vectors"] / jnp.sqrt(spectrum["values"].reshape(-1) + precision)
        return {"blocks": jnp.einsum("fkp,gkp->kfg", scaled, scaled)}

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> Any:
        """Variances [K] of the outputs, by the features of an example."""
        if "blocks" in spectrum:
            return jnp.einsum("f,kfg,g->k", rows, spectrum["blocks"], rows)
        return super().variances(spectrum, precision, rows)


class LastLayerKronecker(Kronecker):
    """A `LastLayer` with the curvature A x G of features and of outputs.

    A is the sum of products of features, each by the trace of its information, and G the sum of
    information over the sum of traces: exact where all examples have the same information.
    """

    num_passes = 1

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums over examples."""
        features, information = rows
        left = jnp.einsum("nf,ng,nkk->fg", features, features, information)
        return {"left": left, "right": jnp.sum(information, axis=0)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The same of factors of which the right one has trace 1."""
        right = curvature["right"]
        right = right / jnp.maximum(jnp.trace(right), _TINY)
        return super().spectrum({**curvature, "right": right})

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Variances of the outputs [K], by the features of an example."""
        left, right = spectrum["vectors"].values()
        return right**2 @ ((rows @ left) ** 2 @ (1 / (spectrum["values"] + precision)))


STRUCTURES: dict[str, Any] = {
    "last_layer": LastLayer,
    "last_layer_kronecker": LastLayerKronecker,
    "diagonal": Diagonal,
    "kronecker": Kronecker,
    "low_rank": LowRank,
}
"""Structures by the values of `config.laplace.structure`."""


def _largest(rows: jax.Array, number: int) -> jax.Array:
    """The largest principal components of rows [R, P], as rows."""
    _, vectors = jnp.linalg.eigh(rows @ rows.T)
    return vectors[:, -number:].T @ rows


def _flat(rows: Rows) -> jax.Array:
    """Rows [R, P] of all parameters, side by side."""
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(rows)], axis=1)
