"""The built-in pieces of a run: the place of their code, and their keys.

Keys are not beside the code, because that imports JAX: a mistake in a configuration is reported
before. A key that several pieces share is declared once, in a class that theirs inherit.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from ensemble.config.keys import MAX_MEMBERS, key
from ensemble.config.pieces import Kind
from ensemble.config.prior_text import NONE, read_prior

declared = dataclass(frozen=True)
"""Decorator of classes of keys."""

# Every run.


@declared
class EveryRun:
    """Keys of every run."""

    method: str = key("deep_ensemble", "how members are trained or sampled")
    task: str | None = key(None, "what is learned; None: the model or data specify it")
    seed: int = key(0, "random seed; equal seeds give equal results", ge=0, le=2**32 - 1)
    num_devices: int | None = key(
        None, "devices to use; None: every core, or every accelerator", gt=0, may_change=True
    )
    log_every_steps: int = key(
        50, "steps between two lines of metrics; of chains, an epoch", gt=0, may_change=True
    )
    eval_every_epochs: int = key(1, "epochs between two evaluations", gt=0, may_change=True)
    checkpoint_every_epochs: int = key(
        1,
        "epochs between two checkpoints, or so many that they take a tenth of the time",
        gt=0,
        may_change=True,
    )
    on_metrics: str | None = key(
        None,
        "function of a step and its metrics that is called as they are logged",
        may_change=True,
    )


# Methods whose members are trained by gradient descent.

STARTS = PRIOR, MAP, UNIFORM = ("prior", "map", "uniform")
"""Values of `init_from` that are no path."""
WEIGHTS_IN_FILES = (".npz", ".safetensors")
"""Suffixes of files of weights."""


def is_file(start: str) -> bool:
    """Whether a value of `init_from` is a file of weights."""
    return start.endswith(WEIGHTS_IN_FILES)


Rule = tuple[Callable[[Any], Any], str]
"""Whether the values of a configuration cannot be used together; and the line, a template of
`str.format` whose only argument is the configuration."""


class Method:
    """Properties of a method besides its keys, with the defaults of a user's own.

    Attributes:
        tasks: Names of the tasks that it can learn; the first is the default.
        requires_prior: Whether it samples a posterior.
        code: Function that makes the method, `module:NAME`; empty: `create` of the module with its
            name in `ensemble.methods`.
        result: Function that reads its ensemble from a workdir, `module:NAME`, called with the
            `ensemble.runtime.loading.Saved` of a run; empty if nothing predicts.
        is_exact: Whether its draws converge to the posterior.
        xla_flags: XLA flags by name that make its programs faster; a user's own have precedence.
        one_arena: Whether all threads share one arena of malloc, so that large temporaries take
            less memory; loops of small operations wait for each other.
        instead: Inherited keys that the method does not have, each with the reason or a remedy.
        config_rules: Its own `Rule`s; those of the classes that it inherits hold, too.
    """

    tasks: ClassVar[tuple[str, ...]] = ("supervised",)
    requires_prior = False
    code = ""
    result = "ensemble.runtime.loading:fitted"
    is_exact = True
    xla_flags: ClassVar[Mapping[str, str]] = {}
    one_arena = True
    instead: ClassVar[Mapping[str, str]] = {}
    config_rules: ClassVar[Sequence[Rule]] = ()


# XLA:CPU's newer way to compile fused operations makes slower steps of networks than the one before
# it, and takes longer to make them. Sampling by all the data is faster with it: decision 0005.
# jaxlib 0.11.2 and later have the newer way alone.
_OF_STEPS = {"--xla_cpu_use_fusion_emitters": "false"}
# XLA:CPU compiles a loop whose arrays are this small, bytes, to one function, which does not start
# each operation by itself; its own bound is a kilobyte. Small models gain: docs/speed.md.
_OF_SMALL_LOOPS = {"--xla_backend_extra_options": "xla_cpu_small_while_loop_byte_threshold=1048576"}


@declared
class Batches:
    """Keys of methods that learn from batches."""

    batch_size: int = key(128, "examples of a member in a step", gt=0)
    shuffle: Literal["shared", "independent"] = key(
        "shared", "whether all members see the examples in one order, or each in its own"
    )
    shift: int = key(0, "pixels by which images are shifted at most", ge=0, block="augment")
    horizontal_flip: bool = key(False, "whether images are mirrored at random", block="augment")
    function: str | None = key(
        None,
        "your own augmentation, applied after shift and flip",
        block="augment",
    )


def _words_or_numbers(*words: str) -> Callable[[Any], str]:
    """Reads some words, or positive numbers separated by commas, as a text."""

    def read(value) -> str:
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        if text not in words and not all(0 < float(one) < 1e12 for one in text.split(",")):
            raise ValueError
        return text

    return read


@declared
class Members(Method):
    """Keys of all ensembles of trained members."""

    ensemble_size: int = key(8, "number of members", gt=0, le=MAX_MEMBERS, may_change=True)
    class_weights: str = key(
        NONE,
        "weight of each class in the loss; probabilities are corrected for it",
        read=_words_or_numbers(NONE, "balanced"),
        rule="must be none, balanced, or one positive weight per class: 1,2,0.5",
    )
    dtype: Literal["float32", "bfloat16"] = key(
        "float32",
        "type of the networks' computations; parameters, losses, scores and checkpoints are "
        "float32",
    )


@declared
class DeepEnsemble(Members, Batches):
    """Keys of deep ensembles; other members that learn by gradient descent have most of them."""

    tasks: ClassVar[tuple[str, ...]] = ("supervised", "distillation")
    xla_flags = _OF_STEPS

    num_epochs: int | None = key(
        None, "passes over the data; None: num_steps sets the duration", ge=0, may_change=True
    )
    num_steps: int | None = key(
        None, "batches to learn; None: num_epochs sets the duration", ge=0, may_change=True
    )
    optimizer: str = key("sgd", "optimizer")
    learning_rate: float = key(0.1, "peak of the learning rate", gt=0)
    momentum: float = key(0.9, "momentum of sgd; adam and adamw keep optax's b1 and b2", ge=0, lt=1)
    weight_decay: float = key(0.0, "decay of parameters: L2 for sgd and adam, else decoupled", ge=0)
    lr_schedule: str = key("constant", "schedule of the learning rate")
    lr_warmup_fraction: float = key(
        0.05, "share of the steps in which warmup_cosine rises to the peak", ge=0, lt=1
    )
    early_stopping_epochs: int = key(
        0, "epochs without a better validation NLL after which a member ends; 0: never", ge=0
    )
    clip_norm: float = key(0.0, "norm to which gradients are clipped; 0: no clipping", ge=0)
    label_smoothing: float = key(
        0.0, "share of each target that is spread over all classes", ge=0, lt=1
    )
    init_from: str = key(
        "",
        "workdir, or file of weights, that members start from; empty: random weights",
        inherits=False,
    )
    # Members leave out the head, which is new for each; member k starts as number k modulo those
    # that there are.
    split_members: bool = key(
        False,
        "whether each member is split over several devices; a member of more than half of a "
        "device's memory always is",
        may_change=True,
    )

    config_rules = (
        (
            lambda config: bool(config.num_epochs) == bool(config.num_steps),
            "config.num_epochs={0.num_epochs} and config.num_steps={0.num_steps}: set exactly one "
            "of the two",
        ),
    )


@declared
class Descent(DeepEnsemble):
    """Keys of other members that learn by gradient descent."""

    tasks = ("supervised",)


@declared
class MCDropout(Descent):
    """Keys of MC dropout."""

    result = "ensemble.methods.mc_dropout:fitted"
    num_draws: int = key(
        20, "passes with dropout by which a member predicts", ge=2, le=10_000, may_change=True
    )


_factor = partial(
    key,
    block="hyper_ensemble",
    is_valid=lambda ends: len(ends) == 2 and 1e-6 <= ends[0] <= ends[1],
    rule="must be two positive numbers, the lower one first: 0.3,3",
)


@declared
class HyperEnsemble(Descent):
    """Keys of hyper-deep ensembles."""

    learning_rate_factor: tuple[float, ...] = _factor(
        (0.3, 3.0), "range of the members' factors of learning_rate, log-uniform"
    )
    weight_decay_factor: tuple[float, ...] = _factor(
        (0.1, 10.0), "range of the members' factors of weight_decay, log-uniform"
    )


def _without(**reasons: str) -> Mapping[str, str]:
    """The value of `Method.instead`."""
    return reasons


_OWN_SCHEDULE = _without(
    lr_schedule="the method has its own schedule",
    lr_warmup_fraction="the method has its own schedule",
    early_stopping_epochs="members learn to the end of the schedule",
    split_members="a member is on one device",
)


@declared
class SnapshotEnsemble(Descent):
    """Keys of snapshot ensembles."""

    instead = _OWN_SCHEDULE
    num_cycles: int = key(
        5,
        "cycles in which the learning rate falls to 0, each with a snapshot",
        ge=2,
        le=100,
        block="snapshot_ensemble",
    )


@declared
class SWAG(Descent):
    """Keys of SWAG."""

    instead = _OWN_SCHEDULE
    num_draws: int = key(20, "parameter samples that are drawn", ge=2, le=1000)
    num_iterates: int = key(
        20,
        "iterates of the last quarter whose mean and covariance make the draws",
        ge=2,
        le=1000,
        block="swag",
    )
    lr_factor: float = key(
        0.5,
        "share of learning_rate that is kept while iterates are collected",
        gt=0,
        le=1,
        block="swag",
    )


ADAPTERS = Literal["rank_one", "tabm", "tabm_mini"]
_OF_ADAPTERS = (
    "what an estimator has of its own: factors of all kernels, and all biases (rank_one); these "
    "and the last layer (tabm); factors of the first layer's inputs, and the last layer (tabm_mini)"
)


@declared
class _Estimators(Descent):
    """Keys of members of several estimators."""

    instead = _without(
        split_members="the estimators of a member are on one device",
        label_smoothing="estimators learn the labels as they are",
        init_from="estimators start from random weights",
    )
    num_estimators: int = key(4, "estimators of a member", ge=2, le=1024)


@declared
class BatchEnsemble(_Estimators):
    """Keys of batch ensembles, whose estimators share kernels."""

    result = "ensemble.methods.batch_ensemble:fitted"
    adapters: ADAPTERS = key("rank_one", _OF_ADAPTERS)


@declared
class PackedEnsemble(_Estimators):
    """Keys of packed ensembles, whose estimators divide the units."""

    code = "ensemble.methods.batch_ensemble:create"
    result = "ensemble.methods.batch_ensemble:fitted"
    alpha: float = key(
        2.0,
        "width of all estimators together, relative to the network's",
        gt=0,
        le=1024,
        block="packed_ensemble",
    )
    gamma: int = key(
        1,
        "groups of an estimator's hidden layers after the first, which do not mix",
        gt=0,
        le=1024,
        block="packed_ensemble",
    )


@declared
class KFoldBagging(Descent):
    """Keys of k-fold bagging."""

    result = "ensemble.methods.batch_ensemble:fitted"
    instead = _without(
        clip_norm="gradients are always clipped to a norm of 1",
        init_from="given weights may have learned what members hold out",
        split_members="a member is on one device",
    )
    early_stopping_epochs: int = key(
        40, "epochs without a better loss on the rows held out after which a member ends", gt=0
    )
    num_estimators: int = key(1, "estimators of a member, which share its kernels", ge=1, le=1024)
    adapters: ADAPTERS = key("tabm_mini", _OF_ADAPTERS)
    folds: int = key(
        0,
        "folds of the training rows, of which a member holds one out; 1: all the same tenth; 0: "
        "eight, or with 50,000 rows or more one",
        ge=0,
        le=100,
        block="kfold_bagging",
    )

    config_rules = (
        (
            lambda config: config.num_estimators > 1 and config.label_smoothing,
            "config.label_smoothing={0.label_smoothing} is for single networks; set "
            "config.num_estimators={0.num_estimators} to 1, or remove it",
        ),
    )


LAST_LAYER = ("last_layer", "last_layer_kronecker")
MARGINAL = "marginal_likelihood"
VALIDATION = "validation"


@declared
class Laplace(Members):
    """Keys of Laplace approximations."""

    result = "ensemble.methods.laplace:fitted"
    init_from: str = key("", "workdir of the trained members", inherits=False)
    batch_size: int = key(128, "examples of a member in a step", gt=0)
    num_draws: int = key(
        0,
        "draws of the outputs that predict; 0: closed form, by their variances",
        is_valid=lambda number: number != 1,
        rule="must be 0 for the closed form, or from 2 to 10000",
        ge=0,
        le=10_000,
    )
    structure: Literal[
        "last_layer", "last_layer_kronecker", "diagonal", "kronecker", "low_rank"
    ] = key(
        "last_layer_kronecker",
        "covariance: of the last layer, in full or as a Kronecker product; of all layers as a "
        "diagonal, as Kronecker products, or of rank 20",
        block="laplace",
    )
    prior_precision: str = key(
        VALIDATION,
        "inverse variance of the prior, of each member",
        read=_words_or_numbers(MARGINAL, VALIDATION),
        is_valid=lambda text: "," not in text,
        rule=f"must be {MARGINAL}, {VALIDATION}, or a positive number",
        block="laplace",
    )


# Methods that sample.


_stop_when = partial(key, may_change=True, block="stop_when")


@declared
class StopWhen(Method):
    """Keys of runs that end early. Both bounds must hold; samplers of networks need ESS 100."""

    r_hat: float = _stop_when(
        0.0,
        "the run ends if R-hat is below this and the ESS suffices; 0: never",
        is_valid=lambda value: value == 0 or value > 1,
        rule="must be above 1, or 0 for never",
    )
    ess: float = _stop_when(
        0.0, "the run ends if the bulk ESS is above this and R-hat suffices; 0: never", ge=0
    )


@declared
class Chains(Method):
    """Keys of everything that samples the posterior of a network."""

    requires_prior = True
    code = "ensemble.methods.chains:create"

    num_chains: int = key(4, "number of chains", gt=0, le=MAX_MEMBERS)
    max_draws_per_chain: int = key(
        100, "kept draws of each chain that predict, at most, evenly spaced", gt=0, may_change=True
    )
    init_from: str = key(
        PRIOR,
        "start of the chains: prior; map, with the kronecker mass; uniform, of log densities; or a "
        "workdir or a file of weights",
        read=lambda value: str(value) or PRIOR,
        inherits=False,
    )
    # Chain k starts at member k of a workdir, or at the last draw of its chain k.
    posterior_temperature: float = key(
        1.0, "divisor of the log likelihood; 1 is the Bayes posterior", gt=0
    )

    config_rules: ClassVar[Sequence[Rule]] = (
        (
            lambda config: config.get("prior") == NONE,
            "config.method={0.method!r} samples a posterior, which config.prior='none' does not "
            "have; set it to such as 'normal(1)', or omit it for the default",
        ),
        (
            lambda config: config.get("likelihood") == "quantiles",
            "config.likelihood='quantiles' has no density, which config.method={0.method!r} "
            "samples; use config.method='deep_ensemble', or a likelihood such as 'gaussian'",
        ),
    )


_sampler = partial(key, block="sampler")


@declared
class HMC(Chains, StopWhen):
    """Keys of the samplers whose steps see all the data."""

    one_arena = False
    tasks: ClassVar[tuple[str, ...]] = ("supervised", "factorisation", "numpyro")
    may_split = True
    """Whether parameters may stay on their shards, and are not joined to one vector."""
    tunes_at_once = False
    """Whether the warm-up is one piece that yields no draws."""
    may_be_free = False
    """Whether chains may be at different draws, so that none waits for another."""

    step_size: float = _sampler(0.01, "step size of the integrator when the warm-up starts", gt=0)
    num_leapfrog_steps: int = _sampler(
        32,
        "steps of the integrator in a draw; nuts, and adjusted_mclmc by its mass, choose theirs",
        gt=0,
        le=2**20,
    )
    jitter: float = _sampler(
        0.2, "relative variation of the trajectory length, of hmc and adjusted_mclmc", ge=0, lt=1
    )
    num_warmup: int = _sampler(
        500, "draws that adapt step size and mass; of mclmc, steps that tune it", ge=0, le=2**20
    )
    num_burn_in: int = _sampler(0, "further draws that are discarded", ge=0)
    num_samples: int = _sampler(1000, "draws of each chain that count", gt=0, may_change=True)
    thinning: int = _sampler(10, "every how many draws one is kept on disk, and can predict", gt=0)
    target_accept: float = _sampler(0.8, "acceptance rate that the warm-up aims at", gt=0, lt=1)
    mass_matrix: Literal["identity", "diagonal", "low_rank", "dense", "kronecker"] = _sampler(
        "identity", "form of the mass matrix; kronecker is for logistic regression"
    )

    config_rules = (
        (
            lambda config: config.sampler.thinning > config.sampler.num_samples,
            "config.sampler.thinning={0.sampler.thinning} keeps none of "
            "config.sampler.num_samples={0.sampler.num_samples} draws; lower it",
        ),
        (
            lambda config: config.init_from == MAP and config.sampler.mass_matrix != "kronecker",
            "config.init_from='map' is for config.sampler.mass_matrix='kronecker'. Use 'prior', or "
            "a workdir",
        ),
        (  # Stan's: fewer draws say nothing about a mass.
            lambda config: (
                config.sampler.mass_matrix in ("diagonal", "low_rank", "dense")
                and config.sampler.num_warmup < 20
            ),
            "config.sampler.num_warmup={0.sampler.num_warmup} must be at least 20 to adapt "
            "config.sampler.mass_matrix={0.sampler.mass_matrix!r}; or use 'identity'",
        ),
    )


@declared
class NUTS(HMC):
    """Keys of NUTS."""

    may_be_free = True
    xla_flags = _OF_SMALL_LOOPS


@declared
class AdjustedMCLMC(HMC):
    """Keys of adjusted MCLMC."""

    tasks = ("supervised", "numpyro")
    may_split = False
    mass_matrix: Literal["identity", "diagonal", "kronecker"] = _sampler(
        "identity", "form of the mass matrix; kronecker is for logistic regression"
    )


@declared
class MCLMC(AdjustedMCLMC):
    """Keys of MCLMC."""

    is_exact = False
    tunes_at_once = True


@declared
class ParallelTempering(AdjustedMCLMC):
    """Keys of parallel tempering, whose replicas move as chains of hmc."""

    num_replicas: int = key(
        12,
        "temperatures of a chain, from the prior to the posterior",
        ge=2,
        le=1024,
        block="parallel_tempering",
    )


_sgmcmc = partial(key, block="sgmcmc")


@declared
class SGLD(Chains, Batches):
    """Keys of SGLD."""

    code = "ensemble.methods.sgmcmc:create"
    is_exact = False
    xla_flags = _OF_STEPS
    learning_rate: float = key(0.1, "peak of the learning rate", gt=0)
    schedule: Literal["constant", "cyclical"] = _sgmcmc(
        "constant", "schedule of the learning rate in a cycle"
    )
    num_cycles: int = _sgmcmc(1, "cycles of the cyclical schedule", gt=0, may_change=True)
    num_burn_in: int = _sgmcmc(1000, "steps at the start of a cycle that leave no draws", ge=0)
    num_samples: int = _sgmcmc(100, "draws of each chain in a cycle", gt=0, may_change=True)
    steps_per_draw: int = _sgmcmc(100, "steps from one draw to the next", gt=0)
    preconditioner: Literal["none", "rmsprop"] = _sgmcmc(
        "none", "scaling of each parameter's steps"
    )

    config_rules = (
        (
            lambda config: config.sgmcmc.num_cycles > 1 and config.sgmcmc.schedule != "cyclical",
            "config.sgmcmc.num_cycles={0.sgmcmc.num_cycles} is for config.sgmcmc.schedule="
            "'cyclical', and this run has {0.sgmcmc.schedule!r}; set it to 1, or use 'cyclical'",
        ),
    )


@declared
class SGHMC(SGLD):
    """Keys of SGHMC."""

    momentum: float = key(0.9, "momentum", ge=0, lt=1)


_steps = partial(
    _sampler,
    is_valid=lambda number: number % 2 == 0,
    rule="must be even, not negative and at most 2000000000, for steps are taken in pairs",
)


@declared
class RandomWalk(StopWhen):
    """Keys of random-walk Metropolis."""

    tasks = ("density",)
    code = "ensemble.random_walk.method:create"
    result = ""
    num_chains: int = key(4, "number of chains", gt=0)
    step_size: float = _sampler(
        1.0, "standard deviation of the moves when the warm-up starts", gt=0
    )
    mass_matrix: Literal["identity", "diagonal", "dense"] = _sampler(
        "identity", "form of the moves' covariance after the warm-up"
    )
    num_warmup: int = _steps(
        2400, "steps that tune the moves, even; 0 tunes nothing", ge=0, le=2 * 10**9
    )
    num_samples: int = _steps(  # Steps are numbered in 31 bits.
        10_000, "steps of each chain that count, even", gt=0, le=2 * 10**9, may_change=True
    )

    config_rules = (
        (
            lambda config: config.log_every_steps % 2,
            "config.log_every_steps={0.log_every_steps} must be even with config.method='rwm', for "
            "steps are taken in pairs",
        ),
        (
            lambda config: (
                config.num_chains < 16 and (config.stop_when.r_hat or config.stop_when.ess)
            ),
            "config.stop_when needs 16 chains with config.method='rwm', whose errors are the "
            "spread between chains; there are {0.num_chains}",
        ),
    )


_METHODS = {
    "deep_ensemble": DeepEnsemble,
    "snapshot_ensemble": SnapshotEnsemble,
    "swag": SWAG,
    "mc_dropout": MCDropout,
    "batch_ensemble": BatchEnsemble,
    "packed_ensemble": PackedEnsemble,
    "hyper_ensemble": HyperEnsemble,
    "kfold_bagging": KFoldBagging,
    "laplace": Laplace,
    "hmc": HMC,
    "nuts": NUTS,
    "mclmc": MCLMC,
    "adjusted_mclmc": AdjustedMCLMC,
    "parallel_tempering": ParallelTempering,
    "sgld": SGLD,
    "sghmc": SGHMC,
    "rwm": RandomWalk,
}
METHODS = Kind(
    "method",
    "method",
    {name: one.code or f"ensemble.methods.{name}:create" for name, one in _METHODS.items()},
    keys=_METHODS,
)
OPTIMIZERS = Kind(
    "optimizer",
    "optimizer",
    {
        "sgd": "ensemble.methods.optimizers:sgd",
        "adam": "ensemble.methods.optimizers:adam",
        "adamw": "ensemble.methods.optimizers:adamw",
    },
)
SCHEDULES = Kind(
    "lr_schedule",
    "schedule",
    {
        "constant": "ensemble.methods.optimizers:constant",
        "cosine": "ensemble.methods.optimizers:cosine",
        "warmup_cosine": "ensemble.methods.optimizers:warmup_cosine",
    },
)
AUGMENTATIONS = Kind("augment.function", "augmentation", {})
CALLBACKS = Kind("on_metrics", "callback", {})

# Networks and likelihoods. Their classes take the values as keyword arguments.


@declared
class Dropout:
    """The key of networks with dropout."""

    dropout: float = key(0.0, "share of units that training drops", ge=0, lt=1, block="")


NO_EMBEDDING = "none"
NUM_QUANTILES = 65
"""Levels, evenly spaced from 0 to 1, of the quantiles that networks are given of their inputs."""


@declared
class MLP(Dropout):
    """Keys of multilayer perceptrons."""

    widths: tuple[int, ...] = key((256, 256), "units of each hidden layer", ge=1, le=2**16)
    activation: Literal["relu", "tanh", "silu", "gelu"] = key(
        "relu", "activation of the hidden layers"
    )
    embedding: Literal["none", "piecewise_linear"] = key(
        NO_EMBEDDING, "embedding of each number of a table"
    )
    embedding_size: int = key(16, "numbers that a feature is mapped to", gt=0, le=1024)


@declared
class ViT(Dropout):
    """Keys of vision transformers."""

    size: Literal["Ti", "S", "B", "L"] = key("S", "width and depth")
    patch: int = key(16, "side of the patches of images, pixels", gt=0)


MODELS = Kind(
    "model",
    "network",
    {
        "cnn": "ensemble.networks.cnn:CNN",
        "lenet5": "ensemble.networks.cnn:LeNet5",
        "logistic_regression": "ensemble.networks.linen:LogisticRegression",
        "mlp": "ensemble.networks.mlp:MLP",
        "resnet20": "ensemble.networks.resnet:ResNet20",
        "resnet50": "ensemble.networks.resnet:ResNet50",
        "vit": "ensemble.networks.vit:ViT",
        "matrix_factorisation": "ensemble.recommendation.factorisation:MatrixFactorisation",
    },
    keys={**dict.fromkeys(("cnn", "lenet5", "resnet20"), Dropout), "mlp": MLP, "vit": ViT},
)


@declared
class Mixture:
    """Keys of mixtures of Gaussians."""

    components: int = key(5, "Gaussians in the mixture of one member", gt=0, le=100)


@declared
class Quantiles:
    """Keys of quantile regression."""

    levels: tuple[float, ...] = key(
        (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975),
        "levels of the quantiles",
        is_valid=lambda levels: 0.5 in levels and [*levels] == sorted({*levels}) and levels[1:],
        gt=0,
        lt=1,
        rule="must be ascending numbers between 0 and 1, with 0.5 among them: 0.05,0.5,0.95",
    )


LIKELIHOODS = Kind(
    "likelihood",
    "likelihood",
    {
        "categorical": "ensemble.likelihoods.classes:Categorical",
        "bernoulli": "ensemble.likelihoods.classes:Bernoulli",
        "gaussian": "ensemble.likelihoods.numbers:Gaussian",
        "gaussian_homoscedastic": "ensemble.likelihoods.numbers:SharedGaussian",
        "student_t": "ensemble.likelihoods.numbers:StudentT",
        "laplace": "ensemble.likelihoods.numbers:Laplace",
        "log_normal": "ensemble.likelihoods.numbers:LogNormal",
        "mixture_of_gaussians": "ensemble.likelihoods.numbers:MixtureOfGaussians",
        "poisson": "ensemble.likelihoods.counts:Poisson",
        "negative_binomial": "ensemble.likelihoods.counts:NegativeBinomial",
        "quantiles": "ensemble.likelihoods.quantiles:QuantileRegression",
    },
    ("from_data", "from_dict", "predictive"),
    {"mixture_of_gaussians": Mixture, "quantiles": Quantiles},
)
AUTO = "auto"
"""The likelihood that is chosen by the column to learn."""
LIKELIHOOD_OF = {"labels": "categorical", "targets": "gaussian"}
"""The likelihood that is chosen, by what is learned."""

# Data.

COLUMN_TYPES = ("number", "boolean", "date", "category", "drop")
_COLUMN_TYPE = re.compile(rf"{'|'.join(COLUMN_TYPES)}|date:.*%.*|number:[.,]")
"""A type, perhaps of texts in a form: `date:%d.%m.%Y` or `number:,`."""


def column_types(
    value: Any, is_type: Callable[[str], Any] = _COLUMN_TYPE.fullmatch
) -> dict[str, str]:
    """Returns types of columns by name, of a mapping, JSON, or `zip=category, id=drop`.

    Args:
        value: The mapping or text.
        is_type: Tells types from other values; by default those of tables.

    Raises:
        ValueError: They are no such types.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    if isinstance(value, str):
        parts = re.split(r",(?=[^=,]*=)", value)  # A comma may also be a decimal mark.
        value = dict(one.rsplit("=", 1) for one in parts)
    types = {str(name).strip(): str(one).strip() for name, one in value.items()}
    if not all(map(is_type, types.values())):
        raise ValueError
    return types


