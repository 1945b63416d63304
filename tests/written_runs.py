"""Workdirs that are written and not trained, for tests of what reads them."""

import json

import numpy as np
import pytest
import scipy.special
from run_parts import draws_of, validated, workdir_of

from ensemble.config import FORMAT
from ensemble.likelihoods.classes import Categorical
from ensemble.storage.predictions import write_predictions


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """What a finished ensemble and a finished posterior leave, without their checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "sgd", {"num_epochs": 2})
    config = {"method": "hmc", "prior": "normal(1)", "num_chains": 4}
    posterior = {"num_samples": 8, "num_chains": 4, "rhat_max": 1.01, "ess_bulk_min": None}
    write_run(folder / "hmc", config, posterior=posterior)
    hmc = folder / "hmc"
    found = draws_of(hmc)
    scalars = {name: np.zeros((4, 5)) for name in ("log_density", "accuracy")}
    found.append(5, scalars, {"Dense": {"kernel": np.ones((4, 2, 6, 3))}}, [0, 3])
    return folder


def write_run(path, config, class_names=("a", "b", "c"), name="arrays", **entries):
    """Writes a finished run of four members on 20 test examples of vectors."""
    work = workdir_of(path)
    work.predictions.mkdir(parents=True)
    rng = np.random.default_rng(0)
    config = validated(config)
    fingerprint = "d2e453514d9eb645"
    work.write_config(config)
    for split in ("test", "calibration"):
        logits = rng.normal(size=(4, 20, len(class_names)))
        log_probs = (logits - scipy.special.logsumexp(logits, -1, keepdims=True)).astype(np.float32)
        labels = rng.integers(0, len(class_names), 20)
        write_predictions(
            work,
            split,
            Categorical(class_names).predictive({"log_probs": log_probs}),
            labels,
            range(4),
        )
    description = {
        "name": name,
        "num_classes": len(class_names),
        "class_names": list(class_names),
        "input_shape": [6],
        "dtype": "float32",
        "shift": [0.0] * 6,
        "scale": [1.0] * 6,
        "num_examples": {"train": 143, "validation": 20, "calibration": 20, "test": 20},
        "fingerprint": fingerprint,
        "test_fingerprint": "45af0818e0f29d8f",
    }
    record = {"step": 1, "epoch": 0.5, "train/member_00/loss": 0.7, "validation/ensemble/nll": None}
    work.metrics.write_text("".join(json.dumps({**record, "step": k}) + "\n" for k in range(5)))
    content = {
        "format": FORMAT,
        "config": config.to_dict(),
        "dataset": description,
        "method": config.method,
        "num_members": 4,
        "active_members": [0, 1, 2, 3],
        "failed_members": {},
        "notes": [],
        **entries,
    }
    work.manifest.write(work.report, content)
    return work
