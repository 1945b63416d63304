"""What a search tries, and in which order."""

from ensemble.tuning.search import _fixed
from ensemble.tuning.trials import trials


def tried(number, seed=0, fixed=None, loss=lambda trial: trial.family):
    """The first trials, each of which has the loss that `loss` says."""
    tries = trials(seed, 200, _fixed(fixed or {}))
    found = [next(tries)]
    while len(found) < number:
        found.append(tries.send(loss(found[-1])))
    return found


def test_the_default_comes_first_and_then_the_better_half_of_every_rung_trains_for_longer():
    found = [(trial.family, trial.num_epochs) for trial in tried(1 + 7 + 14)]
    first = [(0, 200), (1, 50), (2, 50), (3, 50), (4, 50), (1, 100), (2, 100), (1, 200)]
    second = (
        [(k, 50) for k in range(5, 13)] + [(k, 100) for k in range(5, 9)] + [(5, 200), (6, 200)]
    )
    assert found == first + second
    falling = [trial.family for trial in tried(8, loss=lambda trial: -trial.family)]
    assert falling == [0, 1, 2, 3, 4, 4, 3, 4]


def test_the_seed_alone_says_which_families_there_are():
    assert tried(22) == tried(22)
    first, other = (tried(22, seed=seed)[8:] for seed in (0, 1))
    assert [one.settings for one in first] != [one.settings for one in other]
    settings = [tuple(sorted(one.settings.items())) for one in tried(22) if one.num_epochs < 100]
    assert len({*settings}) == len(settings) == 12
