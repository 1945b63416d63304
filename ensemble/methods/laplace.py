"""Laplace approximations: a normal distribution around the parameters of trained members.

Its mean are a member's parameters, and its precision the curvature of the log likelihood there, by
Gauss and Newton, plus that of a normal prior (MacKay 1992; Daxberger et al. 2021,
arXiv:2106.14806). Predictions are those of the network linearised in its parameters (Immer et al.
2021, arXiv:2008.08400), of which the last layer is linear as it is. Nothing is trained: the steps
are batches of the training data, whose curvature is added up.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import LAST_LAYER, MARGINAL, VALIDATION, is_file
from ensemble.errors import InputError
from ensemble.fitted import OWN as OF_METHOD
from ensemble.fitted import Fitted, OnDisk, Predict
from ensemble.methods import training
from ensemble.methods.given_weights import check_number, run_of
from ensemble.methods.laplace_structures import STRUCTURES
from ensemble.network import Variables
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start, Status, Stream
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Fixed
from ensemble.runtime.method import Method, Report
from ensemble.sharding import processes
from ensemble.tasks.supervised import OWN, Supervised

_LIKELIHOODS = ("categorical", "gaussian", "gaussian_homoscedastic")
_TRIED = np.logspace(-2, 5, 22)
"""Precisions of the prior, which are tried on the validation split."""
_NOUNS = ("member", "draw")
_PRECISIONS = np.logspace(-4, 8, 241)
"""Precisions of the prior, among which the marginal likelihood chooses."""
_JACOBIAN_BYTES = 1 << 26
"""The size of the derivatives of several examples at once; one example's may take more."""


precise = jax.default_matmul_precision("highest")
"""Decorates what is to be computed in full float32: small differences of large sums count, which
accelerators round."""


class LaplaceState(NamedTuple):
    """A member, and what is known of its curvature.

    Attributes:
        mean: Its variables, as their run has left them.
        curvature: What has been added up so far.
        log_likelihood: Of the training data, [] nats.
        precision: Of the prior, []; NaN: that with the largest marginal likelihood.
    """

    mean: Variables
    curvature: Any
    log_likelihood: jax.Array
    precision: jax.Array


class LaplaceReport(Report):
    """Report of a run of Laplace approximations."""

    charts: ClassVar[Mapping[str, str]] = {}
    noun, set_noun = _NOUNS

    def has_predictions(self, run: Any) -> bool:
        """At the end."""
        return bool(run.loop.finished)

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The prior of each member, and its log marginal likelihood, nats."""
        found = run.devices.fetch_members(run.loop.parameters())[OF_METHOD]
        names = ("prior_precision", "log_marginal_likelihood")
        each = {name: found[name][:, 0].tolist() for name in names}
        return {"laplace": {"structure": self.config.laplace.structure, **each}}


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network, the likelihood or the run that is begun from do not suit it, or it
            takes too much memory.
    """
    _check(config, task)
    remedy = "set config.laplace.prior_precision to a larger number, such as 100"
    report = LaplaceReport(config, task, remedy)
    report.predict = _predict_of(config)
    structure = STRUCTURES[config.laplace.structure]
    epochs = training.Epochs.of(config, task.num_train_examples)
    # What does not add up sees whole batches.
    splits = task.traits.examples_are_independent and structure.adds
    return training.of_members(
        config,
        task,
        epochs,
        place=lambda count: Devices(count, processes.devices(config.num_devices), splits),
        algorithm=functools.partial(_algorithm, config, task),
        report=report,
        num_steps=structure.num_passes * epochs.steps,
    )


