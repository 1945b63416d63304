"""The program beside an export: any size of batch is one of nine programs, and says the same."""

import concurrent.futures
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import classification
from small_runs import make_blobs

from ensemble import networks, read_model
from ensemble.data import dataset_from_arrays
from ensemble.export import export
from ensemble.fitted import Fitted
from ensemble.metrics.abstention import Rule, fit_abstention
from ensemble.predictor import Ensemble
from ensemble.priors import parse_prior

COMPILED = "/jax/core/compile/backend_compile_duration"


def make_predictor(data, **keys):
    """An untrained ensemble: three tiny networks as they start."""
    network = networks.create("small_runs:Tiny", 3)
    task = classification(dataset_from_arrays(data), network, parse_prior("none"))
    seeds = jax.random.split(jax.random.key(0), 3)
    inputs = jnp.zeros((1, *data["inputs"].shape[1:]))
    variables = jax.vmap(network.init, in_axes=(0, None))(seeds, inputs)
    fitted = Fitted(jax.tree.map(np.asarray, variables), np.arange(3))
    return Ensemble([(task, fitted)], range(3), 1, **keys)


def written(predictor, folder):
    path = folder / "model.bin"
    path.write_bytes(export(predictor))
    return path


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(num_examples=700)


@pytest.fixture(scope="module")
def predictor(blobs):
    doubts = np.linspace(0, 1, 101)
    fitted = fit_abstention(Rule("coverage", 0.6), doubts, doubts > 1)
    return make_predictor(blobs, abstention=fitted)


@pytest.fixture(scope="module")
def path(predictor, tmp_path_factory):
    return written(predictor, tmp_path_factory.mktemp("exported"))


@pytest.fixture
def compiled():
    """Grows by one with each program that is compiled."""
    seen = []

    def listen(event, duration, **about):
        if event == COMPILED:
            seen.append(about)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def assert_says(found, prediction):
    expected = prediction.columns()
    assert {*found, "class"} == {*expected}
    for name, one in found.items():
        np.testing.assert_allclose(one, expected[name], atol=2e-5, err_msg=name)


@pytest.mark.check
def test_all_sizes_are_nine_programs_that_say_what_the_predictor_does(
    path, predictor, blobs, compiled
):
    inputs = blobs["inputs"]
    expected = predictor(inputs)
    del compiled[:]
    model = read_model.Model(path)
    for size in (*range(1, 201), 256, 257, 700):
        found = model(inputs[:size])
        assert found["probs"].shape == (size, 3)
        np.testing.assert_allclose(found["probs"], expected.probs[:size], atol=2e-5)
    assert len(compiled) == len(read_model.SIZES) == 9
    assert_says(found, expected)
    assert 0 < found["accepted"].mean() < 1


@pytest.mark.check
def test_what_is_compiled_ahead_serves_all_calls(path, blobs, compiled):
    model = read_model.Model(path).compile()
    assert len(compiled) == 9
    for size in (*range(1, 40), 255, 300, 700):
        model(blobs["inputs"][:size])
    assert len(compiled) == 9


def test_threads_compile_a_size_once_and_get_their_own_rows(path, predictor, blobs, compiled):
    inputs = blobs["inputs"]
    expected = predictor(inputs).probs
    del compiled[:]
    model = read_model.Model(path)
    together = threading.Barrier(8)

    def ask(k):
        together.wait()
        here = slice(k, k + 3 + k % 2)
        return here, model(inputs[here])["probs"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for here, probs in pool.map(ask, range(64)):
            np.testing.assert_allclose(probs, expected[here], atol=2e-5)
    assert len(compiled) == 1  # Of four rows.


def test_bad_inputs_are_one_line(path, blobs):
    model = read_model.Model(path)
    inputs = blobs["inputs"]
    assert (model.shape, model.dtype) == ((6,), np.float32)
    cases = {
        "inputs of shape (0, 6): the model takes [N, 6], N > 0": inputs[:0],
        "inputs of shape (2, 5): the model takes [N, 6], N > 0": inputs[:2, :5],
        "inputs of shape (6,): the model takes [N, 6], N > 0": inputs[0],
        "inputs of shape (): the model takes [N, 6], N > 0": 3.0,
        "inputs of dtype float64: the model takes float32; convert them with .astype('float32')": (
            inputs.astype(np.float64)
        ),
        "inputs of dtype object: the model takes float32; convert": inputs.astype(object),
    }
    for line, bad in cases.items():
        with pytest.raises(ValueError, match=re.escape(line)) as error:
            model(bad)
        assert "\n" not in str(error.value)


@pytest.mark.check
def test_pictures_of_bytes_are_taken_as_they_are(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 1)).astype(np.uint8)
    predictor = make_predictor({"inputs": images, "labels": np.arange(9) % 3})
    model = read_model.Model(written(predictor, tmp_path))
    assert_says(model(images), predictor(images))
    with pytest.raises(ValueError, match=r"dtype float32: the model takes uint8; "):
        model(images.astype(np.float32))


def test_a_row_that_is_no_number_gives_nan_and_changes_no_other(path, blobs):
    model = read_model.Model(path)
    inputs = blobs["inputs"][:7].copy()
    whole = model(inputs)
    inputs[2, 1] = np.nan
    inputs[5, 0] = np.inf
    inputs[6, 5] = -np.inf
    bad = [2, 5, 6]
    found = model(inputs)
    assert whole.keys() == found.keys()
    for name, rows in found.items():
        np.testing.assert_array_equal(np.delete(rows, bad, 0), np.delete(whole[name], bad, 0))
        none = {"label": -1, "accepted": False}.get(name, np.nan)
        np.testing.assert_array_equal(rows[bad], np.full_like(rows[bad], none))
