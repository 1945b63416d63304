"""The form of an entry of each kind: data only, which name code.

An entry names code as `"module:NAME"`, because the configuration and XLA's flags must be settled
before JAX starts, and importing a method may start it. What a program registers may be the code
itself.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

Place = Any
"""The place of code, as `"module:NAME"`; or the code."""


@dataclasses.dataclass(frozen=True)
class MethodEntry:
    """How members move.

    Attributes:
        factory: called as `factory(config, task)`; returns an `ensemble.method.Method`.
        block: its keys of the configuration, an `ensemble.keys.Block`. Those of an installed method
            that no built-in one has begin with its name and a dot.
        tasks: what it can learn; the first is meant where the model does not say another.
        requires_prior: whether it needs a prior to do anything; a task has a default one for it.
        fitted: called with the `ensemble.fitted.OnDisk` of a run; returns the `Fitted` that
            predicts. Empty where nothing does.
        is_exact: whether it keeps to its target, up to the error of finitely many draws.
        xla_flags: that make its programs faster, by name; a user's own come first.
        one_arena: whether all threads of the process take memory from one arena of malloc. Large
            temporaries then take less of it; loops of small operations wait for each other.
    """

    factory: Place
    block: Place
    tasks: tuple[str, ...]
    requires_prior: bool = False
    fitted: Place = ""
    is_exact: bool = True
    xla_flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one_arena: bool = True

    @property
    def predicts(self) -> bool:
        """Whether there is something that predicts, with members and their statuses."""
        return bool(self.fitted)


@dataclasses.dataclass(frozen=True)
class TaskEntry:
    """An entry of a task, which is what is learned.

    Attributes:
        create: called as `create(config, data)`, where `data` is the
            `ensemble.sources.data_forms.Given` of a program, or None where the configuration names
            the data; returns an `ensemble.task.Task`.
        block: its keys of the configuration, an `ensemble.keys.Block`.
        restore: called as `restore(config, description, params)`, with a workdir's configuration,
            what `Task.describe` has said, and its members' parameters [M, ...], which it checks;
            returns an `ensemble.task.PredictingTask`. Empty where nothing predicts.
        models: values of `config.model` that mean this task; what follows a colon stands for what
            the user writes there. An installed task is found by such a value that begins with its
            name, or by a key that does.
        key: of the configuration, that means this task where it is set; empty: none does.
        methods: that learn it, beside those whose entries name it.
        default_prior: of methods that require one, where nobody has set `config.prior`.
        why_not_evaluated: the end of a line that says why there are no evaluations of a workdir;
            empty where there are.
        given: called as `given(data)` with what a program hands over; returns an
            `ensemble.sources.data_forms.Given`. Empty: its forms are those of that module.
    """

    create: Place
    block: Place
    restore: Place = ""
    models: tuple[str, ...] = ()
    key: str = ""
    methods: tuple[str, ...] = ()
    default_prior: str = "normal(1)"
    why_not_evaluated: str = ""
    given: Place = ""


@dataclasses.dataclass(frozen=True)
class SourceEntry:
    """An entry of a source of examples.

    Attributes:
        loader: called as `loader(name, request)`; returns an `ensemble.source.Source`.
        input_shape: of an example, if it is known before the data are loaded.
        finder: called as `finder(name, data_dir)`; returns whether the data are here already. Empty
            for those that always are.
        is_listed: whether it is among the names that a user can give.
        models: the only values of `config.model` that can learn it, if not every network can.
        can_resize: whether it reads pictures one by one, and so can resize them.
        kind_of_target: of tables: called as `kind_of_target(name, column)`; returns `labels` or
            `targets`. Empty for what has no named columns.
        page: of a set that is prepared by TFDS, one file of its download, to find out whether it
            can succeed; empty: the page of the catalogue.
        instead: what needs no download, where that cannot succeed.
        given: called as `given(name, request)`; returns the examples before splits are carved, an
            `ensemble.sources.own_arrays.OwnData`, which can be written as records. Empty for what
            cannot.
    """

    loader: Place
    input_shape: tuple[int, ...] | None = None
    finder: Place = ""
    is_listed: bool = True
    models: tuple[str, ...] = ()
    can_resize: bool = False
    kind_of_target: Place = ""
    page: str = ""
    instead: str = "configs/digits_ensemble.py"
    given: Place = ""


@dataclasses.dataclass(frozen=True)
class NetworkEntry:
    """An entry of a network, which maps inputs to outputs.

    Attributes:
        factory: as `ensemble.networks.register` takes it.
        block: keys of the configuration, an `ensemble.keys.Block`, whose names start with the
            network's and a dot; the factory takes their values as keywords. Empty: none.
    """

    factory: Place
    block: Place = ""


@dataclasses.dataclass(frozen=True)
class LikelihoodEntry:
    """An entry of a likelihood: what outputs of a network say of a target.

    Attributes:
        likelihood: a class, an `ensemble.likelihood.Likelihood`.
        block: keys of the configuration, an `ensemble.keys.Block`, whose names start with the
            likelihood's and a dot; `Likelihood.of_data` takes their values as keywords. Empty:
            none.
    """

    likelihood: Place
    block: Place = ""


@dataclasses.dataclass(frozen=True)
class PriorEntry:
    """A family of `config.prior`.

    Attributes:
        family: a class, an `ensemble.priors.family.PriorFamily`.
    """

    family: Place


@dataclasses.dataclass(frozen=True)
class OptimizerEntry:
    """An entry of an optimizer, which turns gradients into steps.

    Attributes:
        factory: called as `factory(config, learning_rate, weight_decay)` with the run's
            configuration, a schedule by step, and the decay, which may be a traced number; returns
            an `optax.GradientTransformation`.
    """

    factory: Place


@dataclasses.dataclass(frozen=True)
class ScheduleEntry:
    """How the learning rate changes over time.

    Attributes:
        factory: called as `factory(config, num_steps)` with the run's configuration, whose
            `learning_rate` is the peak, and the steps that it takes; returns an `optax.Schedule`.
    """

    factory: Place


@dataclasses.dataclass(frozen=True)
class AugmentationEntry:
    """An entry of an augmentation: what members see in training in place of an example.

    Attributes:
        function: called as `function(rng_key, inputs)` with a key and a batch of one example, the
            raw inputs [1, ...] as the data have them; returns an array of that shape, of their type
            or float32. It is pure, and JAX traces it. Each example of a step has a key of its own,
            so that what is drawn depends on the seed, the step and the member alone.
    """

    function: Place


@dataclasses.dataclass(frozen=True)
class WriterEntry:
    """An entry of a writer, which gets the metrics of a run as they are written.

    Attributes:
        factory: called as `factory(config, workdir, step)` on process 0, with the run's
            configuration, the path of its workdir or None, and the step that the run goes on from,
            0 of one that begins: metrics of later steps will come, some of them again. Returns a
            function of a step and its metrics, floats by name. If that has a method `close`, it is
            called when the run ends, however it does.
    """

    factory: Place


@dataclasses.dataclass(frozen=True)
class ScoreEntry:
    """An entry of a score, which an evaluation computes where it is asked for by name.

    Attributes:
        terms: a function that `ensemble.scoring.score.score` has declared.
    """

    terms: Place
