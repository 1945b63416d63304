"""Laplace approximations beside the exact posterior, where there is one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from conftest import small_config
from run_parts import task_of, validated

import ensemble
from ensemble import UserError
from ensemble.export import export
from ensemble.fitted import OWN as OF_METHOD
from ensemble.methods.members import laplace
from ensemble.methods.members.laplace_member import (
    added,
    covered_params,
    finished,
    predict_closed,
    predict_draw,
    rows_of,
)
from ensemble.methods.members.laplace_structures import structure_of
from ensemble.network import output_layer
from ensemble.target_rows import on_devices
from ensemble.tasks.supervised import OWN

QUIET = {"show_progress": False}
STRUCTURES = ("last_layer", "last_layer_kronecker", "diagonal", "kronecker", "low_rank")
BASE = small_config(ensemble_size=3, num_epochs=3)
NAMES = {"model", "ensemble_size", "num_devices", "batch_size", "log_every_steps"}


def config_of(workdir, **changes):
    """A configuration of the method around the members of a run."""
    config = {name: value for name, value in BASE.items() if name in NAMES}
    return {**config, "method": "laplace", "init_from": str(workdir), **changes}


def linear(num_outputs):
    def init(rng_key, inputs):
        return {"kernel": jnp.zeros((inputs.shape[1], num_outputs)), "bias": jnp.zeros(num_outputs)}

    def apply(params, inputs):
        return inputs @ params["kernel"] + params["bias"]

    return ensemble.networks.from_functions(init, apply)


def linear_task(likelihood="gaussian_shared", num_examples=40):
    """Four features, and a task of them by a linear network; its data as users have them."""
    ensemble.networks.register("linear", linear)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num_examples, 4)).astype(np.float32)
    targets = 3 + inputs @ np.array([1.0, -2.0, 0.5, 0.0]) + rng.normal(size=num_examples)
    data = {"inputs": inputs, "targets": targets}
    if likelihood == "categorical":
        data = {"inputs": inputs, "labels": (targets > 3).astype(int) + (targets > 4)}
    config = small_config(model="linear", hold_out=False)
    config = validated({**config, "likelihood": likelihood})
    return task_of(config, data)


def fit(task, variables, name, rank=5, tau=2.0, predictive="closed", number_of_examples=None):
    """The curvature of all training examples, and the posterior."""
    read = task.dataset.read("train", slice(number_of_examples))
    seen = task.prepare(jnp.asarray(read.inputs))
    structure = structure_of(name, rank)
    covered = covered_params(task, variables, name)
    sums = structure.nothing(covered)
    add = jax.jit(
        lambda sums, number: added(
            task, name, structure, sums, variables, seen, jnp.ones(len(seen)), number
        )[0]
    )
    for number in range(structure.num_passes):
        found = add(sums, number)
        sums = jax.tree.map(jnp.add, sums, found) if structure.adds else found
    log_prob, _ = task.log_likelihood(variables, seen, on_devices(read.targets))
    curvature = {"sums": sums, "log_likelihood": log_prob.sum()}
    found = {**curvature, "sums": structure.spectrum(sums)}
    tau = jnp.float32(tau)
    posterior = finished(task, name, predictive, structure, found, variables, tau)
    return posterior, curvature, structure


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
    sd, shift = float(at_zero["scale"][0]), float(at_zero["loc"][0])
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
    task, tau = linear_task(), 2.0
    variables, exact, scaled, targets = ridge(task, tau)
    posterior, _, _ = fit(task, variables, name, tau=tau)
    inputs = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    one = {**variables, OF_METHOD: {**posterior, "rng_key": jax.random.key_data(jax.random.key(0))}}
    found = predict_closed(name, 5, task, one, 0, jnp.asarray(inputs))
    features = design(task, inputs) * exact["unit"]
    covariance = np.linalg.inv(exact["precision"])
    if name == "kronecker":
        blocks = exact["precision"].copy()
        blocks[4, :4] = blocks[:4, 4] = 0
        covariance = np.linalg.inv(blocks)
    variance = exact["sd"] ** 2 + np.einsum("nf,fg,ng->n", features, covariance, features)
    np.testing.assert_allclose(found["loc"], exact["shift"] + features @ exact["mode"], rtol=1e-4)
    np.testing.assert_allclose(found["scale"], np.sqrt(variance), rtol=1e-4)
    if name == "kronecker":
        return
    marginal = scipy.stats.multivariate_normal(
        np.full(len(targets), exact["shift"]),
        exact["sd"] ** 2 * np.eye(len(targets)) + scaled @ scaled.T / tau,
    )
    assert float(posterior["log_marginal_likelihood"]) == pytest.approx(
        marginal.logpdf(targets), abs=2e-3
    )


def test_the_best_prior_has_the_largest_marginal_likelihood():
    task = linear_task()
    variables, _, _, _ = ridge(task, 2.0)
    best, _, _ = fit(task, variables, "last_layer", tau=np.nan)
    for factor in (0.8, 1.25):
        other, _, _ = fit(
            task, variables, "last_layer", tau=factor * float(best["prior_precision"])
        )
        assert float(other["log_marginal_likelihood"]) < float(best["log_marginal_likelihood"])


def exact_curvature(task, variables):
    """The matrix [P, P] of Gauss and Newton, of all training examples one by one."""
    read = task.dataset.read("train", slice(None))
    seen = task.prepare(jnp.asarray(read.inputs))
    rows = [rows_of(task, variables, "diagonal", one, jnp.float32(1))[0] for one in seen]
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
    seen, labels = task.prepare(jnp.asarray(read.inputs)), jnp.asarray(read.targets)
    flat, unravel = jax.flatten_util.ravel_pytree(variables["params"])

    def loss(flat):
        return -task.log_likelihood({"params": unravel(flat)}, seen, labels)[0].sum()

    np.testing.assert_allclose(
        exact_curvature(task, variables), jax.hessian(loss)(flat), rtol=1e-3, atol=1e-3
    )


@pytest.mark.check
def test_the_diagonal_is_that_of_the_curvature():
    task = linear_task("categorical")
    variables = random_variables(task)
    _, curvature, _ = fit(task, variables, "diagonal")
    found = np.hstack([np.ravel(leaf) for leaf in jax.tree.leaves(curvature["sums"])])
    np.testing.assert_allclose(found, np.diag(exact_curvature(task, variables)), rtol=1e-4)


@pytest.mark.check
def test_kronecker_factors_are_the_exact_fisher_of_a_linear_layer():
    """At 0 every example has the same information: the curvature is a Kronecker product."""
    task = linear_task("categorical")
    variables = random_variables(task, scale=0.0)
    _, curvature, _ = fit(task, variables, "kronecker")
    exact = exact_curvature(task, variables)
    sums, position = curvature["sums"], 0
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
    posterior, curvature, structure = fit(task, variables, name, rank=15, predictive="draws")
    covered = covered_params(task, variables, name)
    flat, unravel = jax.flatten_util.ravel_pytree(covered)
    normal = jax.random.normal(jax.random.key(5), (40_000, len(flat)))
    spectrum, tau = posterior["spectrum"], posterior["prior_precision"]
    draw = jax.vmap(lambda z: structure.draw(spectrum, tau, unravel(z)))
    draws = np.asarray(jax.vmap(lambda one: jax.flatten_util.ravel_pytree(one)[0])(draw(normal)))
    found = np.cov(draws, rowvar=False)
    exact = exact_curvature(task, variables)
    if name in ("last_layer", "low_rank"):
        expected = np.linalg.inv(exact + 2 * np.eye(len(exact)))
    elif name == "diagonal":
        expected = np.diag(1 / (np.diag(exact) + 2))
    elif name == "last_layer_kronecker":
        sums = curvature["sums"]
        precision = np.kron(sums["left"], sums["right"] / np.trace(sums["right"]))
        order = np.arange(15).reshape(5, 3)  # The tree has the bias first, and the kernel then.
        order = np.concatenate([order[4], order[:4].ravel()])
        expected = np.linalg.inv(precision + 2 * np.eye(15))[np.ix_(order, order)]
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


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The workdir of members that are trained."""
    from small_runs import make_blobs

    workdir = tmp_path_factory.mktemp("members")
    ensemble.train(BASE, make_blobs(), str(workdir), **QUIET)
    return workdir