def read_size(value: Any) -> int | str:
    """Returns the size of images, a side or `HEIGHTxWIDTH`.

    Raises:
        ValueError: It is no size.
    """
    sides = [*map(int, str(value).split("x"))]
    if len(sides) > 2 or not all(1 <= side <= 2**14 for side in sides):
        raise ValueError
    return f"{sides[0]}x{sides[1]}" if sides[1:] else sides[0]


@declared
class Vectors:
    """Keys of data of numbers in memory."""

    scaler: Literal["standard", "robust"] = key(
        "standard",
        "scaling of features: mean and standard deviation, or median and quartiles for heavy tails",
    )


@declared
class Pictures(Vectors):
    """Keys of images in files."""

    resize: object = key(
        None,
        "size to which images are resized; None: all must have one size",
        read=read_size,
        rule="must be None, a side such as 64, or '64x48' (height x width), of 1 to 16384",
    )


@declared
class Table(Vectors):
    """Keys of tables."""

    target: str = key("", "column to learn")
    column_types: str | None = key(
        None,
        "types of columns; None: inferred from the values",
        read=lambda value: json.dumps(column_types(value)),
        rule=f"must be types of columns, {', '.join(COLUMN_TYPES)}: 'zip=category, id=drop', of "
        "dates also with their form, 'sold=date:%d.%m.%Y', and of numbers with their decimal mark, "
        "'price=number:,'",
    )
    split_by: str = key(
        "",
        "column whose groups stay in one split, or whose latest rows are the test; empty: random",
        is_valid=re.compile("((group|time):.+)?").fullmatch,
        rule="must be group:COLUMN or time:COLUMN, or empty",
    )
    na_values: tuple[str, ...] | None = key(
        None,
        "values that mean a missing one, besides empty texts and, among numbers, NA and the like",
        rule="must be such as 'unknown, -999'",
    )


