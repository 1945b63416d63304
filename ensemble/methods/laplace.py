"""Laplace approximations: a normal distribution around the parameters of trained members.

Its mean are a member's parameters, and its precision the curvature of the log likelihood there, by
Gauss and Newton, plus that of a normal prior (MacKay 1992; Daxberger et al. 2021,
arXiv:2106.14806). Predictions are those of the network linearised in its parameters (Immer et al.
2021, arXiv:2008.08400), of which the last layer is linear as it is. Nothing is trained: the steps
are batches of the training data, whose curvature is added up.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
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
from ensemble.runtime.algorithm import Algorithm, Between, Info, Now, Start
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Batch, Batches, Fixed
from ensemble.runtime.method import Method, Report
from ensemble.runtime.status import Status
from ensemble.runtime.streams import Stream
from ensemble.sharding import processes
from ensemble.storage.memory import check_memory
from ensemble.tasks.supervised import OWN, Supervised

_LIKELIHOODS = ("categorical", "gaussian", "gaussian_homoscedastic")
_TRIED = np.logspace(-2, 5, 22)
"""Precisions of the prior, which are tried on the validation split."""
_NOUNS = ("member", "draw")
_PRECISIONS = np.logspace(-4, 8, 241)
"""Precisions of the prior, among which the marginal likelihood chooses."""
_JACOBIAN_BYTES = 1 << 26
"""The size of the derivatives of several examples at once; one example's may take more."""


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
    """What a run of Laplace approximations says."""

    charts: ClassVar[Mapping[str, str]] = {}
    noun, set_noun = _NOUNS

    def rate(self, examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"laplace/member_examples_per_second": examples_per_second}

    def has_predictions(self, run: Any) -> bool:
        """At the end."""
        return bool(run.loop.finished)

    def sections(self, run: Any, timing: Mapping[str, float | None]) -> dict[str, Any]:
        """The prior of each member, and its log marginal likelihood, nats."""
        found = run.devices.fetch_members(run.loop.parameters())[OF_METHOD]
        names = ("prior_precision", "log_marginal_likelihood")
        each = {name: [float(one) for one in found[name][:, 0]] for name in names}
        return {"laplace": {"structure": self.config.laplace.structure, **each}}