def test_variances_of_low_rank_are_never_negative():
    """Along the eigenvectors the prior's part is a small difference of large numbers."""
    structure, size = structure_of("low_rank", 3), 6
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(size, 3)))[0].T
    values = np.array([1e3, 1e5, 1e7])
    rows = (vectors * np.array([[50.0], [80.0], [100.0]])).astype(np.float32)
    spectrum = {"values": jnp.float32(values), "vectors": {"w": jnp.float32(vectors)}}
    found = structure.variances(spectrum, jnp.float32(0.01), {"w": jnp.asarray(rows)})
    expected = np.array([50.0, 80.0, 100.0]) ** 2 / (values + 0.01)
    assert (np.asarray(found) >= 0.9 * expected).all()


@pytest.mark.check
def test_of_more_directions_than_are_kept_low_rank_has_nearly_the_largest():
    rng, structure = np.random.default_rng(0), structure_of("low_rank", 4)
    rows = (rng.normal(size=(600, 30)) * np.linspace(1, 3, 30)).astype(np.float32)
    curvature = structure.nothing({"w": jnp.zeros(30)})
    for part in np.split(rows, 20):
        curvature = structure.terms(curvature, {"w": jnp.asarray(part)}, 0)
    found = np.sort(structure.spectrum(curvature)["values"])
    exact = np.linalg.eigvalsh(rows.astype(np.float64).T @ rows)[-4:]
    assert (found <= exact * 1.001).all()
    assert (found > 0.9 * exact).all()