def _algorithm(
    config: Any, task: Supervised, devices: Devices, numbers: Sequence[int]
) -> Algorithm:
    """Makes the algorithm of some members."""
    given = config.laplace.prior_precision
    member = Approximation(task, config.laplace.structure)
    structure, likelihood = member.structure, task.likelihood
    epoch = training.Epochs.of(config, task.num_train_examples).steps
    steps = structure.num_passes * epoch
    tried, passes = jnp.asarray(_TRIED, jnp.float32), config.num_draws or 1
    feed = training.batches(training.with_own_keys(config), task, devices, numbers, steps)

    def of_slice(one: Any, batch: Batch) -> Any:
        variables, curvature, number = one
        found, outputs = member.added(variables, curvature, number, batch.inputs, batch.weights)
        log_prob = likelihood.log_prob(own_of(variables), outputs, batch.targets)
        # A structure may pass over the data twice.
        return (found, jnp.where(number == 0, jnp.sum(batch.weights * log_prob), 0.0)), ()

    spread = devices.over_examples(of_slice, unrolls=True)

    def init(now: Now, batch: Batch) -> LaplaceState:
        # Without what is given, only the shapes are asked for.
        variables = task.init_variables(now.key) if now.given is None else now.given
        precision = jnp.float32("nan" if given in (MARGINAL, VALIDATION) else given)
        curvature = structure.nothing(member.matrices(member.covered(variables)))
        return LaplaceState(variables, curvature, jnp.zeros(()), precision)

    @precise
    def step(now: Now, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        found, _ = spread((state.mean, state.curvature, now.step // epoch), batch)
        curvature, told = jax.tree.map(jnp.add, (state.curvature, state.log_likelihood), found)
        return state._replace(curvature=curvature, log_likelihood=told), Info({})

    @precise
    def parameters(now: Now, state: LaplaceState) -> Any:
        found = member.posterior(state)
        if passes == 1:
            found["spectrum"] = structure.kept(found["spectrum"], found["prior_precision"])
        found["rng_key"] = jax.random.key_data(now.key)
        return pytrees.at({**state.mean, OF_METHOD: found}, None)

    def losses(one: Any, batch: Batch) -> jax.Array:
        variables, spectrum = one
        said = member.closed(variables, spectrum, tried, Supervised.prepare(task, batch.inputs))
        said = pytrees.at(said, np.s_[:, None])
        scores = jax.vmap(lambda each: likelihood.scores(each, batch.targets))(said)
        return scores[likelihood.loss]

    loss = training.mean_loss(task, devices, losses, tried.shape)

    @precise
    def choose(now: Now, state: LaplaceState, data: Batch) -> Any:
        found = loss((state.mean, structure.spectrum(state.curvature)), data)
        found = jnp.where(jnp.isfinite(found), found, jnp.inf)
        best = jnp.where(jnp.isfinite(found).any(), tried[jnp.argmin(found)], tried[-1])
        return state._replace(precision=best), jnp.int8(Status.ACTIVE)

    between: tuple[Between, ...] = ()
    if given == VALIDATION:
        what = f"config.laplace.prior_precision={VALIDATION!r}"
        data = Fixed(training.validation(task, devices, what))
        between = (Between(lambda step: step == steps, choose, data),)
    return Algorithm(
        init,
        step,
        parameters,
        steps,
        feed,
        steps_per_program=feed.steps_per_program,
        between=between,
        start=functools.partial(_start, config, task),
        passes=passes,
    )


def _predict_of(config: Any) -> Predict:
    """Function by which a set predicts."""
    structure, num_draws = config["laplace"]["structure"], config["num_draws"]
    return functools.partial(predict, structure, num_draws == 0)


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk, and their posteriors.

    Raises:
        InputError: The curvature is not complete.
    """
    passes = saved.config["num_draws"] or 1
    return loading.fitted(saved, predict=_predict_of(saved.config), num_passes=passes, nouns=_NOUNS)


def _start(config: Any, task: Supervised) -> Start:
    """The variables [L, ...] of the live members of `config.init_from`.

    Raises:
        InputError: They have learned something else, or are too few.
    """
    restored = run_of(config, task, "train one")
    found: Fitted = restored.fitted
    theirs = restored.config["likelihood"], restored.description.get("class_weights")
    ours = config.likelihood, task.describe().get("class_weights")
    if theirs != ours or found.num_estimators != found.num_members:
        raise InputError(
            f"config.init_from={config.init_from!r} must be a run of single networks, such as a "
            "deep_ensemble, with config.likelihood, config.class_weights and batch_size as here"
        )
    check_number(config, found.num_members, "ensemble_size")
    return Start(given=dict(found.variables))


def _check(config: ml_collections.FrozenConfigDict, task: Supervised) -> None:
    """Refuses what has no such approximation.

    Raises:
        InputError: There is none, or it does not fit into memory.
    """
    name = config.laplace.structure
    member = Approximation(task, name)
    if not config.init_from or is_file(config.init_from):
        raise InputError(
            f"config.init_from={config.init_from!r} must be the workdir of a run, whose members "
            "are trained"
        )
    if task.likelihood.name not in _LIKELIHOODS:
        raise InputError(
            f"config.method='laplace' is for {', '.join(_LIKELIHOODS)}, and config.likelihood is "
            f"{task.likelihood.name!r}"
        )
    if member.is_last and task.output_layer is None:
        raise InputError(
            f"config.model={config.model!r} puts out what no dense layer does, inputs @ kernel + "
            "bias; let it end in one, or choose another config.laplace.structure"
        )


# The functions of one member.

in_turn = jax.custom_batching.sequential_vmap
"""Members one after another where accelerators would vmap them: derivatives of the outputs of many
examples by the kernel of a convolution have no rule for one vmap more, nor the memory."""


def own_of(variables: Variables) -> Any:
    """The likelihood's own parameters."""
    return variables["params"].get(OWN, {})


class Approximation:
    """The functions of one member.

    Args:
        task: What it has learned.
        name: Name of the covariance's structure.

    Attributes:
        structure: The covariance's structure.
        is_last: Whether the last layer alone has a distribution.
    """

    def __init__(self, task: Supervised, name: str):
        self.task = task
        self.is_last, self.structure = name in LAST_LAYER, STRUCTURES[name]()

    # Parameters.

    def covered(self, variables: Variables) -> Any:
        """The parameters that have a distribution: of the last layer, `kernel` and `bias`."""
        params = variables["params"]
        if not self.is_last:
            return pytrees.without(params, OWN)
        leaves = dict(jax.tree.leaves_with_path(params))
        return {part: leaves[path] for part, path in (self.task.output_layer or {}).items()}

    def matrices(self, covered: Any) -> Any:
        """Matrices [I, F] of such parameters; those of the last layer are one, the bias below."""
        if not self.is_last:
            return jax.tree.map(
                lambda leaf: leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1), covered
            )
        parts = (covered[part] for part in ("kernel", "bias") if part in covered)
        return jnp.concatenate([jnp.atleast_2d(leaf) for leaf in parts])

    def outputs(self, variables: Variables, matrices: Any, inputs: jax.Array) -> jax.Array:
        """Outputs [B, K] of prepared inputs, by matrices in place of the parameters covered."""
        params = variables["params"]
        if self.is_last:
            layer = self.task.output_layer or {}
            parts = {"kernel": matrices[: len(matrices) - len(layer) + 1], "bias": matrices[-1]}
            new = {path: parts[part] for part, path in layer.items()}
            params = jax.tree.map_with_path(lambda path, leaf: new.get(path, leaf), params)
        else:
            shapes = self.covered(variables)
            own = jax.tree.map(lambda one, leaf: one.reshape(leaf.shape), matrices, shapes)
            params = {**params, **own}
        return self.task.outputs({**variables, "params": params}, inputs)[0]

    # Curvature.

    def derivatives(self, variables: Variables, one: jax.Array) -> tuple[jax.Array, Any]:
        """Outputs [K] of one prepared example, and their derivatives [K, I, F] by the matrices.

        Of the last layer these are its inputs [F'], with a 1 for its bias.
        """

        def outputs_of(matrices: Any) -> jax.Array:
            return self.outputs(variables, matrices, one[None])[0]

        outputs, pull_back = jax.vjp(outputs_of, self.matrices(self.covered(variables)))
        directions = jnp.eye(len(outputs), dtype=outputs.dtype)
        if self.is_last:
            return outputs, pull_back(directions[0])[0][:, 0]
        return outputs, jax.vmap(pull_back)(directions)[0]

    def information_root(self, variables: Variables, outputs: jax.Array) -> jax.Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood
        if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.

            def log_probs(one: jax.Array) -> Any:
                return likelihood.class_log_probs(one[None])[0]

            return jnp.exp(0.5 * log_probs(outputs))[:, None] * jax.jacfwd(log_probs)(outputs)

        def parts(one: jax.Array) -> Any:
            found = likelihood.predict(own_of(variables), one[None])
            scales = found["scale"].reshape(-1)
            return jnp.concatenate([found["loc"].reshape(-1), jnp.log(scales)]), scales

        slopes, scales = jax.jacfwd(parts, has_aux=True)(outputs)
        roots = jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])
        return roots[:, None] * slopes

    def rows(self, variables: Variables, one: jax.Array, weight: jax.Array) -> Any:
        """The rows of one prepared example, as its structure takes them, and the outputs [K]."""
        outputs, found = self.derivatives(variables, one)
        root = jnp.sqrt(weight) * self.information_root(variables, outputs)
        if self.is_last:
            return (found, root.T @ root), outputs
        return jax.tree.map(lambda leaf: jnp.tensordot(root, leaf, 1), found), outputs

    def at_once(self, variables: Variables, size: int) -> int:
        """Examples of a batch whose derivatives are in memory at once: a divisor of its size."""
        of_one = 8 * pytrees.size(self.covered(variables)) * self.task.likelihood.num_outputs
        most = max(1, min(size, _JACOBIAN_BYTES // of_one))
        return next(number for number in range(most, 0, -1) if size % number == 0)

    def added(
        self, variables: Variables, curvature: Any, number: Any, inputs: Any, weights: Any
    ) -> Any:
        """Terms of a batch in the curvature, and the outputs [B, K].

        Args:
            variables: Variables of the member.
            curvature: Curvature so far.
            number: Number of the pass over the data.
            inputs: [B, ...], prepared.
            weights: [B].
        """
        rows_of = jax.vmap(self.rows, (None, 0, 0))
        if self.is_last:
            rows, outputs = rows_of(variables, inputs, weights)
            return self.structure.terms(curvature, rows, number), outputs

        @in_turn
        def scanned(variables: Variables, curvature: Any, number: Any, parts: Any) -> Any:
            def one(found: Any, part: Any) -> tuple[Any, jax.Array]:
                rows, outputs = rows_of(variables, *part)
                so_far = jax.tree.map(jnp.add, curvature, found)
                terms = self.structure.terms(so_far, pytrees.merged(rows), number)
                return jax.tree.map(jnp.add, found, terms), outputs

            return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, curvature), parts)

        size = self.at_once(variables, len(inputs))
        parts = jax.tree.map(
            lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (inputs, weights)
        )
        found, outputs = scanned(variables, curvature, jnp.asarray(number), parts)
        return found, pytrees.merged(outputs)

    # Posterior.

    def posterior(self, state: LaplaceState) -> dict[str, Any]:
        """Posterior by the prior of a state, or by that with the largest marginal likelihood."""
        spectrum = self.structure.spectrum(state.curvature)
        leaves = jax.tree.leaves(self.covered(state.mean))
        size, squares = pytrees.size(leaves), sum(jnp.sum(leaf**2) for leaf in leaves)

        def log_evidence(tau: jax.Array) -> jax.Array:
            prior = 0.5 * (size * jnp.log(tau) - tau * squares)
            return state.log_likelihood + prior - 0.5 * self.structure.log_det(spectrum, tau)

        tried = jnp.asarray(_PRECISIONS, jnp.float32)
        best = tried[jnp.argmax(jax.lax.map(log_evidence, tried))]
        precision = jnp.where(jnp.isnan(state.precision), best, state.precision)
        return {
            "spectrum": spectrum,
            "prior_precision": precision,
            "log_marginal_likelihood": log_evidence(precision),
        }

    # Predictions.

    def closed(
        self, variables: Variables, spectrum: Any, precisions: Any, inputs: jax.Array
    ) -> dict[str, jax.Array]:
        """Predictions [T, B, ...] of prepared inputs by variances of outputs, without draws.

        Logits are divided by sqrt(1 + pi / 8 variance), MacKay's approximation, and the variance of
        a number's mean is added to that of its noise. Covariances of outputs, and the variance of a
        scale, do not enter.

        Args:
            variables: Variables of the member.
            spectrum: Spectrum of the curvature.
            precisions: Precisions of the prior, [T].
            inputs: [B, ...], prepared.
        """

        def variances_of(variables: Any, spectrum: Any, taus: Any, inputs: jax.Array) -> Any:
            def of_example(one: jax.Array) -> jax.Array:
                _, found = self.derivatives(variables, one)
                return jax.vmap(lambda tau: self.structure.variances(spectrum, tau, found))(taus)

            if self.is_last:
                return jax.vmap(of_example)(inputs)
            # The batch of an export has no size.
            is_known = isinstance(inputs.shape[0], int)
            size = self.at_once(variables, len(inputs)) if is_known else None
            return jax.lax.map(of_example, inputs, batch_size=size)

        of_member = variances_of if self.is_last else in_turn(variances_of)
        variances = of_member(variables, spectrum, precisions, inputs)
        outputs = self.task.outputs(variables, inputs)[0]
        likelihood: Any = self.task.likelihood
        predict = functools.partial(likelihood.predict, own_of(variables))
        predicted: dict[str, jax.Array] = predict(outputs)

        def widened(variances: jax.Array) -> dict[str, jax.Array]:
            """The predictions by variances [B, K] of the outputs."""
            if "log_probs" in predicted:
                weights = likelihood.class_weights
                shift = 0 if weights is None else np.log(weights)
                return predict((outputs - shift) / jnp.sqrt(1 + math.pi / 8 * variances) + shift)
            slopes = jax.vmap(jax.jacfwd(lambda one: predict(one[None])["loc"][0]))(outputs)
            of_mean = jnp.einsum("b...k,bk->b...", slopes**2, variances)
            return {**predicted, "scale": jnp.sqrt(predicted["scale"] ** 2 + of_mean)}

        return jax.vmap(widened, 1)(variances)


@precise
def predict(
    name: str, is_closed: bool, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """Predictions by one draw of the parameters, in which the network is linearised.

    Or by the variances of its outputs: see `Approximation.closed`.
    """
    posterior, variables = one[OF_METHOD], pytrees.without(one, OF_METHOD)
    member, seen = Approximation(task, name), Supervised.prepare(task, inputs)
    spectrum, precision = posterior["spectrum"], posterior["prior_precision"]
    if is_closed:
        return pytrees.at(member.closed(variables, spectrum, precision[None], seen), 0)
    covered = member.covered(variables)
    rng_key = jax.random.fold_in(jax.random.wrap_key_data(posterior["rng_key"]), Stream.DRAWS)
    normal = pytrees.standard_normal(jax.random.fold_in(rng_key, number), covered)
    off = member.structure.draw(spectrum, precision, member.matrices(normal))
    outputs = functools.partial(member.outputs, variables, inputs=seen)
    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(outputs, member.matrices(covered))
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    return task.likelihood.predict(own_of(variables), at_mean + change)
