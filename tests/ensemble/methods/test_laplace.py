"""Laplace approximations beside the exact posterior, where there is one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from jax.flatten_util import ravel_pytree
from run_parts import task_of, validated

import ensemble
from ensemble.config.pieces import path_of
from ensemble.fitted import OWN as OF_METHOD
from ensemble.methods.laplace import Approximation, LowRank, predict
from ensemble.tasks.supervised import OWN

STRUCTURES = ("last_layer", "last_layer_kronecker", "diagonal", "kronecker", "low_rank")


def linear(num_outputs):
    def init(rng_key, inputs):
        return {"kernel": jnp.zeros((inputs.shape[1], num_outputs)), "bias": jnp.zeros(num_outputs)}

    def apply(params, inputs):
        return inputs @ params["kernel"] + params["bias"]

    return ensemble.networks.from_functions(init, apply)


def linear_task(likelihood="gaussian_homoscedastic", num_examples=40):
    """Four features, and a task of them by a linear network; its data as users have them."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_examples, 4)).astype(np.float32)
    targets = 3 + inputs @ np.array([1.0, -2.0, 0.5, 0.0]) + rng.normal(size=num_examples)
    data = {"inputs": inputs, "targets": targets}
    if likelihood == "categorical":
        data = {"inputs": inputs, "labels": (targets > 3).astype(int) + (targets > 4)}
    config = small_config(model=path_of(linear), train_on_all=True)
    config = validated({**config, "likelihood": likelihood})
    return task_of(config, data)


def fit(task, variables, name, rank=5, tau=2.0):
    """The curvature of all training examples, and the posterior."""
    read = task.dataset.read("train", slice(None))
    seen = task.prepare(jnp.asarray(read.inputs))
    member = Approximation(task, name)
    structure = member.structure
    structure.rank = rank
    sums = structure.nothing(member.matrices(member.covered(variables)))
    ones = jnp.ones(len(seen))
    add = jax.jit(lambda sums, number: member.added(variables, sums, number, seen, ones))
    for number in range(structure.num_passes):
        sums = jax.tree.map(jnp.add, sums, add(sums, number))
    spectrum = structure.spectrum(sums)
    return {"spectrum": spectrum, "prior_precision": jnp.float32(tau)}, sums, structure


def design(task, inputs):
    """Features with a 1, [N, 5]."""
    seen = np.asarray(task.prepare(jnp.asarray(inputs)), np.float64)
    return np.hstack([seen, np.ones((len(seen), 1))])


def ridge(task, tau):
    """A linear network at the mode for a prior precision, and the exact posterior, by NumPy."""
    read = task.dataset.read("train", slice(None))
    features = design(task, read.inputs)
    variables = task.init_variables(jax.random.key(0))
    own = {"raw_scale": jnp.float32(0.4)}
    at_zero = task.likelihood.predict(own, jnp.zeros((1, 1)))
    unit = np.asarray(task.likelihood.predict(own, jnp.ones((1, 1)))["loc"] - at_zero["loc"])[0]
    sd = float(at_zero["scale"][0])
    shift = float(at_zero["loc"][0])
    scaled = features * unit  # In the targets' units.
    precision = scaled.T @ scaled / sd**2 + tau * np.eye(5)
    mode = np.linalg.solve(precision, scaled.T @ (np.asarray(read.targets) - shift) / sd**2)
    params = {"kernel": jnp.float32(mode[:4, None]), "bias": jnp.float32(mode[4:])}
    variables = {"params": {**params, OWN: own}}
    assert jax.tree.structure(variables) == jax.tree.structure(
        task.init_variables(jax.random.key(0))
    )
    exact = {"precision": precision, "mode": mode, "sd": sd, "shift": shift, "unit": unit}
    return variables, exact, scaled, np.asarray(read.targets, np.float64)


