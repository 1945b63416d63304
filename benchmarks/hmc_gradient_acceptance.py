"""Worker of hmc_gradient: what rounding does to the acceptance of HMC, on MNIST.

    python benchmarks/hmc_gradient_acceptance.py

A chain in coordinates that whiten at the MAP settles near an acceptance of .8. Then every
trajectory is computed twice, from the same position and momentum at the same step size: with this
project's float32 log density, and in NumPy's float64.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
from hmc_gradient import load_dataset, make_density

from ensemble.sharding import startup

NUM_LEAPFROG_STEPS = 10
NUM_WARMUP = 15
NUM_TRAJECTORIES = 15
TARGET = 0.8

ValueAndGrad = Callable[[Any], tuple[Any, Any]]


def trajectory(
    value_and_grad: ValueAndGrad, position: Any, momentum: Any, step_size: Any
) -> tuple[Any, float]:
    """Returns the end of a leapfrog trajectory and its probability of being accepted."""
    value, grads = value_and_grad(position)
    start = float(value) - 0.5 * float((momentum**2).sum(dtype=np.float64))
    for _ in range(NUM_LEAPFROG_STEPS):
        momentum = momentum + 0.5 * step_size * grads
        position = position + step_size * momentum
        value, grads = value_and_grad(position)
        momentum = momentum + 0.5 * step_size * grads
    end = float(value) - 0.5 * float((momentum**2).sum(dtype=np.float64))
    return position, min(1.0, float(np.exp(end - start)))


def create() -> tuple[ValueAndGrad, ValueAndGrad, tuple[int, int]]:
    """Returns `z -> (value, gradient)` in float32 and in float64, and the shape of z."""
    startup.configure(1)
    import jax

    from ensemble.data.source import in_memory
    from ensemble.methods.start import find_map, kronecker, to_params
    from ensemble.tasks.linear_likelihood import split_bias

    task, density = make_density(1, load_dataset())
    dataset = task.dataset
    split = in_memory(dataset, "train")
    images = split.inputs.reshape(len(split.targets), -1) * np.float64(dataset.scale)
    params = maximum = find_map(task, density)
    coordinates = kronecker(task, split, maximum)

    @jax.jit
    def fast(z: jax.Array, data: Any) -> Any:
        logdensity_fn = density.bind(data)
        of_z = lambda z: logdensity_fn(to_params(coordinates, split_bias(z, params)))  # noqa: E731
        return jax.value_and_grad(of_z)(z)

    images = np.pad(images, ((0, 0), (0, 1)), constant_values=1)
    location, sd, left, scale, right, directions, stretch = (
        np.asarray(part, np.float64) for part in coordinates.values()
    )

    def stretched(z: np.ndarray) -> np.ndarray:
        along = np.tensordot(directions, z, axes=2)
        return z + np.tensordot((stretch - 1) * along, directions, axes=1)

    def exact(z: np.ndarray) -> tuple[float, np.ndarray]:
        matrix = location + sd[:, None] * (left @ (scale * stretched(z)) @ right.T)
        log_probs = scipy.special.log_softmax(images @ matrix, axis=1)
        chosen = log_probs[np.arange(len(log_probs)), split.targets]
        residuals = np.eye(log_probs.shape[1])[split.targets] - np.exp(log_probs)
        grads = images.T @ residuals - matrix
        grads = scale * (left.T @ (sd[:, None] * grads) @ right)
        return chosen.sum() - 0.5 * (matrix**2).sum(), stretched(grads)  # It is symmetric.

    return lambda z: jax.device_get(fast(z, density.data)), exact, location.shape


def measure() -> dict[str, float]:
    """Returns the mean acceptance probability of both, and the largest difference."""
    fast, exact, shape = create()
    rng = np.random.default_rng(0)
    position = rng.normal(size=shape).astype(np.float32)
    log_step_size = np.log(0.3)
    accepted: dict[str, list[float]] = {"fast": [], "float64": []}
    for t in range(NUM_WARMUP + NUM_TRAJECTORIES):
        momentum = rng.normal(size=shape).astype(np.float32)
        step_size = np.float32(np.exp(log_step_size))
        proposal, probability = trajectory(fast, position, momentum, step_size)
        if t < NUM_WARMUP:
            log_step_size += 0.5 * (probability - TARGET) / np.sqrt(t + 1)
        else:
            arguments = (position.astype(np.float64), momentum.astype(np.float64))
            accepted["fast"].append(probability)
            accepted["float64"].append(trajectory(exact, *arguments, np.float64(step_size))[1])
        if rng.random() < probability:
            position = np.asarray(proposal)
    differences = np.subtract(accepted["fast"], accepted["float64"])
    return {
        **{name: float(np.mean(values)) for name, values in accepted.items()},
        "largest_difference": float(np.abs(differences).max()),
        "step_size": float(step_size),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
