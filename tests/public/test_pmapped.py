"""The how-to's three functions on eight devices, and a loop over single networks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax.training import train_state
from runs import Small

import ensemble

NUM_DEVICES = 8
NUM_CLASSES = 3
RATE = 0.05
MOMENTUM = 0.9
SHAPE = (4, 4, 1)


def batches():
    rng = np.random.default_rng(0)
    for _ in range(6):
        labels = rng.integers(0, NUM_CLASSES, 16)
        images = rng.normal(size=(16, *SHAPE)) + labels[:, None, None, None]
        yield images.astype(np.float32), labels.astype(np.int32)


def one_by_one(keys):
    """Parameters, losses and probabilities of each network, trained alone by Optax."""
    model = Small(NUM_CLASSES)
    optimizer = optax.sgd(RATE, MOMENTUM)
    found = []

    @jax.jit
    def step(params, state, images, labels):
        def loss_fn(params):
            logits = model.apply({"params": params}, images)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), jax.nn.softmax(logits)

        (loss, probs), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, probs

    for key in keys:
        params = model.init(key, jnp.ones((1, *SHAPE)))["params"]
        state = optimizer.init(params)
        losses = []
        all_probs = []
        for images, labels in batches():
            params, state, loss, probs = step(params, state, images, labels)
            losses.append(loss)
            all_probs.append(probs)
        found.append((params, np.array(losses), np.array(all_probs)))
    return found


def test_eight_devices_train_what_a_loop_trains():
    keys = jax.random.split(jax.random.key(0), NUM_DEVICES)
    state = ensemble.create_train_state(keys, RATE, MOMENTUM, Small(NUM_CLASSES), SHAPE)
    assert isinstance(state, train_state.TrainState)
    losses = []
    accuracies = []
    for batch in batches():
        grads, loss, accuracy = ensemble.apply_model(state, *jax_utils.replicate(batch))
        state = ensemble.update_model(state, grads)
        losses.append(loss)
        accuracies.append(jax_utils.unreplicate(accuracy))
    params, expected_losses, probs = zip(*one_by_one(keys), strict=True)
    np.testing.assert_allclose(np.array(losses).T, expected_losses, atol=1e-5)
    for step, (_, labels) in enumerate(batches()):
        mean = np.mean([one[step] for one in probs], axis=0)
        assert accuracies[step] == (mean.argmax(axis=1) == labels).mean()
    for k, expected in enumerate(params):
        found = jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], state.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
