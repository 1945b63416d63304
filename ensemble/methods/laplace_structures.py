"""Covariances of Laplace approximations: how a curvature is added up, and what is drawn of it.

The curvature is that of Gauss and Newton, sum_n J_n' L_n J_n: J_n [K, P] are derivatives of an
example's outputs by the parameters, and L_n is the Fisher information of its target's distribution
in the outputs. Everything is of one member, and told rows R_n J_n, where R_n' R_n = L_n. Together
with a prior of precision tau a structure makes of it a normal distribution of the parameters.

Daxberger et al., "Laplace redux" (2021), arXiv:2106.14806, has such structures. Kronecker factors
are made by one step of the power method for the nearest Kronecker product (Van Loan and Pitsianis
1993), which needs rows alone, whatever the layer is.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from ensemble import pytrees

Rows = Any
"""A tree of arrays [R, ...], as parameters are."""
Curvature = dict[str, Any]
"""What is added up, or its spectrum: a tree of arrays."""


class Structure:
    """What structures have in common: a spectrum with `values`, beside a prior of one precision.

    Attributes:
        num_passes: Passes over the data.
        adds: Whether curvatures of batches are added up.
    """

    num_passes, adds = 1, True

    def values(self, spectrum: Curvature) -> Any:
        """Eigenvalues, a tree."""
        return spectrum["values"]

    def turned(self, spectrum: Curvature, rows: Rows) -> Rows:
        """Rows in the eigenvectors' coordinates."""
        return rows

    def back(self, spectrum: Curvature, scaled: Any, like: Any) -> Any:
        """Parameters, from the eigenvectors' coordinates."""
        return scaled

    def coordinates(self, normal: Any, values: Any) -> Any:
        """Standard normal numbers, tree like the parameters, in the shape of the eigenvalues."""
        return normal

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """Over the eigenvalues."""
        leaves = jax.tree.leaves(self.values(spectrum))
        return sum((jnp.sum(jnp.log(leaf + precision)) for leaf in leaves), jnp.zeros(()))

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """In the eigenvectors' coordinates, and back."""
        values = self.values(spectrum)
        scaled = jax.tree.map(
            lambda z, leaf: z / jnp.sqrt(leaf + precision), self.coordinates(normal, values), values
        )
        return self.back(spectrum, scaled, normal)

    def kept(self, spectrum: Curvature, precision: jax.Array, num_outputs: int) -> Curvature:
        """What `variances` takes of it."""
        return spectrum

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Weighted sums of squares in the eigenvectors' coordinates."""
        rows = self.turned(spectrum, rows)
        return _total_of_rows(lambda r, h: r**2 / (h + precision), rows, self.values(spectrum))