@pytest.mark.check
@pytest.mark.parametrize("name", STRUCTURES)
def test_predictions_in_closed_form_are_exported(name, members, blobs, tmp_path):
    config = config_of(members, **{"laplace.structure": name})
    predictor = ensemble.train(config, blobs, str(tmp_path), **QUIET).predictor
    assert predictor.description == "3 members"
    exported = jax.export.deserialize(bytearray(export(ensemble.load(tmp_path))))
    inputs = blobs["inputs"][:20]
    expected = predictor(inputs).probs
    np.testing.assert_allclose(exported.call(inputs)["probs"], expected, atol=1e-5)
    np.testing.assert_allclose(exported.call(inputs[:3])["probs"], expected[:3], atol=1e-5)


@pytest.mark.check
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_run_is_loaded_exported_and_evaluated(name, members, blobs, tmp_path):
    config = config_of(members, **{"laplace.structure": name, "laplace.predictive": "draws"})
    result = ensemble.train(config, blobs, str(tmp_path), **QUIET)
    inputs = blobs["inputs"][:20]
    loaded = ensemble.load(tmp_path, num_devices=1)
    assert loaded.description == "60 draws of 3 members"
    expected = result.predictor(inputs).probs
    np.testing.assert_allclose(loaded(inputs).probs, expected, atol=1e-5)
    np.testing.assert_allclose(loaded(inputs[3:5]).probs, expected[3:5], atol=1e-5)
    exported = jax.export.deserialize(bytearray(export(loaded)))
    np.testing.assert_allclose(exported.call(inputs)["probs"], expected, atol=1e-5)
    found = ensemble.evaluate(tmp_path, data=blobs, datasets=["uniform"], **QUIET)
    assert found["test"] == result.report["test"]
    assert len(result.report["laplace"]["log_marginal_likelihood"]) == 3
    theirs = ensemble.load(members).fitted.sets
    jax.tree.map(np.testing.assert_array_equal, loaded.fitted.variables, theirs)


