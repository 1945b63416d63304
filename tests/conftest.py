"""Test set-up: eight virtual CPU devices, whatever the machine, and a small task to learn."""

import gc
import os
import pathlib

# Programs run for milliseconds here, and compile for seconds: compile them lightly, and once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"  # Two cores may be busy.
)
ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_MAPS = 30_000  # Linux allows 65,530.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "xla"))

from typing import ClassVar

import flax.linen as nn
import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import models
from ensemble.workdir import Workdir

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
assert jax.local_device_count() == 8  # Starts JAX: no run may settle for fewer.


@models.register("tiny")
class Tiny(nn.Module):
    """A network that compiles in no time."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.tanh(nn.Dense(8)(x.reshape((x.shape[0], -1))))
        return nn.Dense(self.num_classes)(x)


@models.register("explosive")
class Explosive(nn.Module):
    """Diverges at a high learning rate; its members start at different scales."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", lambda key: jnp.exp(4 * nn.initializers.normal(1.0)(key, ())))
        return nn.Dense(self.num_classes)(x) ** 3 * scale


def make_blobs(num_examples: int = 203, num_classes: int = 3) -> dict[str, np.ndarray]:
    """Noisy clusters of 6 features: easy, but not perfectly; the counts are prime on purpose."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, num_examples)
    centres = rng.normal(size=(num_classes, 6))
    inputs = centres[labels] + rng.normal(size=(num_examples, 6))
    return {"inputs": inputs.astype(np.float32), "labels": labels}


@pytest.fixture(scope="session")
def blobs() -> dict[str, np.ndarray]:
    return make_blobs()


def small_config(**overrides):
    """A configuration on the blobs that runs in a second or two."""
    config = {
        "model": "tiny",
        "ensemble_size": 4,
        "num_devices": 2,
        "num_epochs": 3,
        "batch_size": 29,
        "learning_rate": 0.1,
        "log_every_steps": 2,
    }
    return {**config, **overrides}


class Bucket(MemoryFileSystem):
    """An object store in memory, behind the same `gs://` and epath as the real one."""

    protocol = ("gcs", "gs")
    store: ClassVar[dict] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).replace("gs://", "memory://"))


@pytest.fixture
def bucket(monkeypatch):
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    Bucket.store.clear()
    yield Workdir("gs://bucket/run")
    fsspec.register_implementation("gcs", "gcsfs.GCSFileSystem", clobber=True)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Every compiled program keeps some memory maps; a process that runs out of them crashes."""
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > MAX_MAPS:
        jax.clear_caches()
        gc.collect()
