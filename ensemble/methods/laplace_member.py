"""One member's Laplace approximation: its curvature, its posterior, and how that predicts.

Everything is a pure function of one member. `covered` are the parameters that have a distribution:
those of the last layer, or all but the likelihood's own.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def covered_params(task: Supervised, variables: Variables, structure: str) -> Any:
    """The parameters that have a distribution."""
    params = variables["params"]
    if structure not in LAST_LAYER:
        return {name: leaf for name, leaf in params.items() if name != OWN}
    layer = task.output_layer
    assert layer is not None  # It has been checked.
    return {
        name: functools.reduce(lambda tree, key: tree[key.key], path, params)
        for name, path in layer.items()
    }


def with_covered(task: Supervised, variables: Variables, covered: Any, structure: str) -> Variables:
    """Variables whose parameters that have a distribution are replaced."""
    params = variables["params"]
    if structure not in LAST_LAYER:
        return {**variables, "params": {**params, **covered}}
    layer = task.output_layer
    assert layer is not None
    places = {path: covered[name] for name, path in layer.items()}
    return {
        **variables,
        "params": jax.tree.map_with_path(lambda path, leaf: places.get(path, leaf), params),
    }


def outputs_of(
    task: Supervised, variables: Variables, structure: str, one: jax.Array
) -> Callable[[Any], jax.Array]:
    """From covered parameters to the outputs [K] of one prepared example."""

    def outputs(covered: Any) -> jax.Array:
        return task.outputs(with_covered(task, variables, covered, structure), one[None])[0][0]

    return outputs


def information_root(task: Supervised, variables: Variables, outputs: jax.Array) -> jax.Array:
    """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
    own = variables["params"].get(OWN, {})

    def parts_of(outputs: jax.Array) -> dict[str, jax.Array]:
        likelihood: Any = task.likelihood
        if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.
            return {"log_probs": likelihood.class_log_probs(outputs[None])}
        return task.likelihood.predict(own, outputs[None])

    def said(outputs: jax.Array) -> jax.Array:
        parts = parts_of(outputs)
        if "log_probs" in parts:
            return parts["log_probs"][0]
        return jnp.concatenate([parts["loc"].reshape(-1), jnp.log(parts["scale"]).reshape(-1)])

    derivatives, parts = jax.jacfwd(said)(outputs), parts_of(outputs)
    if "log_probs" in parts:
        return jnp.exp(0.5 * parts["log_probs"][0])[:, None] * derivatives
    scales = parts["scale"].reshape(-1)
    return jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])[:, None] * derivatives


def rows_of(
    task: Supervised, variables: Variables, structure: str, one: jax.Array, weight: jax.Array
) -> tuple[Any, jax.Array]:
    """What a structure takes of one prepared example, and the outputs [K]."""
    covered = covered_params(task, variables, structure)
    of_covered = outputs_of(task, variables, structure, one)
    outputs = of_covered(covered)
    root = jnp.sqrt(weight) * information_root(task, variables, outputs)
    if structure in LAST_LAYER:
        rows = {"features": features_of(of_covered, covered), "information": root.T @ root}
        return rows, outputs
    jacobian = jax.jacrev(of_covered)(covered)
    return jax.tree.map(lambda leaf: jnp.tensordot(root, leaf, 1), jacobian), outputs


def features_of(of_layer: Callable[[Any], jax.Array], layer: Any) -> jax.Array:
    """The inputs [F'] of the last layer, with a 1 for its bias: derivatives of one output."""
    gradient = jax.grad(lambda layer: of_layer(layer)[0])(layer)
    ones = [jnp.ones(1)] if "bias" in layer else []
    return jnp.concatenate([gradient["kernel"][:, 0], *ones])