def create(config: ml_collections.FrozenConfigDict, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network, the likelihood or the run that is begun from do not suit it, or it
            takes too much memory.
    """
    structure, own = STRUCTURES[config.laplace.structure](), training.with_own_keys(config)
    _check(config, task)
    epochs = training.Epochs.of(config, task.num_train_examples)
    steps = structure.num_passes * epochs.steps
    report = LaplaceReport(
        config, task, "set config.laplace.prior_precision to a larger number, such as 100"
    )
    report.predict, _ = _predict_of(config)

    def place(count: int) -> Devices:
        # What does not add up sees whole batches.
        splits = task.traits.examples_are_independent and structure.adds
        return Devices(count, processes.devices(config.num_devices), splits)

    def algorithm(devices: Devices, numbers: Sequence[int]) -> Algorithm:
        feed = training.batches(own, task, devices, numbers, steps)
        return _algorithm(config, task, devices, feed, epochs.steps)

    return training.of_members(
        config, task, epochs, place=place, algorithm=algorithm, report=report, num_steps=steps
    )


def _algorithm(
    config: Any, task: Supervised, devices: Devices, feed: Batches, epoch: int
) -> Algorithm:
    """Returns the algorithm of members.

    Args:
        config: Configuration of the run.
        task: What the members have learned.
        devices: Placement of the members.
        feed: Batches of the training examples.
        epoch: Steps of a pass over these.
    """
    name, given = config.laplace.structure, config.laplace.prior_precision
    structure, member_of = STRUCTURES[name](), functools.partial(Approximation, task, name)
    tried, (predict, passes) = _TRIED.astype(np.float32), _predict_of(config)

    def of_slice(one: Any, batch: Batch) -> Any:
        variables, curvature, number = one
        member = member_of(variables)
        found, outputs = member.added(curvature, number, batch.inputs, batch.weights)
        log_prob = task.likelihood.log_prob(member.own, outputs, batch.targets)
        # A structure may pass over the data twice.
        return (found, jnp.where(number == 0, jnp.sum(batch.weights * log_prob), 0.0)), ()

    spread = devices.over_examples(of_slice, unrolls=True)

    def init(now: Now, batch: Batch) -> LaplaceState:
        # Without what is given, only the shapes are asked for.
        variables = task.init_variables(now.key) if now.given is None else now.given
        precision = jnp.float32("nan" if given in (MARGINAL, VALIDATION) else given)
        member = member_of(variables)
        curvature = structure.nothing(member.matrices(member.covered))
        return LaplaceState(variables, curvature, jnp.zeros(()), precision)

    @precise
    def step(now: Now, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        found, _ = spread((state.mean, state.curvature, now.step // epoch), batch)
        curvature, told = jax.tree.map(jnp.add, (state.curvature, state.log_likelihood), found)
        return state._replace(curvature=curvature, log_likelihood=told), Info({})

    @precise
    def parameters(now: Now, state: LaplaceState) -> Any:
        spectrum = structure.spectrum(state.curvature)
        member = member_of(state.mean)
        found = member.posterior(spectrum, state.log_likelihood, state.precision)
        if passes == 1:
            found["spectrum"] = structure.kept(spectrum, found["prior_precision"])
        own = {**found, "rng_key": jax.random.key_data(now.key)}
        return pytrees.at({**state.mean, OF_METHOD: own}, None)

    def losses(one: Any, batch: Batch) -> jax.Array:
        variables, own = one
        if name in LAST_LAYER or passes == 1:
            seen = Supervised.prepare(task, batch.inputs)
            said = member_of(variables).closed(own["spectrum"], tried, seen)
            said = jax.tree.map(lambda leaf: leaf[:, None], said)
        else:

            def drawn(tau: jax.Array) -> Any:
                whole = {**variables, OF_METHOD: {**own, "prior_precision": tau}}
                return jax.lax.map(
                    lambda k: predict(task, whole, k, batch.inputs), jnp.arange(passes)
                )

            said = jax.lax.map(drawn, tried)
        scores = jax.vmap(lambda each: task.likelihood.scores(each, batch.targets))(said)
        return scores[task.likelihood.loss]

    loss = training.mean_loss(task, devices, losses, tried.shape)

    @precise
    def choose(now: Now, state: LaplaceState, data: Batch) -> Any:
        spectrum = structure.spectrum(state.curvature)
        own = {"spectrum": spectrum, "rng_key": jax.random.key_data(now.key)}
        found = loss((state.mean, own), data)
        found = jnp.where(jnp.isfinite(found), found, jnp.inf)
        best = jnp.asarray(tried)[jnp.argmin(found)]
        best = jnp.where(jnp.isfinite(found).any(), best, tried[-1])
        return state._replace(precision=best), jnp.int8(Status.ACTIVE)

    steps = structure.num_passes * epoch
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
        steps_per_program=training.in_loop(task, devices, feed.steps_per_program),
        between=between,
        start=functools.partial(_start, config, task),
        passes=passes,
    )


def _predict_of(config: Any) -> tuple[Predict, int]:
    """How a set predicts, and in how many passes."""
    name = config["laplace"]["structure"]
    if not config["num_draws"]:
        return functools.partial(predict_closed, name), 1
    return functools.partial(predict_draw, name), config["num_draws"]


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk, and their posteriors.

    Raises:
        InputError: The curvature is not complete.
    """
    predict, passes = _predict_of(saved.config)
    return loading.fitted(saved, predict=predict, num_passes=passes, nouns=_NOUNS)


def _start(config: Any, task: Supervised) -> Start:
    """The variables [L, ...] of the live members of `config.init_from`.

    Raises:
        InputError: they have learned something else, or are too few.
    """
    what, restored = f"config.init_from={config.init_from!r}", run_of(config, task, "train one")
    fitted: Fitted = restored.fitted
    if fitted.num_estimators != fitted.num_members:
        raise InputError(
            f"{what} has several {fitted.nouns[1]}s of a {fitted.nouns[0]}, and a Laplace "
            "approximation is around one: give a run of config.method='deep_ensemble'"
        )
    check_number(config, fitted.num_members, "ensemble_size")
    theirs, ours = restored.description.get("class_weights"), task.describe().get("class_weights")
    if restored.config["likelihood"] != config.likelihood or theirs != ours:
        raise InputError(
            f"{what} has another likelihood or other class weights than here; set "
            "config.likelihood, config.class_weights and batch_size to those of the run"
        )
    return Start(given=dict(fitted.variables))


def _check(config: ml_collections.FrozenConfigDict, task: Supervised) -> None:
    """Refuses what has no such approximation, or too large a one.

    Raises:
        InputError: as said.
    """
    name = config.laplace.structure
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
    if name in LAST_LAYER and task.output_layer is None:
        raise InputError(
            f"config.model={config.model!r} puts out what no dense layer does, inputs @ kernel + "
            "bias; let it end in one, or choose another config.laplace.structure"
        )

    def sizes(rng_key: jax.Array) -> Any:
        member = Approximation(task, name, task.init_variables(rng_key))
        return member.structure.nothing(member.matrices(member.covered)), member.covered

    size, num_params = map(pytrees.size, jax.eval_shape(sizes, jax.random.key(0)))
    # The curvature, its eigenvectors and a copy of these; derivatives of an example.
    own = 4 * (3 * size + 2 * num_params * task.likelihood.num_outputs)
    on_devices = own * config.ensemble_size // processes.count()
    check_memory(
        on_devices,
        f"the curvatures {name!r} of config.ensemble_size={config.ensemble_size} members, of "
        f"{num_params:,} parameters,",
        "it, or choose another config.laplace.structure",
        on_devices,
        processes.devices(config.num_devices),
    )


# The functions of one member.

in_turn = jax.custom_batching.sequential_vmap
"""Members one after another where accelerators would vmap them: derivatives of the outputs of many
examples by the kernel of a convolution have no rule for one vmap more, nor the memory."""


def precise(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same in full float32: small differences of large sums count, which accelerators round."""

    @functools.wraps(fn)
    def precise(*args: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return fn(*args)

    return precise


class Approximation:
    """The functions of one member.

    Args:
        task: What it has learned.
        name: Name of the covariance's structure.
        variables: Its variables.

    Attributes:
        structure: The covariance's structure.
        is_last: Whether the last layer alone has a distribution.
        covered: The parameters that have a distribution, as they lie in the network.
        own: The likelihood's own parameters.
    """

    def __init__(self, task: Supervised, name: str, variables: Variables):
        self.task, self.name, self.variables = task, name, variables
        self.is_last, self.structure = name in LAST_LAYER, STRUCTURES[name]()
        self._layer = task.output_layer or {}
        params = variables["params"]
        self.own, self.covered = params.get(OWN, {}), pytrees.without(params, OWN)
        if self.is_last:
            self.covered = {
                part: functools.reduce(lambda tree, key: tree[key.key], path, params)
                for part, path in self._layer.items()
            }

    # Parameters.

    def matrices(self, covered: Any) -> Any:
        """Such parameters as matrices [I, F]; those of the last layer as one, the bias below."""
        if self.is_last:
            bias = [covered["bias"][None]] if "bias" in covered else []
            return {"layer": jnp.concatenate([covered["kernel"], *bias])}
        return jax.tree.map(
            lambda leaf: leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1), covered
        )

    def outputs(self, matrices: Any, inputs: jax.Array) -> jax.Array:
        """Outputs [B, K] of prepared inputs, by matrices in place of the member's parameters."""
        params = self.variables["params"]
        if self.is_last:
            whole = matrices["layer"]
            layer = {"kernel": whole[: len(self.covered["kernel"])], "bias": whole[-1]}
            places = {path: layer[part] for part, path in self._layer.items()}
            params = jax.tree.map_with_path(lambda path, leaf: places.get(path, leaf), params)
        else:
            own = jax.tree.map(lambda one, leaf: one.reshape(leaf.shape), matrices, self.covered)
            params = {**params, **own}
        return self.task.outputs({**self.variables, "params": params}, inputs)[0]

    # Curvature.

    def derivatives(self, one: jax.Array) -> Any:
        """Derivatives [K, I, F] of the outputs of one prepared example by the matrices.

        Of the last layer they are its inputs [F'], with a 1 for its bias.
        """
        matrices = self.matrices(self.covered)

        def outputs(matrices: Any) -> jax.Array:
            return self.outputs(matrices, one[None])[0]

        if not self.is_last:
            return jax.jacrev(outputs)(matrices)
        return jax.grad(lambda matrices: outputs(matrices)[0])(matrices)["layer"][:, 0]

    def information_root(self, outputs: jax.Array) -> jax.Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood
        if hasattr(likelihood, "class_log_probs"):  # And its predictions may be corrected.

            def log_probs(one: jax.Array) -> Any:
                return likelihood.class_log_probs(one[None])[0]

            return jnp.exp(0.5 * log_probs(outputs))[:, None] * jax.jacfwd(log_probs)(outputs)

        def parts(one: jax.Array) -> Any:
            found = likelihood.predict(self.own, one[None])
            scales = found["scale"].reshape(-1)
            return jnp.concatenate([found["loc"].reshape(-1), jnp.log(scales)]), scales

        slopes, scales = jax.jacfwd(parts, has_aux=True)(outputs)
        roots = jnp.concatenate([1 / scales, jnp.full_like(scales, math.sqrt(2))])
        return roots[:, None] * slopes

    def rows(self, one: jax.Array, weight: jax.Array) -> tuple[Any, jax.Array]:
        """The rows of one prepared example, as its structure takes them, and the outputs [K]."""
        outputs = self.task.outputs(self.variables, one[None])[0][0]
        root = jnp.sqrt(weight) * self.information_root(outputs)
        found = self.derivatives(one)
        if self.is_last:
            return {"features": found, "information": root.T @ root}, outputs
        return jax.tree.map(lambda leaf: jnp.tensordot(root, leaf, 1), found), outputs

    def at_once(self, size: int) -> int:
        """Examples of a batch whose derivatives are in memory at once: a divisor of its size."""
        of_one = 8 * pytrees.size(self.covered) * self.task.likelihood.num_outputs
        most = max(1, min(size, _JACOBIAN_BYTES // of_one))
        return next(number for number in range(most, 0, -1) if size % number == 0)

    def added(self, curvature: Any, number: Any, inputs: Any, weights: Any) -> Any:
        """What a batch adds to the curvature, and the outputs [B, K].

        Args:
            curvature: So far.
            number: Number of the pass over the data.
            inputs: [B, ...], prepared.
            weights: [B].
        """

        def of_part(member: Approximation, curvature: Any, number: Any, part: Any) -> Any:
            rows, outputs = jax.vmap(member.rows)(*part)
            rows = rows if self.is_last else pytrees.merged(rows)
            return self.structure.terms(curvature, rows, number), outputs

        if self.is_last:
            return of_part(self, curvature, number, (inputs, weights))

        @in_turn
        def scanned(variables: Variables, curvature: Any, number: Any, parts: Any) -> Any:
            member = Approximation(self.task, self.name, variables)

            def one(found: Any, part: Any) -> tuple[Any, jax.Array]:
                so_far = jax.tree.map(jnp.add, curvature, found)
                terms, outputs = of_part(member, so_far, number, part)
                return jax.tree.map(jnp.add, found, terms), outputs

            return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, curvature), parts)

        size = self.at_once(len(inputs))
        parts = jax.tree.map(
            lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (inputs, weights)
        )
        found, outputs = scanned(self.variables, curvature, jnp.asarray(number), parts)
        return found, outputs.reshape(len(inputs), -1)

    # Posterior.

    def posterior(
        self, spectrum: Any, log_likelihood: jax.Array, precision: jax.Array
    ) -> dict[str, Any]:
        """Posterior of a prior precision, or of the one with the largest marginal likelihood.

        Args:
            spectrum: Spectrum of the curvature.
            log_likelihood: Of the training data, [] nats.
            precision: Of the prior, []; NaN: the best.
        """
        leaves = jax.tree.leaves(self.covered)
        size, squares = pytrees.size(leaves), sum(jnp.sum(leaf**2) for leaf in leaves)

        def log_evidence(tau: jax.Array) -> jax.Array:
            prior = 0.5 * (size * jnp.log(tau) - tau * squares)
            return log_likelihood + prior - 0.5 * self.structure.log_det(spectrum, tau)

        tried = jnp.asarray(_PRECISIONS, jnp.float32)
        best = tried[jnp.argmax(jax.lax.map(log_evidence, tried))]
        precision = jnp.where(jnp.isnan(precision), best, precision)
        return {
            "spectrum": spectrum,
            "prior_precision": precision,
            "log_marginal_likelihood": log_evidence(precision),
        }

    # Predictions.

    def closed(self, spectrum: Any, precisions: Any, inputs: jax.Array) -> dict[str, jax.Array]:
        """Predictions [T, B, ...] of prepared inputs by variances of outputs, without draws.

        Logits are divided by sqrt(1 + pi / 8 variance), MacKay's approximation, and the variance of
        a number's mean is added to that of its noise. Covariances of outputs, and the variance of a
        scale, do not enter.

        Args:
            spectrum: Spectrum of the curvature.
            precisions: Of the prior, [T].
            inputs: [B, ...], prepared.
        """

        def of_example(member: Approximation, spectrum: Any, taus: Any, one: Any) -> jax.Array:
            found = member.derivatives(one)
            return jax.vmap(lambda tau: self.structure.variances(spectrum, tau, found))(taus)

        @in_turn
        def mapped(variables: Variables, spectrum: Any, taus: Any, inputs: jax.Array) -> jax.Array:
            member = Approximation(self.task, self.name, variables)
            # The batch of an export has no size.
            is_known = isinstance(inputs.shape[0], int)
            size = self.at_once(len(inputs)) if is_known else None
            each = functools.partial(of_example, member, spectrum, taus)
            return jax.lax.map(each, inputs, batch_size=size)

        if self.is_last:
            each = functools.partial(of_example, self, spectrum, precisions)
            variances = jax.vmap(each)(inputs)
        else:
            variances = mapped(self.variables, spectrum, precisions, inputs)
        outputs = self.task.outputs(self.variables, inputs)[0]
        return jax.vmap(functools.partial(self._widened, outputs), 1)(variances)

    def _widened(self, outputs: jax.Array, variances: jax.Array) -> dict[str, jax.Array]:
        """The prediction by outputs [B, K] and their variances."""
        likelihood: Any = self.task.likelihood
        predict = functools.partial(likelihood.predict, self.own)
        predicted: dict[str, jax.Array] = predict(outputs)
        if "log_probs" in predicted:
            weights = likelihood.class_weights
            shift = 0 if weights is None else np.log(weights)
            return predict((outputs - shift) / jnp.sqrt(1 + math.pi / 8 * variances) + shift)
        slopes = jax.vmap(jax.jacfwd(lambda one: predict(one[None])["loc"][0]))(outputs)
        of_mean = jnp.einsum("b...k,bk->b...", slopes**2, variances)
        return {**predicted, "scale": jnp.sqrt(predicted["scale"] ** 2 + of_mean)}


@precise
def predict_draw(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By one draw of the parameters, in which the network is linearised."""
    posterior, member = one[OF_METHOD], Approximation(task, name, pytrees.without(one, OF_METHOD))
    rng_key = jax.random.fold_in(jax.random.wrap_key_data(posterior["rng_key"]), Stream.DRAWS)
    normal = pytrees.standard_normal(jax.random.fold_in(rng_key, number), member.covered)
    off = member.structure.draw(
        posterior["spectrum"], posterior["prior_precision"], member.matrices(normal)
    )
    outputs = functools.partial(member.outputs, inputs=Supervised.prepare(task, inputs))
    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(outputs, member.matrices(member.covered))
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    return task.likelihood.predict(member.own, at_mean + change)


@precise
def predict_closed(
    name: str, task: Supervised, one: Any, number: Any, inputs: jax.Array
) -> dict[str, jax.Array]:
    """By the variances of outputs: see `Approximation.closed`."""
    posterior, member = one[OF_METHOD], Approximation(task, name, pytrees.without(one, OF_METHOD))
    precisions, seen = posterior["prior_precision"][None], Supervised.prepare(task, inputs)
    return pytrees.at(member.closed(posterior["spectrum"], precisions, seen), 0)
