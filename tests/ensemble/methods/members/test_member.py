"""The how-to's three functions, used by hand, and the two that they and the loop share."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import small_config
from flax import jax_utils
from flax.training import train_state
from run_parts import validated

from ensemble import UserError, apply_model, create_train_state, networks, update_model
from ensemble.method import Status
from ensemble.methods.members.member import Stream, apply_member, create_member, update_member
from ensemble.methods.members.member_programs import make_objective
from ensemble.networks.linen import LinenNetwork
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.learning_data import make_likelihood
from ensemble.tasks.supervised import Supervised, classification

NUM_DEVICES = 8


def images_and_labels(num_examples, shape=(8, 8, 1)):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, num_examples)
    images = rng.normal(size=(num_examples, *shape)) * 0.3
    images[np.arange(num_examples), labels // 5, labels % 5] += 2.0
    return images.astype(np.float32), labels.astype(np.int32)


@pytest.mark.check
def test_the_how_to_s_loop_trains_an_ensemble():
    """Keys split per device, batches replicated, metrics unreplicated: the guide's own loop."""
    images, labels = images_and_labels(256)
    rng, init_rng = jax.random.split(jax.random.key(0))
    state = create_train_state(
        jax.random.split(init_rng, NUM_DEVICES), 0.1, 0.9, networks.create("mlp", 10), (8, 8, 1)
    )
    epochs = []
    for _ in range(4):
        rng, input_rng = jax.random.split(rng)
        perms = jax.random.permutation(input_rng, len(images)).reshape(-1, 64)
        losses, accuracies = [], []
        for perm in perms:
            batch_images = jax_utils.replicate(images[perm])
            batch_labels = jax_utils.replicate(labels[perm])
            grads, loss, accuracy = apply_model(state, batch_images, batch_labels)
            state = update_model(state, grads)
            losses.append(jax_utils.unreplicate(loss))
            accuracies.append(jax_utils.unreplicate(accuracy))
        epochs.append((np.mean(losses), np.mean(accuracies)))
    assert epochs[-1][0] < 0.5 * epochs[0][0]
    assert epochs[-1][1] > 0.9
    kernels = np.asarray(state.params["Dense_0"]["kernel"])
    assert kernels.shape[0] == NUM_DEVICES
    assert all(not np.allclose(kernels[0], kernel) for kernel in kernels[1:])


@pytest.mark.soak
def test_the_default_model_is_the_how_to_s_cnn():
    state = create_train_state(jax.random.split(jax.random.key(0), NUM_DEVICES), 0.1, 0.9)
    assert isinstance(state, train_state.TrainState)
    one = jax_utils.unreplicate(state.params)
    assert jax.tree.map(jnp.shape, one)["Dense_0"]["kernel"] == (3136, 256)
    expected = networks.create("cnn", 10).init(
        jax.random.split(jax.random.key(0), NUM_DEVICES)[0], jnp.ones((1, 28, 28, 1))
    )["params"]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), one, expected)


