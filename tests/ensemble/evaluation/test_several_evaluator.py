"""Evaluations of several targets: each as if it were alone, and the NLL of all."""

import json
import re

import numpy as np
import pytest
from conftest import built_once, small_config
from markdown_pages import of_evaluations

import ensemble
from ensemble.scoring.sections import values_in

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 2)).astype(np.float32)
NOISE = RNG.normal(size=(300, 2))
Y = np.stack([X[:, 0], 100 + 20 * X[:, 1]], axis=1) + NOISE * [0.3, 20]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def build(path):
        config = small_config(likelihood="gaussian", optimizer="adam", num_epochs=5)
        data = {"inputs": X, "targets": Y}
        ensemble.train(config, data, str(path), show_progress=False)

    with built_once(tmp_path_factory, "several", build) as path:
        yield path


@pytest.mark.check
def test_each_target_is_evaluated_and_the_nll_is_of_all(run, tmp_path):
    found = ensemble.evaluate(
        run, tmp_path, compare=run, data={"inputs": X, "targets": Y}, show_progress=False
    )
    report = json.loads((run / "report.json").read_text())["test"]
    assert found.keys() | found["targets"][0].keys() <= of_evaluations()
    assert json.loads(json.dumps(found["test"])) == report
    for d, part in enumerate(found["targets"]):
        test = found["test"]["targets"][d]
        scores = values_in(test)
        low, high = test["scores"]["crps"]["interval"]
        assert low < scores["crps"] < high
        assert part["calibrated"]["value"] > 0
        assert part["shift"]["noisy"]["scores"]["rmse"][0] == scores["rmse"]
        assert part["simple"]["least_squares"]["scores"]["rmse"]["value"] > 0
    low, high = found["test"]["scores"]["nll"]["interval"]
    assert low < found["test"]["scores"]["nll"]["value"] < high
    assert found["compare"][0]["scores"]["nll"]["difference"] == 0
    assert "NLL of all" in repr(found)
    assert {"targets/0", "targets/1"} <= {one["about"] for one in found["findings"]}
    page = (tmp_path / "report.html").read_text()
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert {"target-0-scores", "target-1-scores"} <= set(names)