MEANINGS = ("user", "item", "rating", "weight", "time", "title")
"""Meanings of columns of ratings and watches."""


@declared
class Ratings:
    """Keys of ratings and watches."""

    split_by: Literal["random", "time"] = key(
        "random", "test data: a tenth of each user's at random, or the latest tenth of all"
    )
    column_types: str | None = key(
        None,
        "meanings of columns; None: by their usual names",
        read=lambda value: json.dumps(column_types(value, MEANINGS.__contains__)),
        rule=f"must be meanings of columns, {', '.join(MEANINGS)}: 'who=user, what=item'",
    )


class DataForm(NamedTuple):
    """A built-in source of examples.

    Attributes:
        loader: `module:NAME`, called as `loader(name, request)`; returns an
            `ensemble.data.source.Source`. Empty: splits are carved from `given`.
        keys: Class of its keys.
        input_shape: Shape of an example, if it is known before the data are loaded.
        models: The only models that can learn it, if not every network can.
        can_resize: Whether it reads images one by one, and so can resize them.
        kind_of_target: Of tables, `module:NAME`, called as `kind_of_target(name, column)`; returns
            `labels` or `targets`.
        given: `module:NAME`, called as `given(name, request)`; returns the examples before they
            are split, an `ensemble.data.source.Parts`. Empty if they cannot be converted.
    """

    loader: str = ""
    keys: type = Vectors
    input_shape: tuple[int, ...] | None = None
    models: tuple[str, ...] = ()
    can_resize: bool = False
    kind_of_target: str = ""
    given: str = ""


