"""Members that learn with class weights, and where they start."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import task_of

from ensemble.methods import linear_start
from ensemble.methods.kfold_bagging import make_folds

CONFIG = small_config(
    method="kfold_bagging",
    model="mlp",
    num_devices=1,
    train_on_all=True,
    early_stopping_epochs=6,
)


def rare():
    """Labels of which about 1.3% are positive."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(5000, 3)).astype(np.float32)
    probs = 1 / (1 + np.exp(5.1 - 1.3 * inputs[:, 0] - 0.4 * inputs[:, 1]))
    labels = (rng.random(5000) < probs).astype(int)
    return {"train_inputs": inputs, "train_labels": labels, "class_names": ["no", "yes"]}


@pytest.mark.check
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_members_start_from_the_linear_model_of_rows_as_they_come(likelihood):
    data = rare()
    config = {**CONFIG, "likelihood": likelihood}
    said = []
    for spec in ("none", "balanced"):
        task = task_of({**config, "class_weights": spec}, data)
        found = linear_start.fit(task, make_folds(task.dataset, 2, 0), np.ones(5000))
        seen = task.prepare(jnp.asarray(data["train_inputs"]))
        said.append(
            task.likelihood.predict({}, seen @ found["kernel"][0] + found["bias"][0])["log_probs"]
        )
    np.testing.assert_allclose(*said, atol=1e-4)