class Diagonal(Structure):
    """Parameters are independent."""

    def nothing(self, params: Any) -> Curvature:
        """A number for each parameter."""
        return {"values": jax.tree.map(jnp.zeros_like, params)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums of squares."""
        return {"values": jax.tree.map(lambda leaf: jnp.sum(leaf**2, axis=0), rows)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The diagonal."""
        return curvature


class Kronecker(Structure):
    """Each array of parameters [..., F] has the curvature A x G, of its other axes and its last."""

    num_passes = 2

    def nothing(self, params: Any) -> Curvature:
        """Both factors of each array, trees like the parameters."""

        def zeros(axis: int) -> Any:
            return jax.tree.map(lambda leaf: jnp.zeros((_sides(leaf)[axis],) * 2), params)

        return {"left": zeros(0), "right": zeros(1)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """The left factor in the first pass, for a right one of 1; in the second the right one."""

        def left_of(leaf: jax.Array) -> jax.Array:
            one = _as_matrices(leaf)
            return jnp.einsum("rif,rjf->ij", one, one) / one.shape[2]

        def right_of(leaf: jax.Array, a: jax.Array) -> jax.Array:
            one = _as_matrices(leaf)
            found = jnp.einsum("rif,rig->fg", one, jnp.einsum("ij,rjg->rig", a, one))
            return found / jnp.maximum(jnp.sum(a * a), _TINY)

        nothing = jax.tree.map(jnp.zeros_like, curvature)
        return jax.lax.cond(
            number == 0,
            lambda: {**nothing, "left": jax.tree.map(left_of, rows)},
            lambda: {**nothing, "right": jax.tree.map(right_of, rows, curvature["left"])},
        )

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The spectrum of both factors: eigenvalues, trees like the parameters, and
        eigenvectors."""
        found: Curvature = {}
        for name, factors in curvature.items():
            leaves, tree = jax.tree.flatten(factors)
            pairs = [jnp.linalg.eigh(one) for one in leaves]
            values = [jnp.maximum(one, 0) for one, _ in pairs]
            found[name] = jax.tree.unflatten(tree, values)
            found[f"{name}_vectors"] = jax.tree.unflatten(tree, [one for _, one in pairs])
        return found

    def values(self, spectrum: Curvature) -> Any:
        """Products of the factors' eigenvalues."""
        return jax.tree.map(lambda a, g: a[:, None] * g, spectrum["left"], spectrum["right"])

    def coordinates(self, normal: Any, values: Any) -> Any:
        """Matrices."""
        return jax.tree.map(lambda z: _as_matrices(z[None])[0], normal)

    def turned(self, spectrum: Curvature, rows: Rows) -> Rows:
        """Between both factors' eigenvectors."""

        def one(leaf: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
            return jnp.einsum("ij,rif,fg->rjg", left, _as_matrices(leaf), right)

        return jax.tree.map(one, rows, spectrum["left_vectors"], spectrum["right_vectors"])

    def back(self, spectrum: Curvature, scaled: Any, like: Any) -> Any:
        """Between both factors' eigenvectors."""
        return jax.tree.map(
            lambda z, scaled, left, right: (left @ scaled @ right.T).reshape(z.shape),
            like,
            scaled,
            spectrum["left_vectors"],
            spectrum["right_vectors"],
        )


class LowRank(Structure):
    """The largest eigenvectors of the curvature; in all other directions there is the prior alone.

    They are principal components of rows that come in batches, of which three times as many as are
    asked for are kept on the way: exact while no more directions than these have a curvature, and
    else somewhat short of the largest.
    """

    adds = False

    def __init__(self, rank: int):
        self._rank = rank

    def nothing(self, params: Any) -> Curvature:
        """Rows of zeros."""
        kept = _OVERSAMPLED * self._rank
        return {"rows": jax.tree.map(lambda leaf: jnp.zeros((kept, *leaf.shape)), params)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """The largest principal components of rows that were kept and new ones."""
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), curvature["rows"], rows)
        return {"rows": _largest(both, _OVERSAMPLED * self._rank)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """Eigenvalues, and eigenvectors of length 1; of none, where there are fewer, zeros."""
        rows = _largest(curvature["rows"], self._rank)
        values = _total_of_rows(lambda r, _: r**2, rows, rows)
        is_known = values > _NOTHING * jnp.max(values)
        shrink = jnp.where(is_known, 1 / jnp.sqrt(jnp.maximum(values, _TINY)), 0)
        vectors = jax.tree.map(
            lambda leaf: leaf * shrink.reshape(-1, *(1,) * (leaf.ndim - 1)), rows
        )
        return {"values": jnp.where(is_known, values, 0), "vectors": vectors}

    def log_det(self, spectrum: Curvature, precision: jax.Array) -> jax.Array:
        """The log determinant of the eigenvalues that are kept, and of the prior."""
        size = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(spectrum["vectors"]))
        kept = jnp.sum(jnp.log(spectrum["values"] + precision))
        return kept + (size - self._rank) * jnp.log(precision)

    def draw(self, spectrum: Curvature, precision: jax.Array, normal: Any) -> Any:
        """Shrunk along the eigenvectors."""
        along = _products(spectrum["vectors"], pytrees.at(normal, None))[:, 0]
        less = 1 / jnp.sqrt(precision) - 1 / jnp.sqrt(spectrum["values"] + precision)
        return jax.tree.map(
            lambda z, v: z / jnp.sqrt(precision) - jnp.tensordot(less * along, v, 1),
            normal,
            spectrum["vectors"],
        )

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """Along the eigenvectors, and of what is left by the prior: sums of squares both."""
        along = _products(rows, spectrum["vectors"])
        rest = jax.tree.map(
            lambda leaf, v: leaf - jnp.tensordot(along, v, 1), rows, spectrum["vectors"]
        )
        of_rest = _total_of_rows(lambda r, _: r**2, rest, rest)
        return of_rest / precision + along**2 @ (1 / (spectrum["values"] + precision))


class LastLayer(Structure):
    """All covariances of the layer that puts the outputs out, kernel [F, K] and perhaps bias [K].

    Its rows are not made: R_n J_n is a product of the layer's inputs, features [F'] with a 1 for
    the bias, and of R_n. They are told as `features` [B, F'] and `information` R_n' R_n [B, K, K].
    """

    def nothing(self, params: Any) -> Curvature:
        """[F', K, F', K]."""
        num_features, num_outputs = _as_layer(params).shape
        return {"layer": jnp.zeros((num_features, num_outputs) * 2)}

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums of products of features, times the information."""
        features, information = rows["features"], rows["information"]
        size, (num_features, num_outputs) = len(features), curvature["layer"].shape[:2]
        weighted = (features[:, :, None, None] * information[:, None]).reshape(size, -1)
        found = (features.T @ weighted).reshape(num_features, num_features, *(num_outputs,) * 2)
        return {"layer": found.transpose(1, 2, 0, 3)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The spectrum of the matrix [F' K, F' K]."""
        layer = curvature["layer"]
        size = layer.shape[0] * layer.shape[1]
        values, vectors = jnp.linalg.eigh(layer.reshape(size, size))
        return {"values": jnp.maximum(values, 0), "vectors": vectors}

    def coordinates(self, normal: Any, values: Any) -> Any:
        """One vector."""
        return _as_layer(normal).reshape(-1)

    def back(self, spectrum: Curvature, scaled: Any, like: Any) -> Any:
        """By the eigenvectors."""
        layer = (spectrum["vectors"] @ scaled).reshape(_as_layer(like).shape)
        return _of_layer(layer, like)

    def kept(self, spectrum: Curvature, precision: jax.Array, num_outputs: int) -> Curvature:
        """Covariances `blocks` [K, F', F'] of what makes each output, for `variances`."""
        vectors = spectrum["vectors"]
        scaled = vectors / jnp.sqrt(spectrum["values"] + precision)
        of_outputs = scaled.reshape(-1, num_outputs, scaled.shape[1])
        return {"blocks": jnp.einsum("fkp,gkp->kfg", of_outputs, of_outputs)}

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """The variances of the outputs [K], by `kept` and the features [F'] of an example."""
        return jnp.einsum("f,kfg,g->k", rows, spectrum["blocks"], rows)


class LastLayerKronecker(Structure):
    """A `LastLayer` with the curvature A x G of features and of outputs.

    A is the sum of products of features, each by the trace of its information, and G the sum of
    information over the sum of traces: exact where all examples have the same information.
    """

    def nothing(self, params: Any) -> Curvature:
        """Both factors."""
        num_features, num_outputs = _as_layer(params).shape
        return {
            "left": jnp.zeros((num_features, num_features)),
            "right": jnp.zeros((num_outputs, num_outputs)),
        }

    def terms(self, curvature: Curvature, rows: Rows, number: Any) -> Curvature:
        """Sums over examples."""
        features, information = rows["features"], rows["information"]
        traces = jnp.trace(information, axis1=1, axis2=2)
        left = (features * traces[:, None]).T @ features
        return {"left": left, "right": jnp.sum(information, axis=0)}

    def spectrum(self, curvature: Curvature) -> Curvature:
        """The spectrum of both factors."""
        right = curvature["right"]
        right = right / jnp.maximum(jnp.trace(right), _TINY)
        (a, left_vectors), (g, right_vectors) = map(jnp.linalg.eigh, (curvature["left"], right))
        return {
            "values": jnp.maximum(a, 0)[:, None] * jnp.maximum(g, 0),
            "left_vectors": left_vectors,
            "right_vectors": right_vectors,
        }

    def coordinates(self, normal: Any, values: Any) -> Any:
        """A matrix."""
        return _as_layer(normal)

    def back(self, spectrum: Curvature, scaled: Any, like: Any) -> Any:
        """Between both factors' eigenvectors."""
        return _of_layer(spectrum["left_vectors"] @ scaled @ spectrum["right_vectors"].T, like)

    def variances(self, spectrum: Curvature, precision: jax.Array, rows: Rows) -> jax.Array:
        """The variances of the outputs [K], by the features [F'] of an example."""
        turned = rows @ spectrum["left_vectors"]
        along = turned**2 @ (1 / (spectrum["values"] + precision))
        return spectrum["right_vectors"] ** 2 @ along


_TINY = 1e-30
_NOTHING = 1e-6
"""The share of the largest eigenvalue that rounding leaves of none."""
_OVERSAMPLED = 3


def _largest(rows: Rows, number: int) -> Rows:
    """The largest principal components of rows, as rows."""
    _, vectors = jnp.linalg.eigh(_products(rows, rows))
    chosen = vectors[:, -number:]
    return jax.tree.map(lambda leaf: jnp.tensordot(chosen.T, leaf, 1), rows)


def _sides(leaf: Any) -> tuple[int, int]:
    """The sizes of the matrix that an array [..., F] of parameters is."""
    last = leaf.shape[-1] if leaf.ndim else 1
    return math.prod(leaf.shape) // max(last, 1), last


def _as_matrices(rows: jax.Array) -> jax.Array:
    """Rows [R, ..., F] as [R, I, F]."""
    return rows.reshape(len(rows), *_sides(rows[0]))


def _total_of_rows(fn: Any, rows: Rows, other: Any) -> jax.Array:
    """Sums [R] over all but the first axis of a function of rows and of a tree beside them."""
    pairs = zip(jax.tree.leaves(rows), jax.tree.leaves(other), strict=True)
    sums = [jnp.sum(fn(r, h), axis=tuple(range(1, r.ndim))) for r, h in pairs]
    return sum(sums[1:], sums[0])


def _products(first: Rows, second: Rows) -> jax.Array:
    """Inner products [R, S] of rows."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return sum(a.reshape(len(a), -1) @ b.reshape(len(b), -1).T for a, b in pairs)


def _as_layer(params: Any) -> jax.Array:
    """Kernel and bias as [F', K]."""
    rows = [params["kernel"], *([params["bias"][None]] if "bias" in params else [])]
    return jnp.concatenate(rows)


def _of_layer(layer: jax.Array, like: Any) -> Any:
    """The inverse of `_as_layer`."""
    found = {"kernel": layer[: len(like["kernel"])]}
    return found | ({"bias": layer[-1]} if "bias" in like else {})


RANK = 20
"""Directions of the low-rank structure."""


def structure_of(name: str) -> Any:
    """The structure of a name of `config.laplace.structure`."""
    kinds: dict[str, Any] = {
        "last_layer": LastLayer,
        "last_layer_kronecker": LastLayerKronecker,
        "diagonal": Diagonal,
        "kronecker": Kronecker,
        "low_rank": functools.partial(LowRank, RANK),
    }
    return kinds[name]()