_TABLE = DataForm(
    "ensemble.data.tables.table:load_table",
    Table,
    kind_of_target="ensemble.data.tables.table:target_of_files",
)
_ARRAY_FILES = DataForm(given="ensemble.data.data_forms:given_files")
_IMAGE_SET = DataForm("ensemble.data.tfds_sets:load_tfds", Vectors, (28, 28, 1))
_RATINGS = DataForm(
    "ensemble.recommendation.dataset:load_interactions", Ratings, models=("matrix_factorisation",)
)

DATASETS: Mapping[str, DataForm] = {
    "digits": DataForm("ensemble.data.digits:load_digits", Vectors, (8, 8, 1)),
    # Without their shape: neither is a set unlike the other, to tell it from.
    "clutter": DataForm("ensemble.data.clutter:load_clutter"),
    "grouped_clutter": DataForm("ensemble.data.clutter:load_clutter"),
    "mnist": _IMAGE_SET,
    "fashion_mnist": _IMAGE_SET,
    "kmnist": _IMAGE_SET,
    "cifar10": _IMAGE_SET._replace(input_shape=(32, 32, 3)),
    "diabetes": DataForm("ensemble.data.digits:load_diabetes"),
    "arrays": DataForm("ensemble.data.dataset:refuse_arrays", Table),
    "npz:PATH": _ARRAY_FILES,
    "folder:PATH": DataForm(
        keys=Pictures, can_resize=True, given="ensemble.data.folders:given_folder"
    ),
    "csv:PATH": _TABLE,
    "parquet:PATH": _TABLE,
    "npy:FOLDER": _ARRAY_FILES,
    "records:FOLDER": DataForm(given="ensemble.data.records:given_records"),
    "tfds:NAME": DataForm(
        "ensemble.data.tfds_sets:load_tfds",
        Pictures,
        can_resize=True,
        given="ensemble.data.tfds_sets:given_tfds",
    ),
    "ratings:FILE": _RATINGS,
    "movielens/1m-ratings": _RATINGS,
    "movielens/100k-ratings": _RATINGS,
    "watches:USERSxMOVIES": _RATINGS,
}
"""By name, or by a prefix: what follows a colon is the user's."""


