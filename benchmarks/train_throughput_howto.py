"""Worker of train_throughput and evaluation: "Ensembling on multiple devices", as published.

    python benchmarks/train_throughput_howto.py train|evaluate ENSEMBLE_SIZE [BATCH_SIZE]

https://flax.readthedocs.io/en/latest/guides/parallel_training/ensembling.html
"""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rates
from flax import jax_utils
from flax import linen as nn
from flax.training import train_state

BATCH_SIZE = 128
SECONDS = 4.0


class CNN(nn.Module):
    """The CNN of Flax's MNIST example."""

    @nn.compact
    def __call__(self, x):
        """Maps images [N, 28, 28, 1] to logits [N, 10]."""
        x = nn.Conv(features=32, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nn.Conv(features=64, kernel_size=(3, 3))(x)
        x = nn.relu(x)
        x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.Dense(features=256)(x)
        x = nn.relu(x)
        return nn.Dense(features=10)(x)


@functools.partial(jax.pmap, static_broadcasted_argnums=(1, 2))
def create_train_state(rng, learning_rate, momentum):
    """Initialises a member on each device; `rng` is [M] keys."""
    cnn = CNN()
    params = cnn.init(rng, jnp.ones([1, 28, 28, 1]))["params"]
    tx = optax.sgd(learning_rate, momentum)
    return train_state.TrainState.create(apply_fn=cnn.apply, params=params, tx=tx)


@functools.partial(jax.pmap, axis_name="ensemble")
def apply_model(state, images, labels):
    """Gradients, loss and accuracy [M] on a batch; the accuracy is of the mean of softmax."""

    def loss_fn(params):
        logits = CNN().apply({"params": params}, images)
        one_hot = jax.nn.one_hot(labels, 10)
        loss = optax.softmax_cross_entropy(logits=logits, labels=one_hot).mean()
        return loss, logits

    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, logits), grads = grad_fn(state.params)
    probs = jax.lax.pmean(jax.nn.softmax(logits), axis_name="ensemble")
    accuracy = jnp.mean(jnp.argmax(probs, -1) == labels)
    return grads, loss, accuracy


@jax.pmap
def update_model(state, grads):
    """Takes one step of the optimiser."""
    return state.apply_gradients(grads=grads)


def train_epoch(state, train_ds, batch_size, rng):
    """Trains for one epoch; returns the state, and member 0's mean loss and accuracy."""
    train_ds_size = len(train_ds["image"])
    steps_per_epoch = train_ds_size // batch_size
    perms = jax.random.permutation(rng, len(train_ds["image"]))
    perms = perms[: steps_per_epoch * batch_size]
    perms = perms.reshape((steps_per_epoch, batch_size))
    epoch_loss = []
    epoch_accuracy = []
    for perm in perms:
        batch_images = jax_utils.replicate(train_ds["image"][perm, ...])
        batch_labels = jax_utils.replicate(train_ds["label"][perm, ...])
        grads, loss, accuracy = apply_model(state, batch_images, batch_labels)
        state = update_model(state, grads)
        epoch_loss.append(jax_utils.unreplicate(loss))
        epoch_accuracy.append(jax_utils.unreplicate(accuracy))
    train_loss = np.mean(epoch_loss)
    train_accuracy = np.mean(epoch_accuracy)
    return state, train_loss, train_accuracy


def generate_images(size):
    """Generated images of MNIST's shape, on the device, normalised as the example does."""
    rng = np.random.default_rng(0)
    images = rng.random((size, 28, 28, 1), dtype=np.float32)
    return {"image": jnp.asarray(images), "label": jnp.arange(size) % 10}


def create_members(num_members):
    """The how-to's states of so many members."""
    return create_train_state(jax.random.split(jax.random.key(0), num_members), 0.1, 0.9)


def train(num_members: int, batch_size: int = BATCH_SIZE) -> dict[str, float]:
    """Trains for some seconds, in epochs of ten steps."""
    train_ds = generate_images(10 * batch_size)
    state = create_members(num_members)
    state, *_ = train_epoch(state, train_ds, batch_size, jax.random.key(1))
    jax.block_until_ready(state)

    def epoch() -> int:
        nonlocal state
        state, *_ = train_epoch(state, train_ds, batch_size, jax.random.key(1))
        return 10 * batch_size * num_members

    return rates.measure(epoch, SECONDS, lambda: jax.block_until_ready(state))


def evaluate(num_members: int) -> dict[str, float]:
    """Evaluates as the how-to does: the whole test set through apply_model."""
    test_ds = jax_utils.replicate(generate_images(10_000))
    state = create_members(num_members)
    seen = []
    for _ in range(3):
        start = time.perf_counter()
        _, loss, accuracy = jax_utils.unreplicate(
            apply_model(state, test_ds["image"], test_ds["label"])
        )
        jax.block_until_ready((loss, accuracy))
        seen.append(num_members * 10_000 / (time.perf_counter() - start))
    return {"rate": float(np.median(seen[1:])), "peak_memory": rates.peak_memory()}


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[2:]]
    jax.config.update("jax_num_cpu_devices", sizes[0])
    print(json.dumps({"train": train, "evaluate": evaluate}[sys.argv[1]](*sizes)))
