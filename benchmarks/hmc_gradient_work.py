"""What the workers of hmc_gradient.py share: the images, the trajectory, the clock."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ensemble import sources

STEP_SIZE = 1e-3
NUM_LEAPFROG_STEPS = 20
SECONDS = 4.0


def load_dataset() -> sources.Source:
    """MNIST with all 60,000 training images in one split."""
    return sources.load_dataset("mnist", hold_out=False)


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """The training images [60000, 784] float32, 0..1, and their labels."""
    dataset = load_dataset()
    split = sources.in_memory(dataset, "train")
    return (split.inputs.reshape(len(split.targets), -1) * dataset.scale).astype(
        np.float32
    ), split.targets


def measure(
    advance: Callable[[Any, Any], Any], positions: Any, data: Any, num_chains: int
) -> dict[str, float]:
    """Takes draws for some seconds, all from the same start.

    A draw costs one gradient to begin with, and one a leapfrog step.
    """
    start = time.perf_counter()
    jax.block_until_ready(advance(positions, data))
    compile_seconds = time.perf_counter() - start
    num_draws, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        jax.block_until_ready(advance(positions, data))
        num_draws += 1
    seconds = time.perf_counter() - start
    gradients = num_draws * (NUM_LEAPFROG_STEPS + 1) * num_chains
    return {"rate": gradients / seconds, "compile_seconds": compile_seconds}