# Tasks.


class Task:
    """Properties of a task besides its keys, with the defaults of a user's own.

    Attributes:
        restore: `module:NAME`, called as `restore(config, description, params)` with the
            configuration of a workdir, what the task's `describe` has returned, and the parameters
            of its members [M, ...]; returns a task that predicts. Empty if nothing predicts.
        default_prior: Prior of methods that require one.
        why_not_evaluated: End of the line that says why there are no evaluations; empty if there
            are.
        given: `module:NAME`, called as `given(data)` with data of a program; returns an
            `ensemble.data.data_forms.Given`. Empty for the usual forms.
        config_rules: As of `Method`.
    """

    restore = ""
    default_prior = "normal(1)"
    why_not_evaluated = ""
    given = ""
    config_rules: ClassVar[Sequence[Rule]] = ()


def _read_prior(value) -> str:
    read_prior(value)
    return str(value)


@declared
class OfData(Task):
    """Keys of tasks with data, a network and a prior."""

    dataset: str = key("digits", "data set")
    data_dir: str = key(
        "",
        "folder of prepared TFDS sets; else they are in $TFDS_DATA_DIR or ~/tensorflow_datasets",
        may_change=True,
    )
    train_on_all: bool = key(
        False, "whether the data for validation and calibration are learned too"
    )
    model: str = key("cnn", "network")
    likelihood: str = key(
        "categorical",
        "distribution of the target given the outputs; auto: by the column to learn of a table",
    )
    prior: str | None = key(
        None, "prior of the parameters, by group; None: only samplers have one", read=_read_prior
    )