@pytest.mark.check
def test_equal_to_the_published_functions():
    """Same losses, gradients, ensemble accuracy and updates as the guide's code, step by step."""
    model = networks.create("mlp", 10).module

    @functools.partial(jax.pmap, axis_name="ensemble")
    def published_apply_model(state, images, labels):
        def loss_fn(params):
            logits = model.apply({"params": params}, images)
            one_hot = jax.nn.one_hot(labels, 10)
            return optax.softmax_cross_entropy(logits=logits, labels=one_hot).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        probs = jax.lax.pmean(jax.nn.softmax(logits), axis_name="ensemble")
        return grads, loss, jnp.mean(jnp.argmax(probs, -1) == labels)

    published_update_model = jax.pmap(lambda state, grads: state.apply_gradients(grads=grads))

    keys = jax.random.split(jax.random.key(3), NUM_DEVICES)
    ours = create_train_state(keys, 0.05, 0.9, model, (8, 8, 1))
    optimizer = optax.sgd(0.05, 0.9)
    published = jax.pmap(
        lambda params: train_state.TrainState.create(
            apply_fn=model.apply, params=params, tx=optimizer
        )
    )(ours.params)
    images, labels = images_and_labels(20 * 32)
    for step in range(20):
        batch = slice(32 * step, 32 * step + 32)
        replicated = jax_utils.replicate((images[batch], labels[batch]))
        grads, loss, accuracy = apply_model(ours, *replicated)
        their_grads, their_loss, their_accuracy = published_apply_model(published, *replicated)
        np.testing.assert_allclose(loss, their_loss, atol=1e-5)
        np.testing.assert_allclose(accuracy, their_accuracy, atol=1e-6)
        ours = update_model(ours, grads)
        published = published_update_model(published, their_grads)
    for a, b in zip(jax.tree.leaves(ours.params), jax.tree.leaves(published.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def start(network, **kwargs):
    key = jax.random.key(0)
    variables = network.init(key, jnp.ones((1, 6)))
    return create_member(key, variables, network.apply, optax.sgd(0.1), **kwargs)


def tiny_state(**kwargs):
    return start(networks.create("tiny", 3), **kwargs)


def objective_of(network, **overrides):
    """What training maximises, of three classes of vectors of six numbers."""
    data = {"train_inputs": np.zeros((3, 6), np.float32), "train_labels": np.arange(3)}
    task = classification(dataset_from_arrays(data, hold_out=False), network)
    return make_objective(validated(small_config(**overrides)), task)


@pytest.mark.check
def test_examples_of_weight_zero_count_for_nothing():
    state = tiny_state()
    images = jnp.asarray(np.random.default_rng(0).normal(size=(7, 6)), jnp.float32)
    labels = jnp.array([0, 1, 2, 0, 1, 2, 0])
    weights = jnp.array([1, 1, 1, 1, 1, 0, 0], jnp.float32)
    objective = objective_of(networks.create("tiny", 3))
    apply = jax.jit(apply_member, static_argnums=1)
    padded = apply(state, objective, images, labels, weights, jax.random.key(0))
    whole = apply(state, objective, images[:5], labels[:5], jnp.ones(5), jax.random.key(0))
    np.testing.assert_allclose(padded.loss, whole.loss, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        padded.gradients,
        whole.gradients,
    )


def test_label_smoothing_is_the_cross_entropy_with_mixed_targets():
    state = tiny_state()
    images, labels = jnp.ones((1, 6)), jnp.array([1])
    objective = objective_of(networks.create("tiny", 3), label_smoothing=0.3)
    output = apply_member(state, objective, images, labels, jnp.ones(1), jax.random.key(0))
    target, log_probs = np.array([0.1, 0.8, 0.1]), output.predicted["log_probs"][0]
    np.testing.assert_allclose(output.loss, -(target * log_probs).sum(), rtol=1e-6)


@pytest.mark.check
def test_beta_nll_weights_gradients_by_the_variance_and_leaves_the_value():
    targets = np.array([1, 2, 4, 9], np.float32)
    data = {"train_inputs": np.eye(4, 6, dtype=np.float32), "train_targets": targets}
    dataset = dataset_from_arrays(data, hold_out=False)
    likelihood = make_likelihood(dataset, "gaussian")
    task = Supervised(dataset, networks.create("tiny", 2), likelihood)
    config = {"likelihood": "gaussian", "beta_nll": 0.5}
    objective = make_objective(validated(small_config(**config)), task)
    variables = task.init_variables(jax.random.key(0))
    one, target = jnp.ones((1, 6)), targets[:1]

    def of_nll(variables):
        return task.log_likelihood(variables, one, target)[0].sum()

    def weighted(variables):
        return objective(variables, one, target, jax.random.key(0))[0].sum()

    assert float(weighted(variables)) == pytest.approx(float(of_nll(variables)), rel=1e-6)
    scale = task.predict(variables, task.dataset.shift + one / task.dataset.scale)["scale"][0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b * scale / likelihood.scale, rtol=1e-4),
        jax.grad(weighted)(variables)["params"],
        jax.grad(of_nll)(variables)["params"],
    )
    with pytest.raises(UserError, match=r"config\.beta_nll=0\.5 is for likelihoods of a location"):
        objective_of(networks.create("tiny", 3), beta_nll=0.5)


@pytest.mark.parametrize("what", ["loss", "gradients"])
def test_a_step_that_is_not_finite_freezes_the_member(what):
    state = tiny_state()
    gradients = jax.tree.map(jnp.ones_like, state.params)
    loss = jnp.array(1.0)
    if what == "loss":
        loss = jnp.array(jnp.nan)
    else:
        gradients["Dense_0"]["bias"] = gradients["Dense_0"]["bias"].at[0].set(jnp.inf)
    frozen = update_member(state, gradients, loss, {})
    assert frozen.status == Status.NON_FINITE
    assert frozen.step == 0
    jax.tree.map(np.testing.assert_array_equal, frozen.params, state.params)
    later = update_member(frozen, jax.tree.map(jnp.ones_like, state.params), jnp.array(1.0), {})
    assert later.status == Status.NON_FINITE
    jax.tree.map(np.testing.assert_array_equal, later.params, state.params)


@pytest.mark.parametrize("status", [Status.PADDING, Status.STOPPED_EARLY])
def test_inactive_members_stay_as_they_are(status):
    state = tiny_state().replace(status=jnp.int8(status))
    gradients = jax.tree.map(jnp.ones_like, state.params)
    after = update_member(state, gradients, jnp.array(jnp.nan), {})
    assert after.status == status
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)


class WithNoise(nn.Module):
    """Batch statistics and dropout."""

    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x))
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(self.num_classes)(x)


@pytest.mark.check
def test_dropout_differs_by_step_and_batch_statistics_move():
    network = LinenNetwork(WithNoise(3))
    state = start(network)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(32, 6)), jnp.float32)
    batch = (objective_of(network), images, jnp.zeros(32, int), jnp.ones(32))
    keys = [state.step_key(Stream.DROPOUT, step) for step in (0, 0, 1)]
    apply = jax.jit(lambda key: apply_member(state, *batch, key))
    first, again, later = map(apply, keys)
    np.testing.assert_array_equal(first.predicted["log_probs"], again.predicted["log_probs"])
    assert not np.allclose(first.predicted["log_probs"], later.predicted["log_probs"])
    after = update_member(state, first.gradients, first.loss, first.model_state)
    before = state.model_state["batch_stats"]["BatchNorm_0"]["mean"]
    assert not np.allclose(after.model_state["batch_stats"]["BatchNorm_0"]["mean"], before)
