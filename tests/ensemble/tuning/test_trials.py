"""Trials: what is resumed, cut, failed and refused, and what a search proposes."""

import functools
import math
import threading
import types
from typing import ClassVar

import numpy as np
import pytest

import ensemble
from ensemble import InputError
from ensemble.errors import Interrupted, TrainingError
from ensemble.storage.workdir import SEARCH, Workdir, purpose_of
from ensemble.tuning import trials as module
from ensemble.tuning.search import proposals
from ensemble.tuning.trials import open_trials, parse_seconds

CONFIG = {"method": "deep_ensemble", "num_devices": 1, "seed": 0}


class Clock:
    """Time that passes in trials alone, and what is to be called by then."""

    def __init__(self):
        self.now = 0.0
        self.alarm = (math.inf, None)

    def timer(self, seconds, function):
        self.alarm = self.now + seconds, function
        return types.SimpleNamespace(start=lambda: None, cancel=lambda: None)

    def sleep(self, seconds):
        self.now += seconds
        if self.now > self.alarm[0]:
            self.alarm[1]()


class Trained:
    """A run that `train` stands for: its report, and what it does meanwhile."""

    report: ClassVar = {"dataset": {"fingerprint": "data"}}

    def __init__(self, seconds=0.0, error=None):
        self.seconds = seconds
        self.error = error

    def __call__(self, clock, values, data, workdir, show_progress):
        clock.sleep(self.seconds)
        Workdir(workdir).path.mkdir(parents=True, exist_ok=True)
        if self.error is not None:
            raise self.error
        return self


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Runs trials that take some steps, within a time; returns the table's trials."""
    built = types.SimpleNamespace(values={}, config=None)
    clock = Clock()
    monkeypatch.setattr(module, "build", lambda values, by_hand=(): built)
    monkeypatch.setattr(module, "complete", lambda config, overrides, data: (data, config))
    threads = types.SimpleNamespace(Timer=clock.timer, TIMEOUT_MAX=threading.TIMEOUT_MAX)
    monkeypatch.setattr(module, "threading", threads)
    fake = types.SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(Workdir, "read_report", lambda work: Trained.report)

    def attempt(*runs, limit=60, config=CONFIG, data="data"):
        source = types.SimpleNamespace(fingerprint=data)
        monkeypatch.setattr(module, "load_source", lambda config, given: source)
        with open_trials(SEARCH, config, None, limit, tmp_path / "out", False) as trials:
            for name, score, run in runs:
                monkeypatch.setattr(module, "train", functools.partial(run, clock))
                if trials.run(name, {}, lambda out, report, score=score: (score, {})) is None:
                    break
            return trials

    return attempt


def test_trials_are_run_once_and_the_time_ends_them(attempt):
    never = Trained(error=AssertionError("it is there already"))
    table = attempt(("a", 2.0, Trained(4)), ("b", 1.0, Trained(2)))
    assert [one.score for one in table.ended] == [2.0, 1.0]
    table = attempt(("a", 0, never), ("b", 0, never), ("c", 3.0, Trained(2)), limit=7.5)
    assert [*table.table] == ["a", "b", "c"], "more than half of the shortest trial was left"
    table = attempt(("a", 0, never), ("d", 0, never), limit=9)
    assert [*table.table] == ["a", "b", "c"]


def test_what_fails_is_a_row_and_bad_input_of_the_first_trial_an_error(attempt, tmp_path):
    with pytest.raises(InputError, match="no such column"):
        attempt(("a", 1.0, Trained(error=InputError("no such column"))))
    assert not purpose_of(Workdir(tmp_path / "out")), "nothing is there to resume"
    bad = Trained(error=TrainingError("all members failed\nand more"))
    table = attempt(("a", 1.0, bad), ("b", np.inf, Trained()), ("c", 1.0, Trained()))
    failures = [one.failure for one in table.ended]
    assert failures == ["all members failed", "its score is infinite", ""]


def test_a_cut_trial_is_no_row_and_its_time_counts(attempt):
    table = attempt(("a", 1.0, Trained(1)), ("b", 1.0, Trained(2, Interrupted("cut"))))
    assert [one.name for one in table.ended] == ["a"]
    assert table.spent == 3
    table = attempt(("b", 1.0, Trained(1)))
    assert table.table["b"].seconds == 3


def test_the_first_trial_ends_well_and_is_resumed_with_more_time(attempt):
    table = attempt(("a", 1.0, Trained(3)), ("b", 1.0, Trained()), limit=1)
    assert [*table.table] == ["a"]
    assert table.table["a"].details["is_cut"]
    table = attempt(("a", 0.5, Trained(1)))
    assert table.table["a"].seconds == 4
    assert (table.table["a"].score, table.table["a"].details) == (0.5, {})


def test_other_data_and_another_configuration_are_refused(attempt, tmp_path):
    attempt(("a", 1.0, Trained()))
    with pytest.raises(InputError, match="restore the data"):
        attempt(data="other")
    with pytest.raises(InputError, match="another configuration: seed: 0 -> 1"):
        attempt(config={**CONFIG, "seed": 1})
    with pytest.raises(InputError, match="holds a search"):
        ensemble.compare_methods({"model": "mlp"}, 9, tmp_path / "out", (np.eye(9), np.arange(9)))


@pytest.mark.parametrize("text", ["", "0", "-3", "ten", "5d", "1.2.3m", "nan"])
def test_a_limit_is_a_positive_time(text):
    with pytest.raises(InputError, match="must be a positive time"):
        parse_seconds(text)


def test_limits_are_seconds_minutes_or_hours():
    assert [*map(parse_seconds, (90, "90", "90s", "1.5m", "2h"))] == [90, 90, 90, 90, 7200]


def proposed(number, seed=0, loss=lambda family, num_epochs: family):
    """The first proposals, as numbers of families and epochs, and the families by number."""
    tries = proposals(seed, 200, {})
    families = []
    found = []
    sent = None
    while len(found) < number:
        settings = dict(tries.send(sent))
        num_epochs = settings.pop("num_epochs")
        if settings not in families:
            families.append(settings)
        found.append((families.index(settings), num_epochs))
        sent = loss(*found[-1])
    return found, families


def test_the_default_comes_first_and_then_the_better_half_of_every_rung_trains_for_longer():
    found, _ = proposed(1 + 7 + 14)
    first = [(0, 200), (1, 50), (2, 50), (3, 50), (4, 50), (1, 100), (2, 100), (1, 200)]
    second = (
        [(k, 50) for k in range(5, 13)] + [(k, 100) for k in range(5, 9)] + [(5, 200), (6, 200)]
    )
    assert found == first + second
    falling, _ = proposed(8, loss=lambda family, num_epochs: -family)
    assert [family for family, _ in falling] == [0, 1, 2, 3, 4, 4, 3, 4]


def test_the_seed_alone_says_which_configurations_there_are():
    assert proposed(22) == proposed(22)
    first, other = (proposed(22, seed=seed)[1] for seed in (0, 1))
    assert first[:5] == other[:5]
    assert first[5:] != other[5:]
    assert len(first) == 13
