"""One member's Laplace approximation: its curvature, its posterior, and how that predicts.

Everything is a pure function of one member. Its parameters that have a distribution, those of the
last layer or all but the likelihood's own, are a tree of matrices: see `laplace_structures`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import LAST_LAYER
from ensemble.fitted import OWN as OF_METHOD
from ensemble.methods.laplace_structures import STRUCTURES
from ensemble.network import Variables
from ensemble.runtime.streams import Stream
from ensemble.tasks.supervised import OWN, Supervised

_PRECISIONS = np.logspace(-4, 8, 241)
"""Precisions of the prior, among which the marginal likelihood chooses."""
_JACOBIAN_BYTES = 1 << 26
"""The size of the derivatives of several examples at once; one example's may take more."""


in_turn = jax.custom_batching.sequential_vmap
"""Members one after another where accelerators would vmap them: derivatives of the outputs of many
examples by the kernel of a convolution have no rule for one vmap more, nor the memory."""


def precise(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same in full float32: small differences of large sums count, which accelerators round."""

    @functools.wraps(fn)
    def precise(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(*args)

    return precise


class Approximation:
    """The functions of one member.

    Args:
        task: What it has learned.
        name: Name of the covariance's structure.
    """

    def __init__(self, task: Supervised, name: str):
        self.task, self.is_last, self.structure = task, name in LAST_LAYER, STRUCTURES[name]()

    # Parameters.

    def covered(self, variables: Variables) -> Any:
        """The parameters that have a distribution, as they lie in the network."""
        params = variables["params"]
        if not self.is_last:
            return pytrees.without(params, OWN)
        return {
            name: functools.reduce(lambda tree, key: tree[key.key], path, params)
            for name, path in (self.task.output_layer or {}).items()
        }

    def matrices(self, covered: Any) -> Any:
        """The same as matrices [I, F]; those of the last layer as one, with the bias below."""
        if self.is_last:
            bias = [covered["bias"][None]] if "bias" in covered else []
            return {"layer": jnp.concatenate([covered["kernel"], *bias])}
        return jax.tree.map(
            lambda leaf: leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1), covered
        )

    def outputs(self, variables: Variables, matrices: Any, inputs: jax.Array) -> jax.Array:
        """Outputs [B, K] of prepared inputs, by matrices in place of the member's parameters."""
        params, covered = variables["params"], self.covered(variables)
        if self.is_last:
            whole = matrices["layer"]
            layer = {"kernel": whole[: len(covered["kernel"])], "bias": whole[-1]}
            places = {path: layer[name] for name, path in (self.task.output_layer or {}).items()}
            params = jax.tree.map_with_path(lambda path, leaf: places.get(path, leaf), params)
        else:
            own = jax.tree.map(lambda one, leaf: one.reshape(leaf.shape), matrices, covered)
            params = {**params, **own}
        return self.task.outputs({**variables, "params": params}, inputs)[0]

    def own(self, variables: Variables) -> Any:
        """The likelihood's own parameters."""
        return variables["params"].get(OWN, {})

    # Curvature.

    def derivatives(self, variables: Variables, one: jax.Array) -> Any:
        """Derivatives [K, I, F] of the outputs of one prepared example by the matrices.

        Of the last layer they are its inputs [F'], with a 1 for its bias.
        """
        matrices = self.matrices(self.covered(variables))

        def outputs(matrices: Any) -> jax.Array:
            return self.outputs(variables, matrices, one[None])[0]

        if not self.is_last:
            return jax.jacrev(outputs)(matrices)
        return jax.grad(lambda matrices: outputs(matrices)[0])(matrices)["layer"][:, 0]

    def information_root(self, variables: Variables, outputs: jax.Array) -> jax.Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood
        if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.

            def log_probs(one: jax.Array) -> Any:
                return likelihood.class_log_probs(one[None])[0]

            return jnp.exp(0.5 * log_probs(outputs))[:, None] * jax.jacfwd(log_probs)(outputs)

        def parts(one: jax.Array) -> Any:
            found = likelihood.predict(self.own(variables), one[None])
            scales = found["scale"].reshape(-1)
            return jnp.concatenate([found["loc"].reshape(-1), jnp.log(scales)]), scales

        slopes, scales = jax.jacfwd(parts, has_aux=True)(outputs)
        roots = jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])
        return roots[:, None] * slopes

    def rows(
        self, variables: Variables, one: jax.Array, weight: jax.Array
    ) -> tuple[Any, jax.Array]:
        """The rows of one prepared example, as its structure takes them, and the outputs [K]."""
        outputs = self.task.outputs(variables, one[None])[0][0]
        root = jnp.sqrt(weight) * self.information_root(variables, outputs)
        found = self.derivatives(variables, one)
        if self.is_last:
            return {"features": found, "information": root.T @ root}, outputs
        return jax.tree.map(lambda leaf: jnp.tensordot(root, leaf, 1), found), outputs

    def at_once(self, variables: Variables, size: int) -> int:
        """Examples of a batch whose derivatives are in memory at once: a divisor of its size."""
        of_one = 8 * pytrees.size(self.covered(variables)) * self.task.likelihood.num_outputs
        most = max(1, min(size, _JACOBIAN_BYTES // of_one))
        return next(number for number in range(most, 0, -1) if size % number == 0)

    def added(
        self, variables: Variables, curvature: Any, number: Any, inputs: jax.Array, weights: Any
    ) -> tuple[Any, jax.Array]:
        """What a batch adds to the curvature, and the outputs [B, K].

        Args:
            variables: Of the member.
            curvature: So far.
            number: Number of the pass over the data.
            inputs: [B, ...], prepared.
            weights: [B].
        """

        def of_part(variables: Variables, curvature: Any, number: Any, part: Any) -> Any:
            rows, outputs = jax.vmap(functools.partial(self.rows, variables))(*part)
            rows = rows if self.is_last else pytrees.merged(rows)
            return self.structure.terms(curvature, rows, number), outputs

        if self.is_last:
            return of_part(variables, curvature, number, (inputs, weights))

        @in_turn
        def scanned(variables: Variables, curvature: Any, number: Any, parts: Any) -> Any:
            def one(found: Any, part: Any) -> tuple[Any, jax.Array]:
                so_far = jax.tree.map(jnp.add, curvature, found)
                terms, outputs = of_part(variables, so_far, number, part)
                return jax.tree.map(jnp.add, found, terms), outputs

            return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, curvature), parts)

        size = self.at_once(variables, len(inputs))
        parts = jax.tree.map(
            lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (inputs, weights)
        )
        found, outputs = scanned(variables, curvature, jnp.asarray(number), parts)
        return found, outputs.reshape(len(inputs), -1)

    # Posterior.

    def posterior(
        self, variables: Variables, spectrum: Any, log_likelihood: jax.Array, precision: jax.Array
    ) -> dict[str, Any]:
        """Posterior of a prior precision, or of the one with the largest marginal likelihood.

        Args:
            variables: Of the member.
            spectrum: Spectrum of its curvature.
            log_likelihood: Of the training data, [] nats.
            precision: Of the prior, []; NaN: the best.
        """
        leaves = jax.tree.leaves(self.covered(variables))
        size, squares = sum(leaf.size for leaf in leaves), sum(jnp.sum(leaf**2) for leaf in leaves)

        def log_evidence(tau: jax.Array) -> jax.Array:
            prior = 0.5 * (size * jnp.log(tau) - tau * squares)
            return log_likelihood + prior - 0.5 * self.structure.log_det(spectrum, tau)

        tried = jnp.asarray(_PRECISIONS, jnp.float32)
        best = tried[jnp.argmax(jax.lax.map(log_evidence, tried))]
        precision = jnp.where(jnp.isnan(precision), best, precision)
        return {
            "spectrum": spectrum,
            "prior_precision": precision,
            "log_marginal_likelihood": log_evidence(precision),
        }

    # Predictions.

    def closed(
        self, variables: Variables, spectrum: Any, precisions: jax.Array, inputs: jax.Array
    ) -> dict[str, jax.Array]:
        """Predictions [T, B, ...] of prepared inputs by variances of outputs, without draws.

        Logits are divided by sqrt(1 + pi / 8 variance), MacKay's approximation, and the variance of
        a number's mean is added to that of its noise. Covariances of outputs, and the variance of a
        scale, do not enter.

        Args:
            variables: Of the member.
            spectrum: Spectrum of its curvature.
            precisions: Of the prior, [T].
            inputs: [B, ...], prepared.
        """

        own = self.own(variables)

        def of_example(variables: Variables, spectrum: Any, taus: Any, one: Any) -> jax.Array:
            found = self.derivatives(variables, one)
            return jax.vmap(lambda tau: self.structure.variances(spectrum, tau, found))(taus)

        @in_turn
        def mapped(variables: Variables, spectrum: Any, taus: Any, inputs: jax.Array) -> jax.Array:
            # The batch of an export has no size.
            is_known = isinstance(inputs.shape[0], int)
            size = self.at_once(variables, len(inputs)) if is_known else None
            each = functools.partial(of_example, variables, spectrum, taus)
            return jax.lax.map(each, inputs, batch_size=size)

        each = jax.vmap(of_example, (None, None, None, 0)) if self.is_last else mapped
        variances = each(variables, spectrum, precisions, inputs)
        outputs, predict = self.task.outputs(variables, inputs)[0], self.task.likelihood.predict
        widen = functools.partial(self._widened, functools.partial(predict, own), outputs)
        return jax.vmap(widen, 1)(variances)

    def _widened(
        self, predict: Callable[[jax.Array], Any], outputs: jax.Array, variances: jax.Array
    ) -> dict[str, jax.Array]:
        """The prediction by outputs [B, K] and their variances."""
        likelihood: Any = self.task.likelihood
        predicted: dict[str, jax.Array] = predict(outputs)
        if "log_probs" in predicted:
            weights = likelihood.class_weights
            shift = 0 if weights is None else np.log(weights)
            return predict((outputs - shift) / jnp.sqrt(1 + math.pi / 8 * variances) + shift)
        slopes = jax.vmap(jax.jacfwd(lambda one: predict(one[None])["loc"][0]))(outputs)
        of_mean = jnp.einsum("b...k,bk->b...", slopes**2, variances)
        return {**predicted, "scale": jnp.sqrt(predicted["scale"] ** 2 + of_mean)}