def added(
    task: Supervised,
    name: str,
    structure: Any,
    sums: Any,
    variables: Variables,
    inputs: jax.Array,
    weights: jax.Array,
    number: Any,
) -> tuple[Any, jax.Array]:
    """What a batch adds to the curvature, or the curvature with it; and the outputs [B, K]."""
    if name in LAST_LAYER:
        of_examples = jax.vmap(functools.partial(rows_of, task, variables, name))
        rows, outputs = of_examples(inputs, weights)
        return structure.terms(sums, rows, number), outputs
    num_params = sum(leaf.size for leaf in jax.tree.leaves(covered_params(task, variables, name)))
    each = 8 * num_params * task.likelihood.num_outputs
    at_once = max(1, min(len(inputs), _JACOBIAN_BYTES // each))
    num_parts = -(-len(inputs) // at_once)
    padding = num_parts * at_once - len(inputs)

    def parts(leaf: jax.Array, fill: jax.Array) -> jax.Array:
        padded = jnp.concatenate([leaf, jnp.broadcast_to(fill, (padding, *leaf.shape[1:]))])
        return padded.reshape(num_parts, at_once, *leaf.shape[1:])

    @in_turn
    def scanned(sums: Any, variables: Variables, columns: Any, number: Any) -> Any:
        of_examples = jax.vmap(functools.partial(rows_of, task, variables, name))

        def one(carry: Any, part: Any) -> tuple[Any, jax.Array]:
            rows, outputs = of_examples(*part)
            found = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
            if structure.adds:
                terms = structure.terms(sums, found, number)
                return jax.tree.map(jnp.add, carry, terms), outputs
            return structure.terms(carry, found, number), outputs

        start = jax.tree.map(jnp.zeros_like, sums) if structure.adds else sums
        return jax.lax.scan(one, start, columns)

    columns = parts(inputs, inputs[-1]), parts(weights, jnp.zeros((), weights.dtype))
    found, outputs = scanned(sums, variables, columns, jnp.asarray(number))
    return found, outputs.reshape(-1, outputs.shape[-1])[: len(inputs)]


def finished(
    task: Supervised,
    name: str,
    is_closed: bool,
    structure: Any,
    found: Any,
    variables: Variables,
    precision: jax.Array,
) -> dict[str, Any]:
    """The posterior: of a prior precision, or of the one with the largest marginal likelihood.

    Args:
        task: of the run.
        name: of the structure.
        is_closed: whether it is to predict by the closed form.
        structure: of the covariance.
        found: the log likelihood of the training data, and the spectrum of their curvature.
        variables: of the member.
        precision: of the prior, []; NaN: the best.
    """
    covered = covered_params(task, variables, name)
    spectrum = found["sums"]
    leaves = jax.tree.leaves(covered)
    size, squares = sum(leaf.size for leaf in leaves), sum(jnp.sum(leaf**2) for leaf in leaves)

    def log_evidence(tau: jax.Array) -> jax.Array:
        prior = 0.5 * (size * jnp.log(tau) - tau * squares)
        return found["log_likelihood"] + prior - 0.5 * structure.log_det(spectrum, tau)

    tried = jnp.asarray(_PRECISIONS, jnp.float32)
    best = tried[jnp.argmax(jax.lax.map(log_evidence, tried))]
    precision = jnp.where(jnp.isnan(precision), best, precision)
    kept = spectrum
    if name in LAST_LAYER and is_closed:
        kept = structure.kept(spectrum, precision, covered["kernel"].shape[1])
    return {
        "spectrum": kept,
        "prior_precision": precision,
        "log_marginal_likelihood": log_evidence(precision),
    }


@precise
def predict_draw(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By one draw of the parameters, in which the network is linearised."""
    variables, posterior = parts_of_set(one)
    rng_key = jax.random.fold_in(jax.random.wrap_key_data(posterior["rng_key"]), Stream.DRAWS)
    covered = covered_params(task, variables, name)
    leaves, tree = jax.tree.flatten(covered)
    keys = jax.random.split(jax.random.fold_in(rng_key, number), len(leaves))
    numbers = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    normal = jax.tree.unflatten(tree, numbers)
    structure = structure_of(name)
    off = structure.draw(posterior["spectrum"], posterior["prior_precision"], normal)
    seen = Supervised.prepare(task, inputs)

    def outputs(covered: Any) -> jax.Array:
        return task.outputs(with_covered(task, variables, covered, name), seen)[0]

    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(outputs, covered)
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    found = at_mean + change
    return task.likelihood.predict(variables["params"].get(OWN, {}), found)


@precise
def predict_closed(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By the variances of outputs: of classes MacKay's approximation, of numbers added up.

    Logits are divided by sqrt(1 + pi / 8 variance), and the variance of a number's mean is added to
    that of its noise. Covariances of outputs, and the variance of a scale, do not enter.
    """
    variables, _ = parts_of_set(one)
    seen, structure = Supervised.prepare(task, inputs), structure_of(name)
    own = variables["params"].get(OWN, {})
    outputs = task.outputs(variables, seen)[0]

    def variances_of(one: Any, example: jax.Array) -> jax.Array:
        variables, posterior = parts_of_set(one)
        covered = covered_params(task, variables, name)
        of_covered = outputs_of(task, variables, name, example)
        of_last = name in LAST_LAYER
        rows = features_of(of_covered, covered) if of_last else jax.jacrev(of_covered)(covered)
        found: jax.Array = structure.variances(
            posterior["spectrum"], posterior["prior_precision"], rows
        )
        return found

    if name in LAST_LAYER:
        variances = jax.vmap(functools.partial(variances_of, one))(seen)
        return closed_prediction(task, own, outputs, variances)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(covered_params(task, variables, name)))
    at_once = max(1, _JACOBIAN_BYTES // (8 * num_params * outputs.shape[1]))
    # The batch of an export has no size.
    size = min(at_once, len(seen)) if isinstance(seen.shape[0], int) else None

    @in_turn
    def mapped(one: Any, seen: jax.Array) -> jax.Array:
        return jax.lax.map(functools.partial(variances_of, one), seen, batch_size=size)

    return closed_prediction(task, own, outputs, mapped(one, seen))


def closed_prediction(
    task: Supervised, own: Mapping[str, Any], outputs: jax.Array, variances: jax.Array
) -> dict[str, jax.Array]:
    """The prediction by outputs [B, K] and their variances."""
    predicted = task.likelihood.predict(own, outputs)
    if "log_probs" in predicted:
        widths = jnp.sqrt(1 + math.pi / 8 * variances)
        if task.likelihood.class_weights is None:
            return task.likelihood.predict(own, outputs / widths)
        classes: Any = task.likelihood
        shift = np.log(classes.class_weights)
        return task.likelihood.predict(own, (outputs - shift) / widths + shift)
    slopes = jax.vmap(
        lambda one: jax.jacfwd(lambda f: task.likelihood.predict(own, f[None])["loc"][0])(one)
    )(outputs)
    of_mean = jnp.einsum("b...k,bk->b...", slopes**2, variances)
    return {**predicted, "scale": jnp.sqrt(predicted["scale"] ** 2 + of_mean)}


def parts_of_set(one: Any) -> tuple[Variables, Any]:
    """The network's variables, and what the method keeps."""
    return {name: leaf for name, leaf in one.items() if name != OF_METHOD}, one[OF_METHOD]
