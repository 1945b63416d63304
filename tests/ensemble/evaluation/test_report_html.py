"""What `report.html` says in words, of ensembles that are out of the ordinary."""

import re

import numpy as np
import pytest
from conftest import small_config
from small_runs import make_blobs

import ensemble


def page_of(workdir, **options):
    """The evaluation, and the text of its page without tags and line breaks."""
    evaluation = ensemble.evaluate(workdir, datasets=[], **options)
    page = (workdir / "evaluation" / "report.html").read_text()
    return evaluation, page, re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))


@pytest.fixture(scope="module")
def many_classes(tmp_path_factory):
    """A run on 25 classes, one of which is half of all examples."""
    data = make_blobs(num_examples=403, num_classes=25)
    data["labels"][::2] = 7
    workdir = tmp_path_factory.mktemp("many")
    ensemble.train(small_config(ensemble_size=2, num_epochs=1), data, str(workdir))
    return workdir


def test_many_classes_fold_to_the_worst(many_classes):
    evaluation, page, text = page_of(many_classes)
    assert "Here are the 20 of 25 classes with the lowest recall, the worst first" in text
    assert "All 25 classes" in text
    table = re.search(r'<table id="classes">.*?</table>', page, re.DOTALL)[0]
    assert table.count("<tr><td>") == 20
    assert "<td>7</td>" not in table  # It is always found.
    assert evaluation["classes"]["majority"]["name"] == "7"
    assert evaluation["verdict"][1] in text


def test_empty_sets_are_explained_and_left_out_on_request(many_classes):
    evaluation, _, text = page_of(many_classes)
    assert "Two members disagree on" in text
    assert "the list holds the label with a probability of 90%" in text
    assert "No list is empty." in text or "With --nonempty_sets every list has" in text
    evaluation, _, text = page_of(many_classes, nonempty_sets=True)
    assert "Every list has the most probable class at least, as was asked for." in text
    assert evaluation["calibrated"]["conformal"]["sizes"][0] == 0


@pytest.mark.soak
def test_one_live_member_disagrees_with_nobody(blobs, tmp_path):
    config = small_config(ensemble_size=1, num_devices=1, num_epochs=1)
    ensemble.train(config, blobs, str(tmp_path))
    _, _, text = page_of(tmp_path)
    assert "Two members disagree" not in text
    assert "There is one live member: how far members disagree cannot be measured." in text
    assert "mean of members" not in text
    assert "the one member" in text


def test_a_temperature_that_cannot_be_fitted_is_said_to_be_one(blobs, tmp_path, caplog):
    data = {f"train_{name}": one for name, one in blobs.items()}
    data |= {f"test_{name}": one[:60] for name, one in blobs.items()}
    first = np.flatnonzero(blobs["labels"] == 0)[:1]
    data |= {f"calibration_{name}": one[first] for name, one in blobs.items()}
    ensemble.train(small_config(), data, str(tmp_path))
    evaluation, _, text = page_of(tmp_path)
    found = evaluation["calibrated"]["temperature"]
    assert found["value"] == 1
    assert any(found["reason"] in sentence for sentence in evaluation["verdict"])
    assert f"Temperature: {found['reason']}." in text
    assert any("examples, 1, " in one for one in caplog.messages)
