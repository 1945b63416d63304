"""The search for the MAP."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from run_parts import classification, mesh_of

from ensemble import networks
from ensemble.data import dataset_from_arrays
from ensemble.methods.log_density import make_log_density
from ensemble.methods.start import find_map
from ensemble.priors import parse_prior


def make_task(blobs, prior="normal(0.7)", model="logistic_regression"):
    data = {f"train_{name}": values for name, values in blobs.items()}
    network = networks.create(model, 3)
    return classification(
        dataset_from_arrays(data | {"class_names": list("abc")}, hold_out=False),
        network,
        parse_prior(prior),
    )


def make_density(task, num_shards=2):
    mesh = mesh_of(1, num_shards)
    return make_log_density(task, task.dataset.splits["train"], mesh)


def exact_map(task):
    """In float64, by SciPy's Newton-CG."""
    inputs, labels = task.dataset.splits["train"]
    x = (inputs.astype(np.float64) - task.dataset.shift) * task.dataset.scale
    x = np.pad(x, ((0, 0), (0, 1)), constant_values=1)

    def energy(flat):
        w = flat.reshape(7, 3)
        log_probs = scipy.special.log_softmax(x @ w, axis=1)
        residual = np.eye(3)[labels] - np.exp(log_probs)
        value = -log_probs[np.arange(len(labels)), labels].sum() + 0.5 * (w**2).sum() / 0.49
        return value, (-x.T @ residual + w / 0.49).ravel()

    return scipy.optimize.minimize(energy, np.zeros(21), jac=True, method="BFGS").x.reshape(7, 3)


@pytest.mark.check
def test_the_map_is_the_maximum(blobs):
    task = make_task(blobs)
    found = find_map(task, make_density(task))["Dense_0"]
    expected = exact_map(task)
    np.testing.assert_allclose(found["kernel"], expected[:-1], atol=1e-3)
    np.testing.assert_allclose(found["bias"], expected[-1], atol=1e-3)
