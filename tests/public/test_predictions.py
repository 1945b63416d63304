"""What predictions offer: attributes by the kind of target, parts of an ensemble, columns."""

import subprocess
import sys

import names
import numpy as np
import pytest
from runs import LIKELIHOODS

FEW = {
    "model": "mlp",
    "mlp.widths": "8",
    "ensemble_size": 3,
    "num_devices": 1,
    "num_epochs": 2,
    "batch_size": 32,
    "log_every_steps": 100,
}


def predictions(likelihood, targets=None):
    data = LIKELIHOODS[likelihood]()
    data |= {} if targets is None else {"targets": targets(data["targets"])}
    config = names.config(FEW, likelihood=likelihood)
    result = names.train(config, data, show_progress=False)
    rows = slice(0, 7)
    return result.predictor(data["inputs"][rows]), data.get("labels", data.get("targets"))[rows]


@pytest.fixture(scope="module")
def classes():
    return predictions("categorical")


@pytest.fixture(scope="module")
def numbers():
    return predictions("gaussian")


def test_of_classes(classes):
    p, labels = classes
    np.testing.assert_array_equal(p.labels, p.probs.argmax(axis=1))
    np.testing.assert_array_equal(p.label_names, np.array(p.class_names)[p.labels])
    np.testing.assert_allclose(p.confidence, p.probs.max(axis=1))
    np.testing.assert_allclose(p.probs, np.exp(p.member_log_probs).mean(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(p.votes, p.member_log_probs.argmax(axis=2))
    entropy = -(p.probs * p.log_probs).sum(axis=1)
    np.testing.assert_allclose(p.total_uncertainty, entropy, rtol=1e-6)
    parts = p.aleatoric_uncertainty + p.epistemic_uncertainty
    np.testing.assert_allclose(parts, entropy, rtol=1e-6)
    np.testing.assert_allclose(p.log_prob(labels), p.log_probs[np.arange(7), labels])


def test_of_numbers(numbers):
    p, _ = numbers
    np.testing.assert_allclose(p.mean, p.member_means.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(p.epistemic_std, p.member_means.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(p.std**2, p.aleatoric_std**2 + p.epistemic_std**2)
    low, middle, high = p.quantiles([0.05, 0.5, 0.95]).T
    np.testing.assert_allclose(middle, p.median)
    assert ((low < middle) & (middle < high)).all()


def test_parts_of_an_ensemble(classes, numbers):
    for p, targets in (classes, numbers):
        assert (len(p), p.num_members, len(p.members)) == (7, 3, 3)
        assert p.accepted.all()
        each = np.exp([one.log_prob(targets) for one in p.members])
        np.testing.assert_allclose(np.exp(p.log_prob(targets)), each.mean(axis=0), rtol=1e-5)
        two = p.of([0, 2])
        np.testing.assert_allclose(
            np.exp(two.log_prob(targets)), each[[0, 2]].mean(axis=0), rtol=1e-5
        )
        for name, one in p.rows([5, 1]).columns().items():
            same = np.testing.assert_array_equal
            if one.dtype.kind == "f":
                same = np.testing.assert_allclose
            same(one, p.columns()[name][[5, 1]], err_msg=name)


def test_columns_are_arrays_of_rows(classes, numbers):
    names_of = ["label", "class", "probs"]
    names_of += [f"{one}_uncertainty" for one in ("total", "aleatoric", "epistemic")]
    assert [*classes[0].columns()] == names_of
    moments = ["mean", "std", "aleatoric_std", "epistemic_std", "quantiles"]
    assert [*numbers[0].columns()] == moments
    assert "probs" not in repr(classes[0])
    assert "7 predictions of 3 members" in repr(numbers[0])


def test_several_targets_are_predicted_side_by_side():
    p, targets = predictions("gaussian", lambda one: np.stack([one, 2 * one], axis=1))
    assert p.mean.shape == p.std.shape == targets.shape
    assert p.quantiles([0.1, 0.9]).shape == (7, 2, 2)
    for d in range(2):
        one = p.of_target(d)
        np.testing.assert_array_equal(one.mean, p.mean[:, d])
        np.testing.assert_array_equal(one.quantiles([0.1]), p.quantiles([0.1])[:, d])


FORKED = """
import multiprocessing, pathlib, sys
import numpy as np
import ensemble
from ensemble import read_model
from ensemble.export import export

x = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
config = {"model": "mlp", "mlp.widths": "8", "ensemble_size": 2, "num_epochs": 1}
result = ensemble.train(config, (x, (x[:, 0] > 0).astype(int)), sys.argv[1], show_progress=False)
pathlib.Path(sys.argv[1] + ".bin").write_bytes(export(result.predictor))
model = read_model.Model(sys.argv[1] + ".bin")
calls = [lambda: result.predictor(x), lambda: ensemble.load(sys.argv[1]), lambda: model(x)]


def line(k):
    try:
        calls[k]()
    except (ensemble.InputError, RuntimeError) as error:
        return str(error)


with multiprocessing.get_context("fork").Pool(1) as pool:
    print(*pool.map(line, range(3)), sep="\\n")
"""


@pytest.mark.check
def test_a_forked_process_refuses_in_one_line(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert [("forked" in one, "JAX would hang here" in one) for one in lines] == 3 * [(True, True)]
