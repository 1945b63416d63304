"""Which methods, tasks, sources and other tenants there are: an entry each, which names code.

Those of the core are listed here, those of applications in their folders
(`ensemble.applications`). Others join by `register`, or by an entry point of a package
(`ensemble.tenants`), which must name a module that holds such entries and imports no JAX.
"""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ensemble.applications import applications
from ensemble.entries import (
    AugmentationEntry,
    LikelihoodEntry,
    MethodEntry,
    NetworkEntry,
    OptimizerEntry,
    Place,
    PriorEntry,
    ScheduleEntry,
    ScoreEntry,
    SourceEntry,
    TaskEntry,
    WriterEntry,
)
from ensemble.errors import Unregistered, UserError, in_own_code
from ensemble.tenants import Entry, Tenants, members_of

_SAMPLING = "ensemble.methods.mcmc.sampling:Sampling"
_CHAINS = "ensemble.methods.mcmc.sampler_keys:BLOCK"
_MINIBATCH = "ensemble.methods.minibatch.minibatch_sampling:MinibatchSampling"
_DRAWS = "ensemble.draws.store:fitted"
# XLA:CPU's newer way to compile fused operations makes slower steps of networks than the one before
# it, and takes longer to make them. Sampling by all the data is faster with it: decision 0005.
# jaxlib 0.11.2 and later have the newer way alone.
_OF_STEPS = {"--xla_cpu_use_fusion_emitters": "false"}
# XLA:CPU compiles a loop whose arrays are this small, bytes, to one function, which does not start
# each operation by itself; its own bound is a kilobyte. Small models gain: docs/speed.md.
_OF_SMALL_LOOPS = {"--xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=1048576"}

_METHODS: Mapping[str, MethodEntry] = {
    "sgd": MethodEntry(
        "ensemble.methods.members.sgd:SGD",
        "ensemble.methods.members.sgd_keys:BLOCK",
        tasks=("supervised", "distillation"),
        fitted="ensemble.methods.members.member:fitted",
        xla_flags=_OF_STEPS,
    ),
    "snapshots": MethodEntry(
        "ensemble.methods.members.snapshots:Snapshots",
        "ensemble.methods.members.snapshot_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.snapshots:fitted",
        xla_flags=_OF_STEPS,
    ),
    "swag": MethodEntry(
        "ensemble.methods.members.swag:SWAG",
        "ensemble.methods.members.swag_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.swag:fitted",
        xla_flags=_OF_STEPS,
    ),
    "mc_dropout": MethodEntry(
        "ensemble.methods.members.mc_dropout:MCDropout",
        "ensemble.methods.members.mc_dropout_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.mc_dropout:fitted",
        xla_flags=_OF_STEPS,
    ),
    "batch_ensemble": MethodEntry(
        "ensemble.methods.members.batch_ensemble:BatchEnsemble",
        "ensemble.methods.members.batch_ensemble_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.batch_ensemble:fitted",
        xla_flags=_OF_STEPS,
    ),
    "packed": MethodEntry(
        "ensemble.methods.members.packed:Packed",
        "ensemble.methods.members.packed_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.packed:fitted",
        xla_flags=_OF_STEPS,
    ),
    "varied": MethodEntry(
        "ensemble.methods.members.varied:Varied",
        "ensemble.methods.members.varied_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.member:fitted",
        xla_flags=_OF_STEPS,
    ),
    "cross_fitted": MethodEntry(
        "ensemble.methods.members.cross_fitted:CrossFitted",
        "ensemble.methods.members.cross_fitted_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.cross_fitted:fitted",
        xla_flags=_OF_STEPS,
    ),
    "laplace": MethodEntry(
        "ensemble.methods.members.laplace:Laplace",
        "ensemble.methods.members.laplace_keys:BLOCK",
        tasks=("supervised",),
        fitted="ensemble.methods.members.laplace:fitted",
    ),
    "hmc": MethodEntry(
        _SAMPLING,
        _CHAINS,
        ("supervised",),
        True,
        _DRAWS,
        one_arena=False,
    ),
    "nuts": MethodEntry(
        _SAMPLING,
        _CHAINS,
        ("supervised",),
        True,
        _DRAWS,
        xla_flags=_OF_SMALL_LOOPS,
        one_arena=False,
    ),
    "mclmc": MethodEntry(
        _SAMPLING,
        _CHAINS,
        ("supervised",),
        True,
        _DRAWS,
        is_exact=False,
        one_arena=False,
    ),
    "adjusted_mclmc": MethodEntry(
        _SAMPLING, _CHAINS, ("supervised",), True, _DRAWS, one_arena=False
    ),
    "sgld": MethodEntry(
        _MINIBATCH,
        "ensemble.methods.minibatch.minibatch_keys:SGLD",
        ("supervised",),
        True,
        _DRAWS,
        is_exact=False,
        xla_flags=_OF_STEPS,
    ),
    "sghmc": MethodEntry(
        _MINIBATCH,
        "ensemble.methods.minibatch.minibatch_keys:SGHMC",
        ("supervised",),
        True,
        _DRAWS,
        is_exact=False,
        xla_flags=_OF_STEPS,
    ),
    "tempering": MethodEntry(
        _SAMPLING,
        "ensemble.methods.mcmc.sampler_keys:TEMPERING_BLOCK",
        ("supervised",),
        True,
        _DRAWS,
        one_arena=False,
    ),
}

