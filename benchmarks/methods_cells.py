"""Cells of methods.py: several settings or seeds of a family train as members of one program.

A cell is charged with its steps times what a step costs when one network trains alone, on one
thread. So it does not matter how many cells share a program, nor what else the machine does.
"""

import functools
import pathlib
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import methods_others
import methods_prices as prices
import methods_scores
import methods_started
import numpy as np

Settings = dict[str, Any]
NUM_TRIALS = 12
FOLDS = 4
"""Cross-fitted networks of a cell, which share its seconds."""
RATES, DECAYS = (3e-4, 1e-2), (1e-5, 1e-1)


class Family(NamedTuple):
    """A family that trains.

    Attributes:
        method: of the configuration.
        own: keys with which it is tried beside rates and decays, each in as many trials; `*` stands
            for the network's name.
        own_price: whether these change what a step costs.
        around: whether it is made of trained networks of `plain`, without training.
        start: share of the seconds of one of its networks in which plain networks train first.
        starts: how many of these each has.
        apart: whether only networks of one setting share a program.
        tried: whether it has trials; otherwise it takes the best of those of `plain`.
        of_tables: whether Fashion-MNIST lacks it.
        alone: whether its networks have a program each, and one of them has all the seconds up to
            4c; those of `cross_fitted` are ensembles.
    """

    method: str
    own: tuple[Settings, ...] = ({},)
    own_price: bool = False
    around: bool = False
    start: float = 0.0
    starts: int = 1
    apart: bool = False
    tried: bool = True
    alone: bool = False
    of_tables: bool = False


FAMILIES: Mapping[str, Family] = {
    "plain": Family("sgd"),
    "dropout": Family("mc_dropout", tuple({"*.dropout": one} for one in (0.05, 0.1, 0.2, 0.4))),
    "batch_ensemble": Family(
        "batch_ensemble",
        tuple({"batch_ensemble.num_estimators": one} for one in (2, 4, 8)),
        own_price=True,
    ),
    "packed": Family(
        "packed",
        tuple(
            {"packed.num_estimators": number, "packed.alpha": alpha}
            for number, alpha in ((2, 2.0), (4, 2.0), (4, 4.0))
        ),
        own_price=True,
    ),
    "snapshots": Family("snapshots", tuple({"snapshots.num_cycles": one} for one in (3, 5, 8))),
    "swag": Family("swag", tuple({"swag.rate": one} for one in (0.25, 0.5, 1.0))),
    "sghmc": Family(
        "sghmc",
        tuple(
            {"prior": f"*kernel=normal({width}/sqrt(fan_in)), *=normal(1)"} for width in (2, 4, 8)
        ),
        start=0.5,
        apart=True,
    ),
    "distilled": Family(
        "sgd",
        tuple({"num_blends": one} for one in (0, 1, 3)),
        start=0.5,
        starts=methods_started.TEACHERS,
        alone=True,
    ),
    "cross_fitted": Family(
        "cross_fitted",
        tuple({"cross_fitted.patience": one} for one in (10, 40)),
        apart=True,
        alone=True,
        of_tables=True,
    ),
    "varied": Family("sgd", tried=False),
    "laplace": Family("laplace", around=True),
}


class Trial(NamedTuple):
    """A setting of a family.

    Attributes:
        own: number of its keys among `Family.own`.
        rate: peak of the learning rate.
        decay: of weights.
    """

    own: int
    rate: float
    decay: float


class Start(NamedTuple):
    """The plain networks that others start from, or learn from.

    Attributes:
        trial: their setting.
        steps: that each takes.
        seed: of the first.
    """

    trial: Trial
    steps: int
    seed: int


class Price(NamedTuple):
    """The cost of one network that trains alone.

    Attributes:
        step: median CPU seconds of a step.
        predict: CPU seconds of predicting 1,000 rows, after compilation.
        before: CPU seconds that it needs before its first step.
        spent_seconds: that pricing took, compilation included.
        steps_per_epoch: as said.
    """

    step: float
    predict: float
    spent_seconds: float
    steps_per_epoch: int
    before: float = 0.0