@pytest.mark.check
@pytest.mark.parametrize("name", ["last_layer", "last_layer_kronecker", "kronecker", "low_rank"])
def test_of_a_linear_model_it_is_the_exact_posterior(name):
    """Kronecker's too, of the kernel alone, where the bias has no covariance with it."""
    task = linear_task()
    tau = 2.0
    variables, exact, _, _ = ridge(task, tau)
    posterior, _, _ = fit(task, variables, name, tau=tau)
    inputs = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    one = {**variables, OF_METHOD: {**posterior, "rng_key": jax.random.key_data(jax.random.key(0))}}
    found = predict(name, True, task, one, 0, jnp.asarray(inputs))
    features = design(task, inputs) * exact["unit"]
    covariance = np.linalg.inv(exact["precision"])
    if name == "kronecker":
        blocks = exact["precision"].copy()
        blocks[4, :4] = blocks[:4, 4] = 0
        covariance = np.linalg.inv(blocks)
    variance = exact["sd"] ** 2 + np.einsum("nf,fg,ng->n", features, covariance, features)
    np.testing.assert_allclose(found["loc"], exact["shift"] + features @ exact["mode"], rtol=1e-4)
    np.testing.assert_allclose(found["scale"], np.sqrt(variance), rtol=1e-4)


def test_the_marginal_likelihood_is_exact_but_for_a_constant():
    task = linear_task()
    variables, exact, _, _ = ridge(task, 2.0)
    posterior, _, _ = fit(task, variables, "last_layer")
    member = Approximation(task, "last_layer")
    curvature = exact["precision"] - 2 * np.eye(5)
    gaps = []
    for tau in (0.1, 2.0, 50.0):
        log_det = np.linalg.slogdet(curvature + tau * np.eye(5))[1]
        expected = 5 * np.log(tau) - tau * np.sum(exact["mode"] ** 2) - log_det
        found = member.log_evidence(variables, posterior["spectrum"], jnp.float32(tau))
        gaps.append(float(found) - expected / 2)
    assert np.ptp(gaps) < 2e-3


def exact_curvature(task, variables):
    """The matrix [P, P] of Gauss and Newton, of all training examples one by one."""
    read = task.dataset.read("train", slice(None))
    seen = task.prepare(jnp.asarray(read.inputs))
    member = Approximation(task, "diagonal")
    rows = [member.rows(variables, one, jnp.float32(1)) for one in seen]
    flat = [
        np.hstack([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(one)])
        for one in rows
    ]
    flat = np.concatenate(flat).astype(np.float64)
    return flat.T @ flat


def random_variables(task, seed=3, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(task.init_variables, jax.random.key(0))
    return jax.tree.map(
        lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), shapes
    )


@pytest.mark.check
def test_the_curvature_is_the_hessian_of_a_softmax_regression():
    """Where outputs are linear in parameters, that of Gauss and Newton is the Hessian."""
    task = linear_task("categorical")
    variables = random_variables(task)
    read = task.dataset.read("train", slice(None))
    seen = task.prepare(jnp.asarray(read.inputs))
    labels = jnp.asarray(read.targets)
    flat, unravel = ravel_pytree(variables["params"])

    def loss(flat):
        return -task.log_likelihood({"params": unravel(flat)}, seen, labels)[0].sum()

    np.testing.assert_allclose(
        exact_curvature(task, variables), jax.hessian(loss)(flat), rtol=1e-3, atol=1e-3
    )


@pytest.mark.check
def test_kronecker_factors_are_the_exact_fisher_of_a_linear_layer():
    """At 0 every example has the same information: the curvature is a Kronecker product."""
    task = linear_task("categorical")
    variables = random_variables(task, scale=0.0)
    _, sums, _ = fit(task, variables, "kronecker")
    exact = exact_curvature(task, variables)
    position = 0
    factors = map(jax.tree.leaves, (sums["left"], sums["right"]))
    for left, right in zip(*factors, strict=True):
        size = left.shape[0] * right.shape[0]
        block = exact[position : position + size, position : position + size]
        np.testing.assert_allclose(np.kron(left, right), block, rtol=1e-4, atol=1e-4)
        position += size
    assert position == len(exact)