@declared
class Supervised(OfData):
    """Keys of supervised learning."""

    restore = "ensemble.tasks.supervised:restore"
    # He's scale for kernels: the outputs of wide networks then stay within reason.
    default_prior = "*kernel=normal(1.4142/sqrt(fan_in)), *=normal(1)"

    config_rules = (
        (
            lambda config: config.get("split_by") and config.train_on_all,
            "config.split_by={0.split_by!r} has nothing to split with config.train_on_all=True; "
            "remove one of the two",
        ),
    )


@declared
class Distillation(Supervised):
    """Keys of learning from an ensemble."""

    teacher: str = key("", "workdir of the ensemble to learn from", may_change=True)

    config_rules = (
        (
            lambda config: config.get("label_smoothing"),
            "config.label_smoothing={0.label_smoothing} is for labels, which config.teacher "
            "replaces; set it to 0",
        ),
    )


@declared
class Factorisation(OfData):
    """Keys of matrix factorisation, of watches or ratings."""

    restore = "ensemble.recommendation.factorisation:restore"
    why_not_evaluated = (
        "has learned who watches what or rates it how, and evaluations are of predictions; its "
        "scores are in results.json, and `ensemble recommend` recommends"
    )
    given = "ensemble.recommendation.dataset:given_interactions"
    num_factors: int = key(8, "length of the embeddings of users and items", gt=0)


