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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ensemble import pytrees
from ensemble.config.builtin import LAST_LAYER, MARGINAL, VALIDATION, is_file
from ensemble.errors import InputError
from ensemble.fitted import OWN as OF_METHOD
from ensemble.fitted import Fitted, Predict
from ensemble.methods import training
from ensemble.methods.given_weights import check_number, run_of
from ensemble.methods.laplace_structures import STRUCTURES
from ensemble.network import Variables, path_name
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
        precision: Of the prior, [].
    """

    mean: Variables
    curvature: Any
    precision: jax.Array


class LaplaceReport(Report):
    """Report of a run of Laplace approximations."""

    predicts_at_end = True

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The prior of each member."""
        precisions = run.devices.fetch_members(run.loop.members.state.precision)
        return {"laplace": {"prior_precision": precisions.tolist()}}


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network, the likelihood or the run that is begun from do not suit it.
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
    is_chosen = given in (MARGINAL, VALIDATION)
    tried = jnp.asarray(_TRIED if given == VALIDATION else _PRECISIONS, jnp.float32)
    feed = training.batches(training.with_own_keys(config), task, devices, numbers, steps)

    def of_slice(one: Any, batch: Batch) -> Any:
        variables, curvature, number = one
        return member.added(variables, curvature, number, batch.inputs, batch.weights), ()

    spread = devices.over_examples(of_slice, unrolls=True)

    def init(now: Now, batch: Batch) -> LaplaceState:
        # Without what is given, only the shapes are asked for.
        variables = task.init_variables(now.key) if now.given is None else now.given
        curvature = structure.nothing(member.matrices(member.covered(variables)))
        return LaplaceState(variables, curvature, jnp.float32(0 if is_chosen else given))

    @precise
    def step(now: Now, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        found, _ = spread((state.mean, state.curvature, now.step // epoch), batch)
        curvature = jax.tree.map(jnp.add, state.curvature, found)
        return state._replace(curvature=curvature), Info({})

    @precise
    def parameters(now: Now, state: LaplaceState) -> Any:
        spectrum = structure.spectrum(state.curvature)
        if not config.num_draws:
            spectrum = structure.kept(spectrum, state.precision)
        found = {
            "spectrum": spectrum,
            "prior_precision": state.precision,
            "rng_key": jax.random.key_data(now.key),
        }
        return pytrees.at({**state.mean, OF_METHOD: found}, None)

    def losses(one: Any, batch: Batch) -> jax.Array:
        variables, spectrum = one
        said = member.closed(variables, spectrum, tried, Supervised.prepare(task, batch.inputs))
        said = pytrees.at(said, np.s_[:, None])
        scores = jax.vmap(lambda each: likelihood.scores(each, batch.targets))(said)
        return scores[likelihood.loss]

    loss = training.mean_loss(task, devices, losses)

    @precise
    def choose(now: Now, state: LaplaceState, data: Batch) -> Any:
        spectrum = structure.spectrum(state.curvature)
        if given == VALIDATION:
            found = loss((state.mean, spectrum), data)
        else:
            evidence = functools.partial(member.log_evidence, state.mean, spectrum)
            found = -jax.lax.map(evidence, tried)
        best = jnp.argmin(jnp.where(jnp.isfinite(found), found, jnp.inf))
        return state._replace(precision=tried[best]), jnp.int8(Status.ACTIVE)

    between: tuple[Between, ...] = ()
    if is_chosen:
        what = f"config.laplace.prior_precision={given!r}"
        data = training.validation(task, devices, what) if given == VALIDATION else None
        between = (Between(lambda step: step == steps, choose, Fixed(data)),)
    return Algorithm(
        init,
        step,
        parameters,
        steps,
        feed,
        steps_per_program=feed.steps_per_program,
        between=between,
        start=functools.partial(_start, config, task),
        passes=config.num_draws or 1,
    )


def _predict_of(config: Any) -> Predict:
    """Function by which a set predicts."""
    structure, num_draws = config["laplace"]["structure"], config["num_draws"]
    return functools.partial(predict, structure, num_draws == 0)


def fitted(saved: loading.Saved) -> Fitted:
    """The members that are on disk, and their posteriors.

    Raises:
        InputError: The curvature is not complete.
    """
    passes = saved.config["num_draws"] or 1
    return loading.fitted(saved, predict=_predict_of(saved.config), num_passes=passes)


def _start(config: Any, task: Supervised) -> Start:
    """The variables [L, ...] of the live members of `config.init_from`.

    Raises:
        InputError: They have learned something else, or are too few.
    """
    restored = run_of(config, task)
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
        InputError: There is none.
    """
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
    if config.laplace.structure in LAST_LAYER and task.output_layer is None:
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

    def covered(self, variables: Variables) -> dict[str, jax.Array]:
        """The parameters that have a distribution, by name."""
        leaves = jax.tree.leaves_with_path(variables["params"])
        params = {path_name(path): leaf for path, leaf in leaves}
        if self.is_last:
            names = map(path_name, (self.task.output_layer or {}).values())
            return {name: params[name] for name in names}
        return {name: one for name, one in params.items() if not name.startswith(f"{OWN}/")}

    def matrices(self, covered: Mapping[str, jax.Array]) -> Any:
        """Matrices [I, F] of such parameters; those of the last layer are one, the bias below."""
        if self.is_last:
            parts = sorted(covered.values(), key=jnp.ndim, reverse=True)
            return jnp.concatenate([jnp.atleast_2d(leaf) for leaf in parts])
        return {
            name: leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1)
            for name, leaf in covered.items()
        }

    def outputs(self, variables: Variables, matrices: Any, inputs: jax.Array) -> jax.Array:
        """Outputs [B, K] of prepared inputs, by matrices in place of the parameters covered."""
        new = {}
        for name, leaf in self.covered(variables).items():
            if self.is_last:
                new[name] = matrices[: len(leaf)] if leaf.ndim > 1 else matrices[-1]
            else:
                new[name] = matrices[name].reshape(leaf.shape)
        params = jax.tree.map_with_path(
            lambda path, leaf: new.get(path_name(path), leaf), variables["params"]
        )
        return self.task.outputs({**variables, "params": params}, inputs)[0]

    # Curvature.

    def information_root(self, variables: Variables, outputs: jax.Array) -> jax.Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood

        def parts(one: jax.Array) -> Any:
            """What outputs determine, and the roots of its information."""
            if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.
                log_probs = likelihood.class_log_probs(one[None])[0]
                return log_probs, jnp.exp(0.5 * log_probs)
            found = likelihood.predict(own_of(variables), one[None])
            scales = found["scale"].reshape(-1)
            roots = jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])
            return jnp.concatenate([found["loc"].reshape(-1), jnp.log(scales)]), roots

        slopes, roots = jax.jacfwd(parts, has_aux=True)(outputs)
        return roots[:, None] * slopes

    def rows(self, variables: Variables, one: jax.Array, weight: Any = None) -> Any:
        """The rows of one prepared example, as its structure takes them.

        Args:
            variables: Variables of the member.
            one: The example.
            weight: Weight in the curvature, []; None: the rows are those of the outputs [K], whose
                variances are wanted.
        """

        def outputs_of(matrices: Any) -> jax.Array:
            return self.outputs(variables, matrices, one[None])[0]

        outputs, pull_back = jax.vjp(outputs_of, self.matrices(self.covered(variables)))
        directions = root = jnp.eye(len(outputs), dtype=outputs.dtype)
        if weight is not None:
            root = jnp.sqrt(weight) * self.information_root(variables, outputs)
        if not self.is_last:
            return jax.vmap(pull_back)(root)[0]
        features = pull_back(directions[0])[0][:, 0]  # With a 1 for its bias.
        return features if weight is None else pytrees.at((features, root.T @ root), None)

    def at_once(self, variables: Variables, size: int) -> int:
        """Examples of a batch whose derivatives are in memory at once: a divisor of its size."""
        if self.is_last:
            return size
        of_one = 8 * pytrees.size(self.covered(variables)) * self.task.likelihood.num_outputs
        most = max(1, min(size, _JACOBIAN_BYTES // of_one))
        return next(number for number in range(most, 0, -1) if size % number == 0)

    def added(
        self, variables: Variables, curvature: Any, number: Any, inputs: Any, weights: Any
    ) -> Any:
        """Terms of a batch in the curvature.

        Args:
            variables: Variables of the member.
            curvature: Curvature so far.
            number: Number of the pass over the data.
            inputs: [B, ...], prepared.
            weights: [B].
        """
        size = self.at_once(variables, len(inputs))

        def scanned(variables: Variables, curvature: Any, number: Any, batch: Any) -> Any:
            def one(found: Any, part: Any) -> tuple[Any, None]:
                rows = pytrees.merged(jax.vmap(self.rows, (None, 0, 0))(variables, *part))
                so_far = jax.tree.map(jnp.add, curvature, found)
                terms = self.structure.terms(so_far, rows, number)
                return jax.tree.map(jnp.add, found, terms), None

            parts = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), batch)
            return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, curvature), parts)[0]

        of_member = scanned if self.is_last else in_turn(scanned)
        return of_member(variables, curvature, jnp.asarray(number), (inputs, weights))

    def log_evidence(self, mean: Variables, spectrum: Any, tau: jax.Array) -> jax.Array:
        """Log marginal likelihood by a precision of the prior, but for a constant."""
        leaves = jax.tree.leaves(self.covered(mean))
        size, squares = pytrees.size(leaves), sum(jnp.sum(leaf**2) for leaf in leaves)
        return (size * jnp.log(tau) - tau * squares - self.structure.log_det(spectrum, tau)) / 2

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
                rows = self.rows(variables, one)
                return jax.vmap(lambda tau: self.structure.variances(spectrum, tau, rows))(taus)

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
