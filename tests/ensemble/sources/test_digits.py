"""scikit-learn's digits: from its file, or by its own loader."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from ensemble import UserError
from ensemble.sources.digits import read_digits


def test_without_the_bundled_file(monkeypatch):
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    by_import = read_digits()
    monkeypatch.undo()
    np.testing.assert_array_equal(by_import, read_digits())


def test_without_scikit_learn_it_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        read_digits()
