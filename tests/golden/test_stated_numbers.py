"""Every number that an evaluation and a report state, for every likelihood: none moves by itself.

`python -m tests.golden.test_stated_numbers` renews `stated_numbers.json`. Read its diff: each
number that moved needs a reason.
"""

import json
import math
import pathlib
import sys
import tempfile

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "public"), str(HERE.parents[1])]

import runs
from test_golden import machine

import ensemble

STATED = HERE / "stated_numbers.json"
RECORDED = json.loads(STATED.read_text()) if STATED.exists() else {"machine": "", "numbers": {}}
LEAST = 1e-6
"""Relative, by the same processor and compiler: six digits are kept."""
_LONG = 12
"""Of longer lists, such as curves, the mean and the root mean square are kept."""
_OF_A_RUN = (
    "config",
    "environment",
    "workdir",
    "timing",
    "dataset",
    "identity",
    "format",
    "findings",
)
_OF_THE_CLOCK = ("_per_second", "checksum")
"""Ends of keys whose values no two runs share; the checksum is of these too."""
LEARNED = {"optimizer": "adam", "learning_rate": 0.03, "num_epochs": 20}


def two_targets():
    """Two numbers to learn at once."""
    data = runs.numbers()
    return {**data, "targets": np.stack([data["targets"], data["inputs"][:, 1]], axis=1)}


def annotated(name, values):
    """Numbers with an annotation on each."""
    data = runs.numbers()
    return {**data, name: values(data["targets"])}


CASES = {
    **{
        name: ({**runs.MEMBERS, "likelihood": name}, runs.LIKELIHOODS[name])
        for name in (
            "categorical",
            "bernoulli",
            "gaussian",
            "mixture_of_gaussians",
            "poisson",
            "quantiles",
        )
    },
    "two_targets": ({**runs.MEMBERS, "likelihood": "gaussian"}, two_targets),
    "censored": (
        {**runs.MEMBERS, "likelihood": "gaussian"},
        lambda: annotated("censored", lambda y: y > np.quantile(y, 0.8)),
    ),
    "target_errors": (
        {**runs.MEMBERS, "likelihood": "gaussian"},
        lambda: annotated("target_errors", lambda y: 0.1 * np.sqrt(y)),
    ),
    "hmc": ({**runs.METHODS["hmc"], "likelihood": "categorical"}, runs.classes),
    "hmc_numbers": ({**runs.METHODS["hmc"], "likelihood": "gaussian"}, runs.numbers),
    "sghmc_numbers": (
        {**runs.METHODS["sghmc"], "likelihood": "gaussian", "learning_rate": 0.01},
        runs.numbers,
    ),
}
"""A configuration and data, by name: whatever is scored by code of its own."""
OFTEN = ("categorical", "gaussian", "hmc_numbers")


def numbers_of(value, path=""):
    """Numbers by their paths; long lists by mean and root mean square."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {}
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list) and len(value) > _LONG and all(map(_is_number, value)):
        array = np.array(value, np.float64)
        pairs = [("mean", float(array.mean())), ("rms", float(np.sqrt((array**2).mean())))]
    elif isinstance(value, list):
        pairs = enumerate(value)
    else:
        return {path: float(f"{value:.7g}")}
    found = {}
    for key, one in pairs:
        if str(key).endswith(_OF_THE_CLOCK):
            continue
        found |= numbers_of(one, f"{path}.{key}" if path else str(key))
    return found


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def run(name, folder):
    """Trains and evaluates a case, and compares it with one of fewer members or chains."""
    config, make = CASES[name]
    given, is_sgd = make(), config.get("method", "sgd") == "sgd"
    config = {**config, **(LEARNED if is_sgd else {}), "plot_every_epochs": 1000}
    size = "ensemble_size" if is_sgd else "num_chains"
    fewer = {**config, size: config[size] - 1}
    for where, one in (("all", config), ("fewer", fewer)):
        ensemble.train(one, given, str(folder / where), show_progress=False)
    ensemble.evaluate(
        folder / "all",
        data=given,
        out=folder / "out",
        compare=[folder / "fewer"],
        show_progress=False,
    )
    found = {}
    for part, path in (
        ("report", folder / "all/report.json"),
        ("", folder / "out/evaluation.json"),
    ):
        content = json.loads(path.read_text())
        kept = {key: one for key, one in content.items() if key not in _OF_A_RUN}
        found |= numbers_of(kept, part)
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.check if name in OFTEN else pytest.mark.soak)
        for name in CASES
    ],
)
def test_every_number_is_what_it_was(name, tmp_path, capsys):
    found, expected = run(name, tmp_path), numbers_of(RECORDED["numbers"][name])
    assert sorted(found) == sorted(expected)
    if machine() != RECORDED["machine"]:
        with capsys.disabled():
            print(f"\nNUMBERS NOT COMPARED: this is {machine()}; they are of {RECORDED['machine']}")
        return
    moved = {
        path: (expected[path], value)
        for path, value in found.items()
        if not math.isclose(value, expected[path], rel_tol=LEAST, abs_tol=LEAST)
    }
    assert not moved


def _record():
    numbers = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            numbers[name] = run(name, pathlib.Path(folder))
    STATED.write_text(_text(numbers))


def _text(numbers):
    """JSON with a line for each of the first two parts of paths, so that diffs can be read."""
    cases = []
    for name, stated in numbers.items():
        groups = {}
        for path, value in sorted(stated.items()):
            place, parts = groups, path.split(".")
            for part in [".".join(parts[:2]), *parts[2:]][:-1]:
                place = place.setdefault(part, {})
            place[[".".join(parts[:2]), *parts[2:]][-1]] = value
        lines = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in groups.items()]
        cases.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    body = ",\n".join(cases)
    return f'{{"machine": {json.dumps(machine())}, "numbers": {{\n{body}\n}}}}\n'


if __name__ == "__main__":
    import conftest  # noqa: F401 - devices and flags as the test has them.

    _record()