@pytest.mark.check
@pytest.mark.parametrize("precision", ["marginal_likelihood", "validation", "3.5"])
def test_the_prior_is_chosen_as_it_is_asked_for(precision, members, blobs, tmp_path):
    config = config_of(members, **{"laplace.prior_precision": precision})
    report = ensemble.train(config, blobs, str(tmp_path), **QUIET).report
    found = report["laplace"]["prior_precision"]
    assert len(found) == 3
    if precision == "3.5":
        assert found == [3.5] * 3
    if precision == "validation":
        for other in ("0.1", "100"):
            theirs = config | {"laplace.prior_precision": other}
            theirs = ensemble.train(theirs, blobs, str(tmp_path / other), **QUIET).report
            ours, other = (
                one["validation"]["scores"]["nll"]["members"] for one in (report, theirs)
            )
            assert (np.array(ours) <= np.array(other) + 1e-6).all()


@pytest.mark.check
@pytest.mark.parametrize("name", ["last_layer", "last_layer_kronecker"])
def test_the_prior_is_tried_by_what_predictions_say(name, members, blobs):
    config = validated(config_of(members, **{"laplace.structure": name}))
    method = laplace.Laplace(config, task_of(config, blobs))
    state = method.init(jax.random.key(0))
    while not method.finished(state):
        state, _ = method.advance(state)
    moved = state.members
    found = method._by_features(moved, "validation")(state.posterior)
    expected = method._say(moved, state.posterior, "validation")
    np.testing.assert_allclose(found.arrays["log_probs"], expected.arrays["log_probs"], atol=1e-5)


@pytest.mark.check
def test_the_evidence_has_the_log_likelihood_of_all_training_examples(members, blobs):
    """Kronecker passes twice over the data, in parts of a batch, and counts them once."""
    changes = {"laplace.structure": "kronecker", "log_every_steps": 1}
    config = validated(config_of(members, **changes))
    method = laplace.Laplace(config, task_of(config, blobs))
    state, task = method.init(jax.random.key(0)), method.task
    found = []
    while not method.finished(state):
        if state.step >= method.steps_per_epoch:  # The last time within the second pass.
            gather = method.engine.programs.placement.gather_members
            found = gather(state.curvature["log_likelihood"])
        state, _ = method.advance(state)
    read = task.dataset.read("train", slice(None))
    seen, targets = task.prepare(jnp.asarray(read.inputs)), on_devices(read.targets)
    for k, variables in enumerate(ensemble_of(members)):
        expected, _ = task.log_likelihood(variables, seen, targets)
        assert found[k] == pytest.approx(float(expected.sum()), rel=1e-5)


def ensemble_of(workdir):
    """The variables of members, one by one."""
    sets = ensemble.load(workdir).fitted.sets
    return [jax.tree.map(lambda leaf, k=k: leaf[k], sets) for k in range(3)]


@pytest.mark.check
def test_members_that_join_leave_the_others(members, blobs, tmp_path):
    ensemble.train(config_of(members, ensemble_size=2), blobs, str(tmp_path), **QUIET)
    before = ensemble.load(tmp_path).fitted
    ensemble.train(config_of(members), blobs, str(tmp_path), **QUIET)
    after = ensemble.load(tmp_path).fitted
    assert (before.num_sets, after.num_sets) == (2, 3)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:2]), before.sets, after.sets)


