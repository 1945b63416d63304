"""The pictures of the documentation; tests/test_tensorboard.py draws that of TensorBoard."""

import numpy as np
import pytest
from PIL import Image
from run_parts import of_classes

import ensemble
from ensemble.pictures.plot_style import figure_to_array
from ensemble.scoring.sections import score_split
from scripts import draw_pictures


@pytest.mark.soak
def test_it_draws_right_and_wrong_predictions():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    logits = rng.normal(size=(3, 60, 10)) + 2 * np.eye(10)[labels]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    inputs = rng.integers(0, 256, (60, 20, 20, 1), dtype=np.uint8)
    section = score_split(of_classes("abcdefghij").view({"log_probs": log_probs}, labels))
    figure = draw_pictures.draw_scores(section, log_probs, inputs, labels)
    texts = [axes.get_title() for axes in figure.axes]
    assert any("✗" in text for text in texts)
    assert any("✓" in text for text in texts)
    assert figure_to_array(figure).shape[2] == 3


@pytest.mark.soak
def test_a_run_is_drawn(tmp_path, monkeypatch):
    config = {"dataset": "digits", "model": "mlp", "num_epochs": 1, "ensemble_size": 2}
    ensemble.train(config, workdir=str(tmp_path / "run"))
    arguments = ["clutter", str(tmp_path / "run"), str(tmp_path / "x.png")]
    monkeypatch.setattr("sys.argv", ["draw_pictures", *arguments])
    assert draw_pictures.main() == 0
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width > 1000


@pytest.mark.parametrize("picture", ["clutter", "report"])
def test_a_workdir_without_its_report_is_one_line(picture, tmp_path, monkeypatch, capsys):
    arguments = [picture, str(tmp_path), str(tmp_path / "x.png")]
    monkeypatch.setattr("sys.argv", ["draw_pictures", *arguments])
    monkeypatch.setattr(draw_pictures, "missing", lambda: None)
    assert draw_pictures.main() == 2
    assert f"there is no file {tmp_path}/" in capsys.readouterr().err


def test_without_a_browser_it_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["draw_pictures", "report", "run", "x.png"])
    monkeypatch.setattr(draw_pictures, "missing", lambda: "no browser")
    assert draw_pictures.main() == 2
    assert capsys.readouterr().err == "draw_pictures: there is no browser\n"
