"""The pictures of the documentation."""

import pytest

from scripts import draw_pictures


@pytest.mark.parametrize("picture", ["clutter", "report"])
def test_a_workdir_without_its_report_is_one_line(picture, tmp_path, monkeypatch, capsys):
    arguments = [picture, str(tmp_path), str(tmp_path / "x.png")]
    monkeypatch.setattr("sys.argv", ["draw_pictures", *arguments])
    monkeypatch.setattr(draw_pictures, "missing", lambda: None)
    assert draw_pictures.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("draw_pictures: ")
    assert str(tmp_path) in line


def test_without_a_browser_it_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["draw_pictures", "report", "run", "x.png"])
    monkeypatch.setattr(draw_pictures, "missing", lambda: "no browser")
    assert draw_pictures.main() == 2
    assert capsys.readouterr().err == "draw_pictures: there is no browser\n"
