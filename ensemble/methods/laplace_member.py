"""One member's Laplace approximation: its curvature, its posterior, and how that predicts.

Everything is a pure function of one member. `covered` are the parameters that have a distribution:
those of the last layer, or all but the likelihood's own.
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
from ensemble.methods.laplace_structures import structure_of
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
        self.task, self.is_last, self.structure = task, name in LAST_LAYER, structure_of(name)

    # Parameters.

    def covered(self, variables: Variables) -> Any:
        """The parameters that have a distribution."""
        params = variables["params"]
        if not self.is_last:
            return pytrees.without(params, OWN)
        layer = self.task.output_layer
        assert layer is not None  # It has been checked.
        return {
            name: functools.reduce(lambda tree, key: tree[key.key], path, params)
            for name, path in layer.items()
        }

    def outputs(self, variables: Variables, covered: Any, inputs: jax.Array) -> jax.Array:
        """Outputs [B, K] of prepared inputs, by covered parameters in place of the member's."""
        params = {**variables["params"], **covered}
        if self.is_last:
            places = {path: covered[name] for name, path in (self.task.output_layer or {}).items()}
            params = jax.tree.map_with_path(
                lambda path, leaf: places.get(path, leaf), variables["params"]
            )
        return self.task.outputs({**variables, "params": params}, inputs)[0]

    def own(self, variables: Variables) -> Any:
        """The likelihood's own parameters."""
        return variables["params"].get(OWN, {})

    # Curvature.

    def derivatives(self, variables: Variables, one: jax.Array) -> Any:
        """Derivatives of the outputs of one prepared example by the covered parameters.

        Of the last layer they are its inputs [F'], with a 1 for its bias.
        """
        covered = self.covered(variables)

        def outputs(covered: Any) -> jax.Array:
            return self.outputs(variables, covered, one[None])[0]

        if not self.is_last:
            return jax.jacrev(outputs)(covered)
        gradient = jax.grad(lambda layer: outputs(layer)[0])(covered)
        ones = [jnp.ones(1)] if "bias" in covered else []
        return jnp.concatenate([gradient["kernel"][:, 0], *ones])

    def information_root(self, variables: Variables, outputs: jax.Array) -> jax.Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood
        if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.

            def log_probs(one: jax.Array) -> Any:
                return likelihood.class_log_probs(one[None])[0]

            return jnp.exp(0.5 * log_probs(outputs))[:, None] * jax.jacfwd(log_probs)(outputs)

        def parts(one: jax.Array) -> Any:
            found = likelihood.predict(self.own(variables), one[None])
            return found["loc"].reshape(-1), found["scale"].reshape(-1)

        def said(one: jax.Array) -> jax.Array:
            loc, scales = parts(one)
            return jnp.concatenate([loc, jnp.log(scales)])

        _, scales = parts(outputs)
        roots = jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])
        return roots[:, None] * jax.jacfwd(said)(outputs)

    def rows(
        self, variables: Variables, one: jax.Array, weight: jax.Array
    ) -> tuple[Any, jax.Array]:
        """What the structure takes of one prepared example, and the outputs [K]."""
        outputs = self.task.outputs(variables, one[None])[0][0]
        root = jnp.sqrt(weight) * self.information_root(variables, outputs)
        found = self.derivatives(variables, one)
        if self.is_last:
            return {"features": found, "information": root.T @ root}, outputs
        return jax.tree.map(lambda leaf: jnp.tensordot(root, leaf, 1), found), outputs

    def variances(self, posterior: Any, derivatives: Any) -> jax.Array:
        """Variances [K] of the outputs of one example, by `derivatives`."""
        found: jax.Array = self.structure.variances(
            posterior["spectrum"], posterior["prior_precision"], derivatives
        )
        return found

    def at_once(self, variables: Variables) -> int:
        """Examples whose derivatives are in memory at once."""
        number = pytrees.size(self.covered(variables))
        return max(1, _JACOBIAN_BYTES // (8 * number * self.task.likelihood.num_outputs))

    def added(
        self, variables: Variables, sums: Any, number: Any, inputs: jax.Array, weights: jax.Array
    ) -> tuple[Any, jax.Array]:
        """What a batch adds to the curvature, or the curvature with it; and the outputs [B, K].

        Args:
            variables: Of the member.
            sums: The curvature so far.
            number: Number of the pass over the data.
            inputs: [B, ...], prepared.
            weights: [B].
        """
        structure = self.structure

        def of_examples(variables: Variables, inputs: jax.Array, weights: jax.Array) -> Any:
            return jax.vmap(functools.partial(self.rows, variables))(inputs, weights)

        if self.is_last:
            rows, outputs = of_examples(variables, inputs, weights)
            return structure.terms(sums, rows, number), outputs
        at_once = min(len(inputs), self.at_once(variables))
        num_parts = -(-len(inputs) // at_once)
        padding = num_parts * at_once - len(inputs)

        def parts(leaf: jax.Array, fill: jax.Array) -> jax.Array:
            padded = jnp.concatenate([leaf, jnp.broadcast_to(fill, (padding, *leaf.shape[1:]))])
            return padded.reshape(num_parts, at_once, *leaf.shape[1:])

        @in_turn
        def scanned(sums: Any, variables: Variables, columns: Any, number: Any) -> Any:
            def one(carry: Any, part: Any) -> tuple[Any, jax.Array]:
                rows, outputs = of_examples(variables, *part)
                found = pytrees.merged(rows)
                if structure.adds:
                    terms = structure.terms(sums, found, number)
                    return jax.tree.map(jnp.add, carry, terms), outputs
                return structure.terms(carry, found, number), outputs

            start = jax.tree.map(jnp.zeros_like, sums) if structure.adds else sums
            return jax.lax.scan(one, start, columns)

        columns = parts(inputs, inputs[-1]), parts(weights, jnp.zeros((), weights.dtype))
        found, outputs = scanned(sums, variables, columns, jnp.asarray(number))
        return found, outputs.reshape(-1, outputs.shape[-1])[: len(inputs)]

    # Posterior.

    def posterior(
        self,
        variables: Variables,
        spectrum: Any,
        log_likelihood: jax.Array,
        precision: jax.Array,
        is_closed: bool,
    ) -> dict[str, Any]:
        """Posterior of a prior precision, or of the one with the largest marginal likelihood.

        Args:
            variables: Of the member.
            spectrum: Spectrum of its curvature.
            log_likelihood: Of the training data, [] nats.
            precision: Of the prior, []; NaN: the best.
            is_closed: If True, it is to predict by the closed form.
        """
        leaves = jax.tree.leaves(self.covered(variables))
        size, squares = sum(leaf.size for leaf in leaves), sum(jnp.sum(leaf**2) for leaf in leaves)

        def log_evidence(tau: jax.Array) -> jax.Array:
            prior = 0.5 * (size * jnp.log(tau) - tau * squares)
            return log_likelihood + prior - 0.5 * self.structure.log_det(spectrum, tau)

        tried = jnp.asarray(_PRECISIONS, jnp.float32)
        best = tried[jnp.argmax(jax.lax.map(log_evidence, tried))]
        precision = jnp.where(jnp.isnan(precision), best, precision)
        number = self.task.likelihood.num_outputs
        kept = self.structure.kept(spectrum, precision, number) if is_closed else spectrum
        return {
            "spectrum": kept,
            "prior_precision": precision,
            "log_marginal_likelihood": log_evidence(precision),
        }

    # Predictions.

    def closed(
        self, variables: Variables, outputs: jax.Array, variances: jax.Array
    ) -> dict[str, jax.Array]:
        """The prediction by outputs [B, K] and their variances.

        Logits are divided by sqrt(1 + pi / 8 variance), MacKay's approximation, and the variance of
        a number's mean is added to that of its noise. Covariances of outputs, and the variance of a
        scale, do not enter.
        """
        likelihood: Any = self.task.likelihood
        predict = functools.partial(likelihood.predict, self.own(variables))
        predicted: dict[str, jax.Array] = predict(outputs)
        if "log_probs" in predicted:
            widths = jnp.sqrt(1 + math.pi / 8 * variances)
            if likelihood.class_weights is None:
                return predict(outputs / widths)
            shift = np.log(likelihood.class_weights)
            return predict((outputs - shift) / widths + shift)
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
    off = member.structure.draw(posterior["spectrum"], posterior["prior_precision"], normal)
    seen = Supervised.prepare(task, inputs)
    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(lambda one: member.outputs(variables, one, seen), covered)
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    return task.likelihood.predict(member.own(variables), at_mean + change)


@precise
def predict_closed(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By the variances of outputs: see `Approximation.closed`."""
    member, (variables, _) = Approximation(task, name), parts_of_set(one)
    seen = Supervised.prepare(task, inputs)
    outputs = task.outputs(variables, seen)[0]

    def variances_of(one: Any, example: jax.Array) -> jax.Array:
        variables, posterior = parts_of_set(one)
        return member.variances(posterior, member.derivatives(variables, example))

    if member.is_last:
        variances = jax.vmap(functools.partial(variances_of, one))(seen)
        return member.closed(variables, outputs, variances)
    # The batch of an export has no size.
    is_known = isinstance(seen.shape[0], int)
    size = min(member.at_once(variables), len(seen)) if is_known else None

    @in_turn
    def mapped(one: Any, seen: jax.Array) -> jax.Array:
        return jax.lax.map(functools.partial(variances_of, one), seen, batch_size=size)

    return member.closed(variables, outputs, mapped(one, seen))


def parts_of_set(one: Any) -> tuple[Variables, Any]:
    """The network's variables, and what the method keeps."""
    return pytrees.without(one, OF_METHOD), one[OF_METHOD]