@precise
def predict_draw(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By one draw of the parameters, in which the network is linearised."""
    member, (variables, posterior) = Approximation(task, name), parts_of_set(one)
    rng_key = jax.random.fold_in(jax.random.wrap_key_data(posterior["rng_key"]), Stream.DRAWS)
    covered = member.covered(variables)
    normal = pytrees.standard_normal(jax.random.fold_in(rng_key, number), covered)
    off = member.structure.draw(
        posterior["spectrum"], posterior["prior_precision"], member.matrices(normal)
    )
    seen = Supervised.prepare(task, inputs)
    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(
        lambda one: member.outputs(variables, one, seen), member.matrices(covered)
    )
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    return task.likelihood.predict(member.own(variables), at_mean + change)


@precise
def predict_closed(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By the variances of outputs: see `Approximation.closed`."""
    variables, posterior = parts_of_set(one)
    precisions, seen = posterior["prior_precision"][None], Supervised.prepare(task, inputs)
    found = Approximation(task, name).closed(variables, posterior["spectrum"], precisions, seen)
    return pytrees.at(found, 0)


def parts_of_set(one: Any) -> tuple[Variables, Any]:
    """The network's variables, and what the method keeps."""
    return pytrees.without(one, OF_METHOD), one[OF_METHOD]