class Trained(NamedTuple):
    """The predictions and scores of the members of a program.

    Attributes:
        said: `MemberPredictions` of all members, by split.
        failed: [M] why each has failed, or "".
        variables: [M, ...] of all members; None where they are no single networks.
        seconds: CPU seconds that the program took, compilation included.
        num_bytes: the size of what one of them predicts by, with all of its draws.
    """

    said: Mapping[str, Any]
    failed: list[str]
    variables: Any
    seconds: float
    num_bytes: float


def trials_of(data: str, family: str, config: Mapping[str, Any]) -> list[Trial]:
    """The settings that are tried; the first is the configuration as it is.

    All families of a data set try the same rates and decays.
    """
    rng = np.random.default_rng(zlib.crc32(data.encode()))
    number = len(FAMILIES[family].own)
    rates, decays = (
        np.exp(rng.uniform(np.log(low), np.log(high), NUM_TRIALS)).tolist()
        for low, high in (RATES, DECAYS)
    )
    found = [Trial(k % number, rates[k], decays[k]) for k in range(NUM_TRIALS)]
    found[0] = Trial(0, config["learning_rate"], config["weight_decay"])
    return found


def setting(family: str, trial: Trial, model: str) -> Settings:
    """The keys of a setting; chains have a rate of their own, and a prior instead of a decay."""
    own = own_keys(family, trial.own, model)
    if family == "sghmc":
        return {"learning_rate": methods_started.chain_rate(trial.rate, RATES), **own}
    return {"learning_rate": trial.rate, "weight_decay": trial.decay, **own}


def own_keys(family: str, own: int, model: str) -> Settings:
    """The keys of a family beside rate and decay, for a network."""
    return {key.replace("*", model): value for key, value in FAMILIES[family].own[own].items()}


