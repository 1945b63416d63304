"""A function that makes an interval is found, unless a simulation names it."""

from scripts.simulated_intervals import find_faults, find_makers

CODE = """
from ensemble import metrics

def score(values):
    return metrics.mean_intervals(values)

class Scorer:
    def score(self, values):
        def inner():
            return intervals(values)
        return inner()

def mean(values):
    return sum(values)

def normal_interval(values):
    return sorted(values)[1:-1]

def ends(values):
    return -1.96 * max(values), 1.96 * max(values)
"""
MORE = "'package.scores.normal_interval', 'package.scores.ends'"


def write(tmp_path, made_by):
    package, folder = tmp_path / "package", tmp_path / "simulations"
    package.mkdir()
    folder.mkdir()
    (package / "scores.py").write_text(CODE)
    (folder / "some.py").write_text(f"STATEMENT = Statement(made_by=({made_by},))")
    return package, folder


def test_functions_that_make_intervals_are_found(tmp_path):
    package, _ = write(tmp_path, "")
    assert find_makers(package) == {
        "package.scores.score": "package/scores.py:5",
        "package.scores.Scorer.score.inner": "package/scores.py:10",
        "package.scores.normal_interval": "package/scores.py:16",
        "package.scores.ends": "package/scores.py:20",
    }


def test_what_no_simulation_names_is_a_fault(tmp_path):
    faults = find_faults(*write(tmp_path, f"'package.scores.score', {MORE}"), {})
    assert len(faults) == 1
    assert faults[0].startswith("package/scores.py:10: package.scores.Scorer.score.inner makes")


def test_a_function_speaks_for_what_is_inside_of_it(tmp_path):
    made_by = f"'package.scores.score', 'package.scores.Scorer.score', {MORE}"
    assert find_faults(*write(tmp_path, made_by), {}) == []


def test_a_name_that_no_function_has_is_a_fault(tmp_path):
    made_by = (
        f"'package.scores.score', 'package.scores.Scorer.score', 'package.scores.gone', {MORE}"
    )
    assert find_faults(*write(tmp_path, made_by), {}) == [
        "package.scores.gone is named as one that makes an interval, and is no function"
    ]


def test_what_states_nothing_needs_a_reason(tmp_path):
    folders = write(tmp_path, f"'package.scores.score', {MORE}")
    assert find_faults(*folders, {"package.scores.Scorer": "draws a picture"}) == []