_TASKS: Mapping[str, TaskEntry] = {
    "supervised": TaskEntry(
        "ensemble.tasks.supervised:create",
        "ensemble.tasks.supervised_keys:BLOCK",
        "ensemble.tasks.supervised:restore",
        # He's scale for kernels: the outputs of wide networks then stay within reason.
        default_prior="*kernel=normal(1.4142/sqrt(fan_in)), *=normal(1)",
    ),
    "distillation": TaskEntry(
        "ensemble.tasks.distillation.distilled:create",
        "ensemble.tasks.distillation.distillation_keys:BLOCK",
        "ensemble.tasks.supervised:restore",  # What has been learned predicts as any network.
        key="teacher",
    ),
}

_TABLE = SourceEntry(
    "ensemble.sources.tables.table_source:load_table",
    kind_of_target="ensemble.sources.tables.table_source:target_of_files",
)

_TFDS = "ensemble.sources.image_sets:load_images"
_IS_PREPARED = "ensemble.sources.image_sets:is_prepared"
_SOURCES: Mapping[str, SourceEntry] = {
    "digits": SourceEntry("ensemble.sources.digits:load_digits", (8, 8, 1)),
    # Without their shape: neither is a set unlike the other, to tell it from.
    "clutter": SourceEntry("ensemble.sources.clutter:load_clutter"),
    "grouped_clutter": SourceEntry("ensemble.sources.clutter:load_grouped_clutter"),
    "mnist": SourceEntry(
        _TFDS,
        (28, 28, 1),
        _IS_PREPARED,
        page="https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz",
    ),
    "fashion_mnist": SourceEntry(
        _TFDS,
        (28, 28, 1),
        _IS_PREPARED,
        page="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
        "train-labels-idx1-ubyte.gz",
    ),
    "kmnist": SourceEntry(
        _TFDS,
        (28, 28, 1),
        _IS_PREPARED,
        page="http://codh.rois.ac.jp/kmnist/dataset/kmnist/train-labels-idx1-ubyte.gz",
    ),
    "cifar10": SourceEntry(
        _TFDS,
        (32, 32, 3),
        _IS_PREPARED,
        page="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    "diabetes": SourceEntry("ensemble.sources.diabetes:load_diabetes"),
    "arrays": SourceEntry("ensemble.sources.dataset:refuse_arrays", is_listed=False),
    "npz:PATH": SourceEntry(
        "ensemble.sources.dataset:load_npz", given="ensemble.sources.dataset:given_npz"
    ),
    "folder:PATH": SourceEntry(
        "ensemble.sources.folders:load_folder",
        can_resize=True,
        given="ensemble.sources.folders:given_folder",
    ),
    "csv:PATH": _TABLE,
    "parquet:PATH": dataclasses.replace(
        _TABLE, given="ensemble.sources.tables.parquet_rows:given_parquet"
    ),
    "npy:FOLDER": SourceEntry(
        "ensemble.sources.memory_map:load_npy", given="ensemble.sources.memory_map:given_npy"
    ),
    "records:FOLDER": SourceEntry(
        "ensemble.sources.records.record_source:load_records",
        finder="ensemble.sources.records.bucket:is_copied",
        given="ensemble.sources.records.record_source:given_records",
    ),
    "tfds:NAME": SourceEntry(
        "ensemble.sources.image_sets:load_tfds",
        finder=_IS_PREPARED,
        can_resize=True,
        given="ensemble.sources.image_sets:given_tfds",
    ),
}
"""By name, or by a prefix: what follows a colon stands for what the user writes there."""

_NETWORKS: Mapping[str, NetworkEntry] = {
    "cnn": NetworkEntry("ensemble.networks.cnn:CNN", "ensemble.network_keys:CNN"),
    "embedded_mlp": NetworkEntry(
        "ensemble.networks.embedded_mlp:embedded_mlp", "ensemble.network_keys:EMBEDDED_MLP"
    ),
    "lenet5": NetworkEntry("ensemble.networks.lenet5:LeNet5", "ensemble.network_keys:LENET5"),
    "logistic_regression": NetworkEntry("ensemble.networks.logistic_regression:LogisticRegression"),
    "mlp": NetworkEntry("ensemble.networks.mlp:mlp", "ensemble.network_keys:MLP"),
    "resnet20": NetworkEntry("ensemble.networks.resnet:ResNet20", "ensemble.network_keys:RESNET20"),
    "resnet50": NetworkEntry("ensemble.networks.resnet50:ResNet50"),
    "vit": NetworkEntry("ensemble.networks.vit:vit", "ensemble.network_keys:VIT"),
}

_LIKELIHOODS: Mapping[str, LikelihoodEntry] = {
    "categorical": LikelihoodEntry("ensemble.likelihoods.categorical:Categorical"),
    "bernoulli": LikelihoodEntry("ensemble.likelihoods.bernoulli:Bernoulli"),
    "dirichlet": LikelihoodEntry("ensemble.likelihoods.dirichlet:Dirichlet"),
    "gaussian": LikelihoodEntry("ensemble.likelihoods.gaussian:Gaussian"),
    "gaussian_shared": LikelihoodEntry("ensemble.likelihoods.gaussian:SharedGaussian"),
    "gaussian_split": LikelihoodEntry("ensemble.likelihoods.gaussian_split:GaussianSplit"),
    "student_t": LikelihoodEntry("ensemble.likelihoods.student_t:StudentT"),
    "laplace": LikelihoodEntry("ensemble.likelihoods.laplace:Laplace"),
    "log_normal": LikelihoodEntry("ensemble.likelihoods.log_normal:LogNormal"),
    "mixture_of_gaussians": LikelihoodEntry(
        "ensemble.likelihoods.mixture_of_gaussians:MixtureOfGaussians",
        "ensemble.likelihood_keys:MIXTURE",
    ),
    "poisson": LikelihoodEntry("ensemble.likelihoods.poisson:Poisson"),
    "negative_binomial": LikelihoodEntry("ensemble.likelihoods.negative_binomial:NegativeBinomial"),
    "quantiles": LikelihoodEntry(
        "ensemble.likelihoods.quantiles:Quantiles", "ensemble.likelihood_keys:QUANTILES"
    ),
}

_PRIORS: Mapping[str, PriorEntry] = {
    "normal": PriorEntry("ensemble.priors.normal_prior:Normal"),
    "laplace": PriorEntry("ensemble.priors.laplace_prior:Laplace"),
    "student_t": PriorEntry("ensemble.priors.student_t_prior:StudentT"),
    "correlated_normal": PriorEntry("ensemble.priors.correlated_normal:CorrelatedNormal"),
}

_OPTIMIZERS: Mapping[str, OptimizerEntry] = {
    "sgd": OptimizerEntry("ensemble.methods.members.optimizers:sgd"),
    "adam": OptimizerEntry("ensemble.methods.members.optimizers:adam"),
    "adamw": OptimizerEntry("ensemble.methods.members.optimizers:adamw"),
}

_SCHEDULES: Mapping[str, ScheduleEntry] = {
    "constant": ScheduleEntry("ensemble.methods.members.optimizers:constant"),
    "cosine": ScheduleEntry("ensemble.methods.members.optimizers:cosine"),
    "warmup_cosine": ScheduleEntry("ensemble.methods.members.optimizers:warmup_cosine"),
}


def _tenants(kind: str, form: type[Entry], core: Mapping[str, Entry]) -> Tenants[Entry]:
    """The built-in tenants of a kind: those of the core, and those of applications."""
    built_in = dict(core)
    for one in applications():
        built_in |= one.tenants.get(kind, {})
    return Tenants(kind, form, built_in)


METHODS = _tenants("method", MethodEntry, _METHODS)
TASKS = _tenants("task", TaskEntry, _TASKS)
SOURCES = _tenants("source", SourceEntry, _SOURCES)
NETWORKS = _tenants("network", NetworkEntry, _NETWORKS)
LIKELIHOODS = _tenants("likelihood", LikelihoodEntry, _LIKELIHOODS)
PRIORS = _tenants("prior", PriorEntry, _PRIORS)
OPTIMIZERS = _tenants("optimizer", OptimizerEntry, _OPTIMIZERS)
SCHEDULES = _tenants("schedule", ScheduleEntry, _SCHEDULES)
AUGMENTATIONS = _tenants("augmentation", AugmentationEntry, {})
"""Augmentations beside those that `config.augment.shift` and `config.augment.flip` set."""
WRITERS = _tenants("writer", WriterEntry, {})
"""Writers beside `metrics.jsonl` and the events of TensorBoard, which every run has."""
SCORES = _tenants("score", ScoreEntry, {})
"""Scores that count where they are asked for; those of `ensemble.scoring.scores` always do."""

KINDS: Mapping[str, Tenants[Any]] = {
    one.kind: one
    for one in (
        *(NETWORKS, LIKELIHOODS, PRIORS, SOURCES, METHODS, TASKS, OPTIMIZERS, SCHEDULES),
        *(AUGMENTATIONS, WRITERS, SCORES),
    )
}
"""All tenants, by their kind."""

SECTIONS = (
    "ensemble.report.distillation:SECTION",
    *(one.section for one in applications() if one.section),
)
"""What only some reports have: an `ensemble.applications.ReportSection` each."""

RESTORE = "ensemble.predictor:restore"
"""What reads the ensemble of a workdir, for tasks that learn from one."""
RESTORE_SELECTION = "ensemble.selected:restore_selection"
"""What reads that of a workdir which refers to members of other runs."""


def register(kind: str, name: str, entry: Any) -> None:
    """Registers a tenant, in this process.

    Args:
        kind: one of network, likelihood, prior, source, method, task, optimizer, schedule,
            augmentation, writer and score.
        name: that a configuration says. A built-in one cannot be taken; one that was registered
            before is taken over, and one of an installed package is hidden.
        entry: of the kind's form, such as `ensemble.entries.MethodEntry`.

    Raises:
        UserError: there is no such kind, or the name or the entry cannot be used.
    """
    tenants_of(kind).register(name, entry)


def find(kind: str, name: str) -> Any:
    """The entry of a tenant: built in, registered, or of the one installed package that has it.

    Raises:
        UserError: there is none, or it cannot be loaded, or several packages have it.
    """
    tenants = tenants_of(kind)
    if name not in tenants:
        raise UserError(f"there is no {kind} {name!r}; there are {tenants.listing() or 'none'}")
    return tenants[name]


def names(kind: str, *, installed: bool = False) -> list[str]:
    """The names of tenants: built in, and registered or asked for in this process.

    Args:
        kind: as of `register`.
        installed: whether those that installed packages name are listed too; none is imported.

    Raises:
        UserError: there is no such kind.
    """
    return tenants_of(kind).names(installed)


def tenants_of(kind: str) -> Tenants[Any]:
    """The tenants of a kind.

    Raises:
        UserError: there is no such kind.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of tenant; use one of {', '.join(KINDS)}")
    return KINDS[kind]


def load(place: Place) -> Any:
    """Imports what an entry names as `"module:NAME"`; other code than a text is there already."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def load_code(tenants: Tenants[Entry], name: str, place: Place) -> Any:
    """Does what `load` does, for a tenant whose code may be anybody's.

    Raises:
        UserError: the tenant is not built in, and its code cannot be imported.
    """
    if name in tenants.built_in:
        return load(place)
    try:
        return load(place)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # It is a program, and may raise anything.
        raise Unregistered(
            f"{described(tenants, name)} cannot be loaded: importing {place} failed "
            f"{in_own_code(error)}; repair it, or choose another {tenants.kind}"
        ) from error


def called(tenants: Tenants[Entry], name: str, place: Place, *arguments: Any) -> Any:
    """What the code of a tenant makes of its arguments.

    Raises:
        UserError: it is somebody's, and cannot be loaded, or fails.
    """
    code = load_code(tenants, name, place)
    try:
        return code(*arguments)
    except UserError:
        raise
    except Exception as error:  # It is a program, and may raise anything.
        if name in tenants.built_in:
            raise
        raise UserError(
            f"{described(tenants, name)} failed {in_own_code(error)}; it is called as "
            f"{tenants.form.__module__}.{tenants.form.__name__} says"
        ) from error


def made_none(tenants: Tenants[Entry], name: str, wanted: str) -> UserError:
    """The error of a tenant whose factory has returned something else than what is wanted."""
    return UserError(
        f"{described(tenants, name)} made no {tenants.kind}: its factory must return {wanted}"
    )


def check_members(
    tenants: Tenants[Entry], name: str, made: Any, contract: type, without: Sequence[str] = ()
) -> None:
    """Refuses a tenant that lacks what its contract asks for.

    Args:
        tenants: of its kind.
        name: of the tenant.
        made: by its code.
        contract: a protocol.
        without: members of it that this tenant need not have.

    Raises:
        UserError: it is not built in, and lacks a member.
    """
    if name in tenants.built_in:
        return
    wanted = [one for one in members_of(contract) if one not in without]
    missing = [one for one in wanted if not hasattr(made, one)]
    if missing:
        raise Unregistered(
            f"{described(tenants, name)} lacks {', '.join(missing)}, which every {tenants.kind} "
            f"has: see {contract.__module__}.{contract.__name__}"
        )


def described(tenants: Tenants[Entry], name: str) -> str:
    """A tenant, with the package that it comes from, for messages."""
    package = tenants.package(name)
    return f"the {tenants.kind} {name!r}" + (f" of the package {package}" if package else "")


def ask_for_task(name: Any) -> None:
    """Lets an installed task join, whose name a value or a key of the configuration begins with."""
    if isinstance(name, str) and name not in NETWORKS.built_in:
        TASKS.get(name.partition(":")[0])


def tasks_of(method: str) -> tuple[str, ...]:
    """What a method learns; the first is meant where the model does not say another."""
    own = METHODS[method].tasks
    return *own, *(name for name, one in TASKS.items() if method in one.methods and name not in own)


def key_of_source(name: str) -> str | None:
    """By what a data set is known here, such as `csv:PATH`; None if it is not."""
    prefix, colon, path = name.partition(":")
    if not colon:
        return name if name in SOURCES else None
    for keys in (SOURCES.names(), SOURCES.installed()) if path else ():
        for key in keys:
            if key.startswith(f"{prefix}:"):
                return key
    return None


def task_of_model(model: Any) -> str | None:
    """The task that a value of `config.model` means; None for a network."""
    ask_for_task(model)
    for task, entry in TASKS.items():
        for known in entry.models:
            prefix, colon, _ = known.partition(":")
            if model == known or (colon and str(model).startswith(prefix + colon)):
                return task
    return None


def is_meant(task: str, config: Mapping[str, Any]) -> bool:
    """Whether a configuration says by its model, or by a key of the task, that it is this one."""
    key = TASKS[task].key
    return task_of_model(config.get("model")) == task or bool(key and _value(config, key))


def _value(config: Any, key: str) -> Any:
    """The value of a key in a configuration, flat or nested; None where it is not there."""
    if key in config:
        return config[key]
    first, dot, rest = key.partition(".")
    inner = config.get(first) if dot else None
    return _value(inner, rest) if hasattr(inner, "get") else None


def task_of(config: Mapping[str, Any]) -> str:
    """The name of the task that a run has.

    Args:
        config: of the run, with its method.
    """
    ask_for_task(config.get("model"))
    own = tasks_of(config["method"])
    return next((task for task in own if is_meant(task, config)), own[0])


def predicts(config: Mapping[str, Any]) -> bool:
    """Whether a run leaves something that predicts examples, by its method and its task."""
    return METHODS[config["method"]].predicts and bool(TASKS[task_of(config)].restore)
