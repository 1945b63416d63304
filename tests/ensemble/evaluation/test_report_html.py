"""What `report.html` says in words, of ensembles that are out of the ordinary."""

import re

import numpy as np
import pytest
from conftest import small_config
from small_runs import make_blobs

import ensemble
from ensemble.evaluation.tiles import tiles_of
from ensemble.evaluation.words import SILENT


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


@pytest.mark.check
def test_many_classes_fold_to_the_worst(many_classes):
    evaluation, page, text = page_of(many_classes)
    for question in ("quality", "gain", "recalibration", "conformal"):  # Among all, and in place.
        (told,) = (
            one["text"]
            for one in evaluation["findings"]
            if one["code"].partition(".")[0] == question
        )
        assert text.count(told) >= 2
    silent = {one["text"] for one in evaluation["findings"] if one["code"] in SILENT}
    silent -= {tile.sentence for tile in tiles_of(evaluation)}
    assert silent
    assert [told for told in silent if told in text] == []
    assert "Here are the 20 of 25 classes with the lowest recall, the worst first" in text
    assert "All 25 classes" in text
    table = re.search(r'<table id="classes">.*?</table>', page, re.DOTALL)[0]
    assert table.count("<tr><td>") == 20
    assert "<td>7</td>" not in table  # It is always found.
    assert evaluation["classes"]["majority"]["name"] == "7"
    assert "Always answering 7, the most frequent class" in text or "always answering 7" in text


@pytest.mark.check
def test_empty_sets_are_left_out_unless_they_are_asked_for(many_classes):
    evaluation, _, text = page_of(many_classes)
    assert "Two members disagree on" in text
    assert "which cover the label of a new example with at least the guaranteed" in text
    assert "Every set has the most probable class at least" in text
    assert evaluation["conformal"]["sets"]["sizes"][0] == 0
    evaluation, _, text = page_of(many_classes, exact_sets=True)
    assert "No set is empty." in text or "Without --exact_sets every set has" in text


@pytest.mark.soak
def test_one_live_member_disagrees_with_nobody(blobs, tmp_path):
    config = small_config(ensemble_size=1, num_devices=1, num_epochs=1)
    ensemble.train(config, blobs, str(tmp_path))
    _, _, text = page_of(tmp_path)
    assert "Two members disagree" not in text
    assert "There is one live member: how far members disagree cannot be measured." in text
    assert "sd of members" not in text
    assert "the one member" in text


@pytest.mark.check
def test_a_temperature_that_cannot_be_fitted_is_said_to_be_one(blobs, tmp_path, caplog):
    data = {f"train_{name}": one for name, one in blobs.items()}
    data |= {f"test_{name}": one[:60] for name, one in blobs.items()}
    first = np.flatnonzero(blobs["labels"] == 0)[:1]
    data |= {f"calibration_{name}": one[first] for name, one in blobs.items()}
    ensemble.train(small_config(), data, str(tmp_path))
    evaluation, _, text = page_of(tmp_path)
    found = evaluation["calibrated"]
    assert found["value"] == 1
    assert "recalibration.unfitted" in {one["code"] for one in evaluation["findings"]}
    assert f"Temperature: {found['reason']}." in text
    assert any("examples, 1, " in one for one in caplog.messages)


@pytest.mark.check
def test_a_posterior_begins_with_its_chains(blobs, tmp_path):
    hmc = {"num_warmup": 4, "num_samples": 8, "num_leapfrog_steps": 2, "thin": 2}
    config = {"model": "logistic_regression", "method": "hmc", "num_chains": 2, "sampler": hmc}
    ensemble.train(config, blobs, str(tmp_path), show_progress=False)
    _, page, text = page_of(tmp_path)
    assert "2 chains of 8 draws" in text
    assert "The average over draws of 2 chains is right on" in text
    assert "Is one more chain worth its cost?" in text
    assert "ensemble of 2" not in text
    assert "not recorded" not in text
    assert text.index("Do the chains agree?") < text.index("How good is it?")
    assert page.count('src="data:image/png;base64,') == 2
    (tmp_path / "plots" / "ranks.png").unlink()
    assert page_of(tmp_path)[1].count('src="data:image/png;base64,') == 1
