"""The picture of an ensemble in docs/results.md."""

import numpy as np
import pytest
from PIL import Image

import ensemble
from ensemble import metrics
from ensemble.pictures.plot_style import figure_to_array
from scripts import draw_demo


@pytest.mark.soak
def test_it_draws_right_and_wrong_predictions():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    logits = rng.normal(size=(3, 60, 10)) + 2 * np.eye(10)[labels]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    inputs = rng.integers(0, 256, (60, 20, 20, 1), dtype=np.uint8)
    figure = draw_demo.draw(metrics.summarise(log_probs, labels), log_probs, inputs, labels)
    texts = [axes.get_title() for axes in figure.axes]
    assert any("✗" in text for text in texts)
    assert any("✓" in text for text in texts)
    assert figure_to_array(figure).shape[2] == 3


@pytest.mark.soak
def test_a_run_is_drawn(tmp_path, monkeypatch):
    config = {"dataset": "digits", "model": "mlp", "num_epochs": 1, "ensemble_size": 2}
    ensemble.train(config, workdir=str(tmp_path / "run"))
    arguments = ["draw_demo", f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'x.png'}"]
    monkeypatch.setattr("sys.argv", arguments)
    assert draw_demo.main() == 0
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width > 1000


def test_a_workdir_without_a_report_is_one_line(tmp_path, monkeypatch, capsys):
    arguments = ["draw_demo", f"--workdir={tmp_path}", f"--out={tmp_path / 'x.png'}"]
    monkeypatch.setattr("sys.argv", arguments)
    assert draw_demo.main() == 2
    assert "there is no file" in capsys.readouterr().err