@pytest.mark.check
@pytest.mark.parametrize("name", STRUCTURES)
def test_draws_have_the_covariance_by_which_variances_are_told(name):
    """Of a softmax regression: every structure's own, within five standard errors."""
    task = linear_task("categorical")
    variables = random_variables(task)
    posterior, sums, structure = fit(task, variables, name, rank=15)
    member = Approximation(task, name)
    flat, unravel = ravel_pytree(member.matrices(member.covered(variables)))
    normal = jax.random.normal(jax.random.key(5), (40_000, len(flat)))
    spectrum = posterior["spectrum"]
    tau = posterior["prior_precision"]
    draw = jax.vmap(lambda z: structure.draw(spectrum, tau, unravel(z)))
    draws = np.asarray(jax.vmap(lambda one: ravel_pytree(one)[0])(draw(normal)))
    found = np.cov(draws, rowvar=False)
    exact = exact_curvature(task, variables)
    if name == "last_layer":  # The bias is its last row.
        exact = np.roll(exact, -3, (0, 1))
    if name in ("last_layer", "low_rank"):
        expected = np.linalg.inv(exact + 2 * np.eye(len(exact)))
    elif name == "diagonal":
        expected = np.diag(1 / (np.diag(exact) + 2))
    elif name == "last_layer_kronecker":
        right = sums["right"]
        precision = np.kron(sums["left"], right / np.trace(right))
        expected = np.linalg.inv(precision + 2 * np.eye(15))
    else:
        rows = jax.vmap(unravel)(jnp.eye(len(flat)))
        variances = structure.variances(spectrum, tau, rows)
        np.testing.assert_allclose(np.diag(found), variances, rtol=0.05)
        return
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / len(draws))
    assert np.abs((found - expected) / error).max() < 5
    if not name.startswith("last_layer"):
        rows = jax.vmap(unravel)(jnp.eye(len(flat)))
        variances = structure.variances(spectrum, tau, rows)
        np.testing.assert_allclose(variances, np.diag(expected), rtol=1e-3)


def test_variances_of_low_rank_are_never_negative():
    """Along the eigenvectors the prior's part is a small difference of large numbers."""
    structure = LowRank()
    size = 6
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(size, 3)))[0].T
    values = np.array([1e3, 1e5, 1e7])
    rows = (vectors * np.array([[50.0], [80.0], [100.0]])).astype(np.float32)[:, None]
    known = {"along": jnp.float32(values), "rest": jnp.zeros(())}
    spectrum = {"values": known, "vectors": jnp.float32(vectors)}
    found = structure.variances(spectrum, jnp.float32(0.01), {"w": jnp.asarray(rows)})
    expected = np.array([50.0, 80.0, 100.0]) ** 2 / (values + 0.01)
    assert (np.asarray(found) >= 0.9 * expected).all()


def test_the_determinant_of_low_rank_has_the_prior_in_all_other_directions():
    known = {"along": jnp.float32([1, 2, 3]), "rest": jnp.zeros(())}
    spectrum = {"values": known, "vectors": jnp.eye(3, 8)}
    found = LowRank().log_det(spectrum, jnp.float32(0.5))
    assert float(found) == pytest.approx(np.log([1.5, 2.5, 3.5]).sum() + 5 * np.log(0.5), rel=1e-5)


@pytest.mark.check
def test_of_more_directions_than_are_kept_low_rank_has_nearly_the_largest():
    rng = np.random.default_rng(0)
    structure = LowRank()
    structure.rank = 4
    rows = (rng.normal(size=(600, 30)) * np.linspace(1, 3, 30)).astype(np.float32)
    curvature = structure.nothing({"w": jnp.zeros((1, 30))})
    for part in np.split(rows[:, None], 20):
        added = structure.terms(curvature, {"w": jnp.asarray(part)}, 0)
        curvature = jax.tree.map(jnp.add, curvature, added)
    found = np.sort(structure.spectrum(curvature)["values"]["along"])
    exact = np.linalg.eigvalsh(rows.astype(np.float64).T @ rows)[-4:]
    assert (found <= exact * 1.001).all()
    assert (found > 0.9 * exact).all()
