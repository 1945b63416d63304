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

from ensemble import pytrees

Rows = Any
"""A tree of arrays [R, I, F]; of structures of the last layer `features` [B, I] alone, or with
`information` R_n' R_n [B, F, F]."""
Curvature = dict[str, Any]
"""What is added up, or its spectrum: a tree of arrays."""

RANK = 20
"""Directions of the low-rank structure."""
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
        """What rows add to a curvature, in a pass of this number."""
        return {"values": jax.tree.map(lambda leaf: jnp.sum(leaf**2, axis=0), rows)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The spectrum of a curvature."""
        return curvature

    def values(self, spectrum: Curvature) -> Any:
        """Eigenvalues, a tree like the parameters."""
        return spectrum["values"]

    def turned(self, spectrum: Curvature, rows: Rows) -> Rows:
        """Rows in the eigenvectors' coordinates."""
        return rows

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters, from the eigenvectors' coordinates."""
        return scaled

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """Log determinant of the posterior's precision."""
        leaves = jax.tree.leaves(self.values(spectrum))
        return sum((jnp.sum(jnp.log(leaf + precision)) for leaf in leaves), jnp.zeros(()))

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """A draw around zero, by standard normal numbers."""
        scaled = jax.tree.map(
            lambda z, leaf: z / jnp.sqrt(leaf + precision), normal, self.values(spectrum)
        )
        return self.back(spectrum, scaled)

    def kept(self, spectrum: Curvature, precision: jax.Array) -> Curvature:
        """The part of a spectrum that `variances` needs."""
        return spectrum

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Variances [R] of the products of rows with the parameters."""
        shares = jax.tree.map(
            lambda r, h: r**2 / (h + precision),
            self.turned(spectrum, rows),
            self.values(spectrum),
        )
        return _sums(shares)


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

        def left_of(one: jax.Array) -> jax.Array:
            return jnp.einsum("rif,rjf->ij", one, one) / one.shape[2]

        def right_of(one: jax.Array, a: jax.Array) -> jax.Array:
            found = jnp.einsum("rif,rig->fg", one, jnp.einsum("ij,rjg->rig", a, one))
            return found / jnp.maximum(jnp.sum(a * a), _TINY)

        nothing = jax.tree.map(jnp.zeros_like, curvature)
        return jax.lax.cond(
            number == 0,
            lambda: {**nothing, "left": jax.tree.map(left_of, rows)},
            lambda: {**nothing, "right": jax.tree.map(right_of, rows, curvature["left"])},
        )

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues and eigenvectors of both factors, trees like the parameters."""
        found: Curvature = {}
        for name, factors in curvature.items():
            leaves, tree = jax.tree.flatten(factors)
            values, vectors = zip(*map(jnp.linalg.eigh, leaves), strict=True)
            found[name] = jax.tree.unflatten(tree, [jnp.maximum(one, 0) for one in values])
            found[f"{name}_vectors"] = jax.tree.unflatten(tree, vectors)
        return found

    def values(self, spectrum: Curvature) -> Any:
        """Products of the factors' eigenvalues."""
        return jax.tree.map(lambda a, g: a[:, None] * g, spectrum["left"], spectrum["right"])

    def turned(self, spectrum: Curvature, rows: Rows) -> Rows:
        """Rows between both factors' eigenvectors."""
        vectors = spectrum["left_vectors"], spectrum["right_vectors"]
        return jax.tree.map(
            lambda one, left, right: jnp.einsum("ij,rif,fg->rjg", left, one, right), rows, *vectors
        )

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters between both factors' eigenvectors."""
        vectors = spectrum["left_vectors"], spectrum["right_vectors"]
        return jax.tree.map(lambda one, left, right: left @ one @ right.T, scaled, *vectors)


class LowRank(Diagonal):
    """The largest eigenvectors of the curvature; in all other directions there is the prior alone.

    They are principal components of rows that come in batches, of which three times as many as are
    asked for are kept on the way: exact while no more directions than these have a curvature, and
    else somewhat short of the largest.
    """

    adds = False

    def __init__(self, rank: int = RANK):
        self._rank = rank

    def nothing(self, params: Any) -> Curvature:
        """Rows of zeros."""
        kept = _OVERSAMPLED * self._rank
        return {"rows": jax.tree.map(lambda leaf: jnp.zeros((kept, *leaf.shape)), params)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """The change of the largest principal components by new rows."""
        kept = curvature["rows"]
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), kept, rows)
        largest = _largest(both, _OVERSAMPLED * self._rank)
        return {"rows": jax.tree.map(jnp.subtract, largest, kept)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues, and eigenvectors of length 1; of none, where there are fewer, zeros."""
        rows = _largest(curvature["rows"], self._rank)
        values = _sums(jax.tree.map(jnp.square, rows))
        is_known = values > _NOTHING * jnp.max(values)
        shrink = jnp.where(is_known, 1 / jnp.sqrt(jnp.maximum(values, _TINY)), 0)
        vectors = jax.tree.map(lambda leaf: leaf * shrink[:, None, None], rows)
        return {"values": jnp.where(is_known, values, 0), "vectors": vectors}

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """Log determinant of the eigenvalues that are kept, and of the prior."""
        size = pytrees.size(spectrum["vectors"]) // self._rank
        kept = jnp.sum(jnp.log(spectrum["values"] + precision))
        return kept + (size - self._rank) * jnp.log(precision)

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """A draw of the prior, shrunk along the eigenvectors."""
        along = _products(spectrum["vectors"], pytrees.at(normal, None))[:, 0]
        less = 1 / jnp.sqrt(precision) - 1 / jnp.sqrt(spectrum["values"] + precision)
        return jax.tree.map(
            lambda z, v: z / jnp.sqrt(precision) - jnp.tensordot(less * along, v, 1),
            normal,
            spectrum["vectors"],
        )

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Variances along the eigenvectors, and of what is left by the prior."""
        along = _products(rows, spectrum["vectors"])
        rest = jax.tree.map(
            lambda leaf, v: leaf - jnp.tensordot(along, v, 1), rows, spectrum["vectors"]
        )
        of_rest = _sums(jax.tree.map(jnp.square, rest)) / precision
        return of_rest + along**2 @ (1 / (spectrum["values"] + precision))


class LastLayer(Diagonal):
    """All covariances of the layer that puts the outputs out, a matrix `layer` [F', K].

    Its rows are not made: R_n J_n is a product of the layer's inputs, features [F'] with a 1 for
    the bias, and of R_n.
    """

    def nothing(self, params: Any) -> Curvature:
        """Zeros [F', K, F', K]."""
        return {"layer": jnp.zeros(params["layer"].shape * 2)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums of products of features, times the information."""
        features = rows["features"]
        information = rows["information"]
        size = len(features)
        num_features, num_outputs = curvature["layer"].shape[:2]
        weighted = (features[:, :, None, None] * information[:, None]).reshape(size, -1)
        found = (features.T @ weighted).reshape(num_features, num_features, *(num_outputs,) * 2)
        return {"layer": found.transpose(1, 2, 0, 3)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues [F', K], and eigenvectors [F', K, F' K]."""
        shape = curvature["layer"].shape[:2]
        size = math.prod(shape)
        values, vectors = jnp.linalg.eigh(curvature["layer"].reshape(size, size))
        values = jnp.maximum(values, 0).reshape(shape)
        return {"values": {"layer": values}, "vectors": vectors.reshape(*shape, size)}

    def back(self, spectrum: Curvature, scaled: Any) -> Any:
        """Parameters by the eigenvectors."""
        return {"layer": spectrum["vectors"] @ scaled["layer"].reshape(-1)}

    def kept(self, spectrum: Curvature, precision: jax.Array) -> Curvature:
        """Covariances `blocks` [K, F', F'] of the parameters of each output."""
        scaled = spectrum["vectors"] / jnp.sqrt(spectrum["values"]["layer"].reshape(-1) + precision)
        return {"blocks": jnp.einsum("fkp,gkp->kfg", scaled, scaled)}

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Variances of the outputs [K], by the features of an example."""
        if "blocks" in spectrum:
            return jnp.einsum("f,kfg,g->k", rows, spectrum["blocks"], rows)
        along = jnp.einsum("f,fkp->kp", rows, spectrum["vectors"])
        return along**2 @ (1 / (spectrum["values"]["layer"].reshape(-1) + precision))


class LastLayerKronecker(Kronecker):
    """A `LastLayer` with the curvature A x G of features and of outputs.

    A is the sum of products of features, each by the trace of its information, and G the sum of
    information over the sum of traces: exact where all examples have the same information.
    """

    num_passes = 1

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums over examples."""
        features = rows["features"]
        information = rows["information"]
        traces = jnp.trace(information, axis1=1, axis2=2)
        left = (features * traces[:, None]).T @ features
        return {"left": {"layer": left}, "right": {"layer": jnp.sum(information, axis=0)}}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues and eigenvectors of both factors, the right one of trace 1."""
        right = curvature["right"]["layer"]
        right = right / jnp.maximum(jnp.trace(right), _TINY)
        return super().spectrum({**curvature, "right": {"layer": right}})

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Variances of the outputs [K], by the features of an example."""
        along = (rows @ spectrum["left_vectors"]["layer"]) ** 2
        along = along @ (1 / (self.values(spectrum)["layer"] + precision))
        return spectrum["right_vectors"]["layer"] ** 2 @ along


STRUCTURES: dict[str, Any] = {
    "last_layer": LastLayer,
    "last_layer_kronecker": LastLayerKronecker,
    "diagonal": Diagonal,
    "kronecker": Kronecker,
    "low_rank": LowRank,
}
"""Structures by the values of `config.laplace.structure`."""


def _largest(rows: Rows, number: int) -> Rows:
    """The largest principal components of rows, as rows."""
    _, vectors = jnp.linalg.eigh(_products(rows, rows))
    return jax.tree.map(lambda leaf: jnp.tensordot(vectors[:, -number:].T, leaf, 1), rows)


def _sums(rows: Rows) -> jax.Array:
    """Sums [R] over all but the first axis."""
    sums = [jnp.sum(leaf, axis=(1, 2)) for leaf in jax.tree.leaves(rows)]
    return sum(sums[1:], sums[0])


def _products(first: Rows, second: Rows) -> jax.Array:
    """Inner products [R, S] of rows."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return sum(a.reshape(len(a), -1) @ b.reshape(len(b), -1).T for a, b in pairs)