def num_cycles(most: int, steps: int) -> int:
    """Cycles of snapshots, of 20 steps at least."""
    return min(most, max(2, steps // 20))


class Problem:
    """A data set with the task of its networks.

    Args:
        values: configuration of one network, flat.
        arrays: rows by split, perhaps those of `methods_others` too.
    """

    def __init__(self, values: Mapping[str, Any], arrays: Mapping[str, Any]):
        self.values = dict(values)
        self._arrays, self._where = methods_others.joined(arrays)

    @functools.cached_property
    def task(self) -> Any:
        """The task of networks of the configuration."""
        from ensemble.run.loop import create_task

        return create_task(*self._completed(self.values))

    def targets(self, split: str) -> Any:
        """[N] of a split."""
        return self.task.dataset.targets(split)

    def view(self, said: Any, split: str) -> Any:
        """The predictions of members of a split, to be scored."""
        return said.view(self.task.likelihood, self.targets(split))

    def views(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The predictions of members by split, those of shifted and other rows by themselves."""
        found = {split: self.view(one, split) for split, one in said.items()}
        test = found.get("test")
        if test is not None:
            found |= {name: test.rows(where) for name, where in self._where.items()}
        return found

    def guess(self) -> dict[str, Any]:
        """The predictions, by split, of one who does not look at inputs.

        They are the shares of the training split's classes, or the mean and the deviation of its
        targets.
        """
        from ensemble.likelihoods.class_view import LOG_PROBS
        from ensemble.storage.predictions import MemberPredictions

        said: dict[str, Any]
        learned = np.asarray(self.targets("train"))
        if np.issubdtype(learned.dtype, np.integer):
            said = {LOG_PROBS: np.log(np.bincount(learned) / len(learned))}
        else:
            said = {"loc": learned.mean(), "scale": learned.std()}
        found = {}
        for split in methods_scores.SPLITS:
            rows = (1, len(self.targets(split)))
            arrays = {
                name: np.broadcast_to(one, (*rows, *np.shape(one))) for name, one in said.items()
            }
            found[split] = MemberPredictions(arrays)
        return found

    @functools.cached_property
    def teachers(self) -> methods_started.Teachers:
        """Ensembles that students learn from."""
        return methods_started.Teachers(self.values, self._arrays)

    @property
    def as_it_is(self) -> Trial:
        """The setting of the configuration."""
        return Trial(0, self.values["learning_rate"], self.values["weight_decay"])

    def keys_of(
        self, family: str, trial: Trial, steps: int, start: Start | None = None
    ) -> Settings:
        """The configuration of a family that takes so many steps, flat.

        Args:
            family: as said.
            trial: its setting; rates and decays are members' own, except of chains.
            steps: that it takes, beside those of its start.
            start: what it starts from; None: another one, to be timed.
        """
        keys = own_keys(family, trial.own, self.values["model"])
        keys["method"] = FAMILIES[family].method
        if family == "sghmc":
            rate = methods_started.chain_rate(trial.rate, RATES)
            return keys | methods_started.chain_keys(rate, steps)
        keys |= {"num_steps": steps, "num_epochs": 0}
        if family == "cross_fitted":
            keys |= {"learning_rate": trial.rate, "weight_decay": trial.decay}
            keys |= {"ensemble_size": FOLDS, "cross_fitted.folds": FOLDS}
            keys["num_steps"] = self._steps_after_trials(keys, steps)
        if family == "distilled":
            one = start or Start(self.as_it_is, prices.PILOT, 0)
            keys["teacher"] = self.teachers.of(one.trial.rate, one.trial.decay, one.steps, one.seed)
        if family == "snapshots":
            keys["snapshots.num_cycles"] = num_cycles(keys["snapshots.num_cycles"], steps)
        if family == "swag":
            keys["swag.num_iterates"] = min(20, max(2, steps // 4))
        return keys

    def price(self, family: str, own: int, plain: float | None) -> Price:
        """Measures what a network costs that trains alone.

        A busy machine makes all steps dearer. So those of a plain network are timed in turns, and
        the price is that of a plain step, times the median ratio.

        Args:
            family: of the network.
            own: number of its keys.
            plain: price of a plain step; None where it is to be measured, by the median.
        """
        began = time.monotonic()
        ours = (
            prices.TimedWhole(self, own)
            if family == "cross_fitted"
            else prices.Timed(self, family, own)
        )
        if plain is None:
            step = float(np.median([ours.step_seconds() for _ in range(prices.TURNS)]))
        else:
            beside = prices.Timed(self, "plain", 0)
            ratios = [ours.step_seconds() / beside.step_seconds() for _ in range(prices.TURNS)]
            step = plain * float(np.median(ratios))
        of, times = ("plain", methods_started.MOST_DRAWS) if family == "sghmc" else (family, 1)
        method, state = self.moved(self.keys_of(of, self.as_it_is._replace(own=own), prices.PILOT))
        predict = times * prices.predict_seconds(method, state)
        before = ours.before_seconds() if isinstance(ours, prices.TimedWhole) else 0.0
        seconds = time.monotonic() - began
        return Price(step, predict, seconds, method.steps_per_epoch, before)

    def price_fit(self) -> float:
        """CPU seconds of a SWAG network beside its steps."""
        return prices.fit_seconds(self)

    def price_around(self) -> tuple[float, float]:
        """CPU seconds of a Laplace approximation around a network, and of predicting 1,000 rows.

        These are medians, and not ratios to a plain network that is timed in turns.
        """
        variables = self.train("plain", [self.as_it_is], prices.PILOT, 0, ("validation",)).variables
        method, took = self._around(variables, 1), []
        for _ in range(4):
            cpu = time.process_time()
            state = prices.ended(method, method.init(prices.key_of(0)))
            method.predict_split(state, "validation")
            took.append(time.process_time() - cpu)
        rows = self.task.sizes["validation"] / 1000
        predict = prices.predict_seconds(method, state)
        return max(float(np.median(took[1:])) - predict * rows, 0.0), predict

    def train(
        self,
        family: str,
        trials: Sequence[Trial],
        steps: int,
        seed: int,
        splits: Sequence[str] = methods_scores.SPLITS,
        start: Start | None = None,
    ) -> Trained:
        """Trains a member for each setting, all of the same keys of their own, in one program."""
        began = time.process_time()
        keys = {**self.keys_of(family, trials[0], steps, start), "seed": seed}
        if family == "sghmc":
            return self._chains(keys, len(trials), splits, start or Start(trials[0], steps, seed))
        if family == "cross_fitted":
            return self._crossed(keys, splits)
        keys["ensemble_size"] = len(trials)
        method, state = self.moved(keys, trials)
        said = {split: method.predict_split(state, split) for split in splits}
        variables = None
        if family == "plain":
            engine = method.engine
            variables = engine.programs.placement.gather_members(state.members.chosen_variables)
        failed = _failed(method, state, said)
        size = method.fitted(state, range(len(trials)), None).num_bytes / len(trials)
        return Trained(said, failed, variables, time.process_time() - began, size)

    def _chains(self, keys: Settings, number: int, splits: Sequence[str], start: Start) -> Trained:
        """Moves chains from plain networks, one from each."""
        began = time.process_time()
        first = ("validation",)
        found = self.train("plain", [start.trial] * number, start.steps, start.seed, first)
        method = self._method(self._checked({**keys, "num_chains": number}))
        params = found.variables["params"]
        key = prices.key_of(keys["seed"])
        state, said, size = methods_started.chains(method, key, params, splits)
        failed = _failed(method, state, said)
        return Trained(said, failed, None, time.process_time() - began, size / number)

    def _crossed(self, keys: Settings, splits: Sequence[str]) -> Trained:
        """Trains cross-fitted networks, which predict as one cell."""
        began = time.process_time()
        method, state = self.started(keys)
        while not prices.has_stopped(method, state):
            state, _ = method.advance(state)
        said = {split: method.predict_split(state, split) for split in splits}
        failed = next(filter(None, _failed(method, state, said)), "")
        together = {split: _as_one(self.view(one, split), one) for split, one in said.items()}
        size = method.fitted(state, range(FOLDS), None).num_bytes
        return Trained(together, [failed], None, time.process_time() - began, size)

    def curve(self, steps: int, num_members: int, points: int) -> list[tuple[int, float]]:
        """Validation scores of plain networks on their way: `(step, mean over members)`."""
        trial = self.as_it_is
        keys = {**self.keys_of("plain", trial, steps), "ensemble_size": num_members}
        method, state = self.started(keys, [trial] * num_members)
        found = []
        for end in np.unique(np.linspace(steps / points, steps, points).round().astype(int)):
            while state.step < end:
                state, _ = method.advance(state, int(end) - state.step)
            view = self.view(method.predict_split(state, "validation"), "validation")
            scores = [methods_scores.deciding_value(one) for one in view.each()]
            found.append((int(end), float(np.mean(scores))))
        return found

    def around(self, variables: Any, num_members: int) -> Trained:
        """Laplace approximations around plain networks, each with a prior of its own."""
        began = time.process_time()
        method = self._around(variables, num_members)
        state = prices.ended(method, method.init(prices.key_of(0)))
        said = {split: method.predict_split(state, split) for split in methods_scores.SPLITS}
        failed = _failed(method, state, said)
        size = method.fitted(state, range(num_members), None).num_bytes / num_members
        return Trained(said, failed, None, time.process_time() - began, size)

    def _around(self, variables: Any, num_members: int) -> Any:
        keys = {"method": "laplace", "init_from": "plain", "ensemble_size": num_members}
        method = self._method(self._checked(keys))
        method._trained = lambda: dict(variables)
        return method

    def moved(self, keys: Settings, trials: Sequence[Trial] | None = None) -> tuple[Any, Any]:
        """A method with its last state; arguments as of `started`."""
        method, state = self.started(keys, trials)
        return method, prices.ended(method, state)

    def started(self, keys: Settings, trials: Sequence[Trial] | None = None) -> tuple[Any, Any]:
        """A method with its first state, by a configuration and, maybe, settings of its members."""
        values = self._checked(keys)
        method, key = self._method(values), prices.key_of(values["seed"])
        return method, method.init(key) if trials is None else _own_settings(method, trials, key)

    def _steps_after_trials(self, keys: Mapping[str, Any], steps: int) -> int:
        from ensemble.search.families import steps_after_trials

        method = self._method(self._checked(keys))
        return steps_after_trials(steps, method.steps_per_epoch, method.num_trials)

    def _checked(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        from ensemble.search.cells import checked

        return checked(self.values, keys)

    def _completed(self, values: Mapping[str, Any]) -> tuple[Any, Any]:
        from ensemble.config_rules import check
        from ensemble.sources.catalogue import complete

        given, said = complete(values, self._arrays)
        return check(said, said.keys()).config, given

    def _method(self, values: Mapping[str, Any]) -> Any:
        from ensemble.run.loop import create_method, create_task

        config, given = self._completed(values)
        return create_method(config, create_task(config, given))


def _as_one(view: Any, said: Any) -> Any:
    """The predictions of members as those of one, whose view they have."""
    from ensemble.likelihoods.class_view import LOG_PROBS
    from ensemble.storage.predictions import MemberPredictions

    if LOG_PROBS in said.arrays:
        return MemberPredictions({LOG_PROBS: view.log_probs[None]})
    return MemberPredictions(dict(said.arrays), np.zeros(view.num_members, int))


def _own_settings(method: Any, trials: Sequence[Trial], rng_key: Any) -> Any:
    """The first state of members that descend by a rate and a decay of their own.

    The rates are values in the state of the optimiser, so that others need no other program.
    """
    import jax.numpy as jnp
    import optax

    from ensemble.methods.members.optimizers import Descent, create_optimizer

    config, engine = method.config, method.engine
    schedule = engine.descent.learning_rate

    def optimizer_of(learning_rate: Any, weight_decay: Any) -> Any:
        share = learning_rate / config.learning_rate
        return create_optimizer(config, lambda count: share * schedule(count), weight_decay)

    optimizer = optax.inject_hyperparams(optimizer_of)(
        learning_rate=config.learning_rate, weight_decay=config.weight_decay
    )
    engine.descent = Descent(schedule, optimizer)
    state = method.init(rng_key)
    inner = getattr(state, "members", state)  # Of methods whose state is more than the engine's.
    inner = inner if hasattr(inner, "members") else state
    settings = {
        "learning_rate": jnp.array([one.rate for one in trials], jnp.float32),
        "weight_decay": jnp.array([one.decay for one in trials], jnp.float32),
    }
    place = engine.programs.placement.place_members
    members = inner.members.replace(
        opt_state=inner.members.opt_state._replace(hyperparams=place(settings))
    )
    moved = inner.replace(members=members)
    return moved if inner is state else state._replace(members=moved)


def _failed(method: Any, state: Any, said: Mapping[str, Any]) -> list[str]:
    """Why each member has failed, or ""."""
    from ensemble.method import FAILURES

    status = list(method.status(state).values())
    nan = np.any([one.have_nan() for one in said.values()], axis=0)
    return [
        str(FAILURES[one]) if one in FAILURES else "predicts NaN" * bool(is_nan)
        for one, is_nan in zip(status, nan, strict=True)
    ]


def joined(parts: Sequence[Trained]) -> Trained:
    """Members of several programs, each of which has one, as of one."""
    from ensemble.storage.predictions import MemberPredictions

    said = {}
    for split, first in parts[0].said.items():
        found = [one.said[split] for one in parts]
        arrays = {
            name: np.concatenate([one.arrays[name] for one in found]) for name in first.arrays
        }
        sizes = [len(next(iter(one.arrays.values()))) for one in found]
        are_single = all(one == 1 for one in sizes)
        member_of = None if are_single else np.repeat(np.arange(len(parts)), sizes)
        said[split] = MemberPredictions(arrays, member_of)
    failed = [why for one in parts for why in one.failed]
    size = float(np.mean([one.num_bytes for one in parts]))
    return Trained(said, failed, None, sum(one.seconds for one in parts), size)


# Predictions on disk.


def write(path: pathlib.Path, found: Trained) -> None:
    """Keeps what members say, and which have failed."""
    arrays: dict[str, Any] = {"failed": np.array(found.failed), "num_bytes": found.num_bytes}
    for split, one in found.said.items():
        arrays |= {f"{split}/{name}": array for name, array in one.arrays.items()}
        if one.member_of is not None:
            arrays[f"{split}/member_of"] = one.member_of
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **arrays)
    part.replace(path)


def read(path: pathlib.Path) -> Trained:
    """The inverse of `write`, without variables."""
    from ensemble.storage.predictions import MemberPredictions

    said = {}
    with np.load(path) as file:
        failed, num_bytes = file["failed"].tolist(), float(file["num_bytes"])
        for split in methods_scores.SPLITS:
            arrays = {
                name.partition("/")[2]: file[name] for name in file if name.startswith(f"{split}/")
            }
            member_of = arrays.pop("member_of", None)
            said[split] = MemberPredictions(arrays, member_of)
    return Trained(said, failed, None, 0.0, num_bytes)