@declared
class NumPyro(Task):
    """Keys of a NumPyro model or a log density that is sampled."""

    why_not_evaluated = (
        "has sampled a model, which predicts no test split; its draws are in posterior.nc, for "
        "ArviZ"
    )
    model: str = key("", "the model: numpyro:FILE.py:NAME")
    data: str = key(
        "", "file with the model's arguments by name, .json or .npz; empty: it takes none"
    )

    config_rules = (
        (
            lambda config: config.get("posterior_temperature", 1) != 1,
            "config.posterior_temperature={0.posterior_temperature} divides the likelihood of "
            "networks; config.model={0.model!r} has its own: remove it, and use "
            "numpyro.handlers.scale in the model",
        ),
        (
            lambda config: "sampler" in config and config.sampler.mass_matrix == "kronecker",
            "config.sampler.mass_matrix='kronecker' is for logistic regression; with "
            "config.model={0.model!r} use 'diagonal' or 'dense'",
        ),
    )


@declared
class Density(Task):
    """Keys of a log density without data."""

    why_not_evaluated = (
        "has sampled a density, which predicts nothing; its moments are in results.json"
    )
    density: str = key(
        "gaussian_mixture",
        "log density, or your own as module:Name",
    )


DENSITIES = Kind(
    "density",
    "density",
    {
        "gaussian_mixture": "ensemble.random_walk.densities:GAUSSIAN_MIXTURE",
        "correlated_gaussian": "ensemble.random_walk.densities:CORRELATED_GAUSSIAN",
    },
    ("start", "check", "logdensity_fn", "num_dims"),
)
TASKS = Kind(
    "task",
    "task",
    {
        "supervised": "ensemble.tasks.supervised:create",
        "distillation": "ensemble.tasks.distillation:create",
        "factorisation": "ensemble.recommendation.factorisation:create",
        "numpyro": "ensemble.numpyro_models.sample:create_task",
        "density": "ensemble.random_walk.method:create_task",
    },
    keys={
        "supervised": Supervised,
        "distillation": Distillation,
        "factorisation": Factorisation,
        "numpyro": NumPyro,
        "density": Density,
    },
)

TASK_OF_MODELS = {
    "matrix_factorisation": "factorisation",
    "numpyro:FILE.py:NAME": "numpyro",
    "logdensity:FILE.py:NAME": "numpyro",
}
"""Tasks that a value of `config.model` implies."""
KINDS = {
    one.key: one
    for one in (
        *(TASKS, METHODS, MODELS, LIKELIHOODS, OPTIMIZERS, SCHEDULES, AUGMENTATIONS, CALLBACKS),
        DENSITIES,
        Kind(
            "dataset",
            "data source",
            {name: one.loader for name, one in DATASETS.items()},
            keys={name: one.keys for name, one in DATASETS.items()},
        ),
    )
}
"""Kinds of pieces by the key that selects one."""
WITH_KEYS = {name: one for name, one in KINDS.items() if one.keys}
"""Kinds of pieces that have keys."""