@pytest.mark.check
def test_other_keys_give_other_draws_of_the_same_distribution(members, blobs, tmp_path):
    config = config_of(members, **{"laplace.predictive": "draws", "laplace.num_draws": 200})
    predictor = ensemble.train(config, blobs, str(tmp_path), **QUIET).predictor
    inputs = blobs["inputs"][:10]
    fitted, probs = predictor.fitted, []
    for seed in (1, 2):
        keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(seed), 3)))
        own = {**fitted.sets[OF_METHOD], "rng_key": keys}
        other = dataclasses.replace(fitted, sets={**fitted.sets, OF_METHOD: own})
        of_draws = type(predictor)(predictor.task, other, predictor.members).member_arrays(inputs)
        probs.append(np.exp(of_draws["log_probs"]))
    error = np.sqrt(sum(one.var(axis=0) / len(one) for one in probs))
    off = (probs[0].mean(axis=0) - probs[1].mean(axis=0)) / error
    assert 0 < np.abs(off).max() < 4.5


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"init_from": ""}, "config.init_from"),
        ({"init_from": "weights.npz"}, "'weights.npz' must be the workdir of a run, whose members"),
        ({"init_from": "/nowhere"}, "config.init_from='/nowhere': /nowhere is not a workdir"),
        ({"ensemble_size": 9}, "has 3 live members; set config.ensemble_size=3 or less"),
        (
            {"laplace.structure": "full"},
            "must be one of last_layer, last_layer_kronecker, diag",
        ),
        ({"laplace.prior_precision": "large"}, "must be marginal_likelihood, validation, or a pos"),
        ({"likelihood": "dirichlet"}, "dirichlet"),
        ({"model": "mlp"}, "and this configuration ('mlp',"),
        ({"laplace.num_draws": 1}, "laplace.num_draws=1 must be from 2 to 10000"),
        ({"seed": 5}, "has learned other data"),
        ({"num_epochs": 3}, "num_epochs"),
    ],
)
def test_what_has_no_such_approximation_is_refused(changes, part, members, blobs, tmp_path):
    with pytest.raises(UserError) as error:
        ensemble.train(config_of(members, **changes), blobs, str(tmp_path / "run"), **QUIET)
    assert part in str(error.value)


@pytest.mark.check
def test_annotated_targets_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    data = {"inputs": rng.normal(size=(60, 4)).astype(np.float32), "targets": rng.normal(size=60)}
    data["target_errors"] = np.full(60, 0.1)
    base = {**BASE, "likelihood": "gaussian"}
    ensemble.train(base, data, str(tmp_path / "members"), **QUIET)
    config = config_of(tmp_path / "members", likelihood="gaussian")
    with pytest.raises(UserError, match="takes targets as they are"):
        ensemble.train(config, data, str(tmp_path / "run"), **QUIET)


def test_a_last_layer_with_another_bias_is_none():
    def network(shape):
        return ensemble.networks.from_functions(
            lambda rng_key, inputs: {"w": jnp.zeros((4, 2)), "b": jnp.zeros(shape)},
            lambda params, inputs: inputs @ params["w"] + params["b"],
        )

    assert output_layer(network((2,)), (4,)).keys() == {"kernel", "bias"}
    for shape in ((), (1, 2), (1,)):
        assert output_layer(network(shape), (4,)) is None


def test_a_layer_too_large_is_refused_before_it_starts(members, blobs, tmp_path, monkeypatch):
    monkeypatch.setattr("ensemble.storage.memory.memory_bytes", functools.partial(int, 10_000))
    with pytest.raises(
        UserError, match=r"the curvatures 'last_layer_kronecker' of config\.ensemble_size=3"
    ):
        ensemble.train(config_of(members), blobs, str(tmp_path), **QUIET)


@pytest.mark.check
def test_one_draw_of_the_last_layer_is_a_network():
    """It is linear there: the linearised network and the network itself are the same."""
    task = linear_task("categorical")
    variables = random_variables(task)
    posterior, _, _ = fit(task, variables, "last_layer", predictive="draws")
    key = jax.random.key_data(jax.random.key(0))
    one = {**variables, OF_METHOD: {**posterior, "rng_key": key}}
    inputs = jnp.asarray(np.random.default_rng(1).normal(size=(6, 4)), jnp.float32)
    draws = [predict_draw("last_layer", 5, task, one, k, inputs)["log_probs"] for k in range(2)]
    assert not np.allclose(*draws)
    np.testing.assert_allclose(np.exp(draws[0]).sum(axis=1), 1, rtol=1e-5)
