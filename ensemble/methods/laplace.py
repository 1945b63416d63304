"""Laplace approximations: a normal distribution around the parameters of trained members.

Its mean are a member's parameters, and its precision the curvature of the log likelihood there, by
Gauss and Newton, plus that of a normal prior (MacKay 1992; Daxberger et al. 2021,
arXiv:2106.14806). Predictions are those of the network linearised in its parameters (Immer et al.
2021, arXiv:2008.08400), of which the last layer is linear as it is. Nothing is trained: the steps
are batches of the training data, whose curvature is added up.

The curvature is sum_n J_n' L_n J_n: J_n [K, P] are derivatives of an example's outputs by the
parameters, and L_n is the Fisher information of its target's distribution in the outputs. The
parameters of a member are a tree of matrices [I, F]. A structure is given rows R_n J_n, where
R_n' R_n = L_n: the same tree, [R, I, F]; for the last layer features [B, I] and information L_n
[B, F, F], or the features [I] of one example. Together with a prior of precision tau it makes of
their curvature a normal distribution of the parameters. Curvatures, as they are added up, and their
spectra are dicts of trees of arrays.

Kronecker factors are made by one step of the power method for the nearest Kronecker product (Van
Loan and Pitsianis 1993), which needs rows alone, whatever the layer is.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random
from jax.flatten_util import ravel_pytree

from ensemble import pytrees
from ensemble.config import Config
from ensemble.config.builtin import LAST_LAYER, MARGINAL, VALIDATION, is_file
from ensemble.errors import InputError
from ensemble.fitted import OWN as OF_METHOD
from ensemble.fitted import Fitted, Predict
from ensemble.likelihoods.predictive import Arrays
from ensemble.methods import training
from ensemble.methods.given_weights import check_number, run_of
from ensemble.network import Variables, path_name
from ensemble.pytrees import ByName
from ensemble.runtime import loading
from ensemble.runtime.algorithm import Algorithm, Between, Info, Start, Status, Stream
from ensemble.runtime.devices import Devices
from ensemble.runtime.feed import Fixed
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
_TINY = 1e-30
_NOTHING = 1e-6
"""The share of the largest eigenvalue that rounding leaves of none."""
_OVERSAMPLED = 3

precise = jax.default_matmul_precision("highest")
"""Decorates what is to be computed in full float32: small differences of large sums count, which
accelerators round."""
in_turn = jax.custom_batching.sequential_vmap
"""Members one after another where accelerators would vmap them: derivatives of the outputs of many
examples by the kernel of a convolution have no rule for one vmap more, nor the memory."""


# Structures of the covariance.


class Diagonal:
    """Parameters are independent.

    Other structures have eigenvalues in other coordinates.

    Attributes:
        num_passes: Passes over the data.
        adds: Whether what examples add does not depend on the examples before.
    """

    num_passes = 1
    adds = True

    def nothing(self, params):
        """The curvature of no example."""
        return {"values": jax.tree.map(jnp.zeros_like, params)}

    def terms(self, curvature, rows, number):
        """Terms of rows in a curvature, in a pass of this number."""
        return {"values": jax.tree.map(lambda leaf: jnp.sum(leaf**2, axis=0), rows)}

    def spectrum(self, curvature):
        """The spectrum of a curvature: `values`, and what turns parameters."""
        return curvature

    def turned(self, spectrum, rows):
        """Rows in the eigenvectors' coordinates, [R, ...] as `values`."""
        return rows

    def back(self, spectrum, scaled):
        """Parameters, from the eigenvectors' coordinates."""
        return scaled

    def log_det(self, spectrum, precision: jax.Array):
        """Log determinant of the posterior's precision."""
        return sum(jnp.sum(jnp.log(x + precision)) for x in jax.tree.leaves(spectrum["values"]))

    def draw(self, spectrum, precision: Array, normal):
        """A draw around zero, by standard normal numbers."""
        values = spectrum["values"]
        scaled = jax.tree.map(lambda z, leaf: z / jnp.sqrt(leaf + precision), normal, values)
        return self.back(spectrum, scaled)

    def kept(self, spectrum, precision: Array):
        """The part of a spectrum that `variances` needs."""
        return spectrum

    def variances(self, spectrum, precision: Array, rows) -> Array:
        """Variances [R] of the products of rows with the parameters."""
        turned, values = self.turned(spectrum, rows), spectrum["values"]
        shares = jax.tree.map(lambda r, h: r**2 / (h + precision), turned, values)
        return jnp.sum(_flat(shares), axis=1)


class Kronecker(Diagonal):
    """Each matrix of parameters has the curvature A x G, of its first axis and its last."""

    num_passes = 2

    def nothing(self, params):
        """Both factors of each matrix, trees like the parameters."""

        def zeros(axis):
            return jax.tree.map(lambda leaf: jnp.zeros((leaf.shape[axis],) * 2), params)

        return {"left": zeros(0), "right": zeros(1)}

    def terms(self, curvature, rows, number):
        """The left factor in the first pass, for a right one of 1; in the second the right one."""

        def right_of(one, a):
            found = jnp.einsum("rif,ij,rjg->fg", one, a, one)
            return found / jnp.maximum(jnp.sum(a * a), _TINY)

        def left_of(one):
            return jnp.einsum("rif,rjf->ij", one, one) / one.shape[2]

        nothing = jax.tree.map(jnp.zeros_like, curvature)
        return lax.cond(
            number == 0,
            lambda: {**nothing, "left": jax.tree.map(left_of, rows)},
            lambda: {**nothing, "right": jax.tree.map(right_of, rows, curvature["left"])},
        )

    def spectrum(self, curvature):
        """Products of the factors' eigenvalues, and eigenvectors: trees like the parameters."""
        values, vectors = (
            jax.tree.map(lambda leaf, i=i: jnp.linalg.eigh(leaf)[i], curvature) for i in (0, 1)
        )
        products = jax.tree.map(
            lambda a, g: jnp.maximum(a, 0)[:, None] * jnp.maximum(g, 0), *values.values()
        )
        return {"values": products, "vectors": vectors}

    def turned(self, spectrum, rows):
        """Rows between both factors' eigenvectors."""
        return jax.tree.map(
            lambda one, left, right: jnp.einsum("ij,rif,fg->rjg", left, one, right),
            rows,
            *spectrum["vectors"].values(),
        )

    def back(self, spectrum, scaled):
        """Parameters between both factors' eigenvectors."""
        return jax.tree.map(
            lambda one, left, right: left @ one @ right.T, scaled, *spectrum["vectors"].values()
        )


class LowRank(Diagonal):
    """The largest eigenvectors of the curvature; in all other directions there is the prior alone.

    They are principal components of rows that come in batches, of which three times as many as are
    used are kept on the way: exact while no more directions than these have a curvature, and else
    somewhat short of the largest. Coordinates are those along eigenvectors, and what is left.

    Attributes:
        rank: Directions.
    """

    adds = False
    rank = 20

    def nothing(self, params):
        """Rows of zeros, [R, P] of all parameters."""
        return {"rows": jnp.zeros((_OVERSAMPLED * self.rank, pytrees.size(params)))}

    def terms(self, curvature, rows, number):
        """The change of the largest principal components by new rows."""
        kept = curvature["rows"]
        return {"rows": _largest(jnp.concatenate([kept, _flat(rows)]), len(kept)) - kept}

    def spectrum(self, curvature):
        """Eigenvalues, and eigenvectors of length 1; of none, where there are fewer, zeros."""
        rows = _largest(curvature["rows"], self.rank)
        values = jnp.sum(rows**2, axis=1)
        is_known = values > _NOTHING * jnp.max(values)
        shrink = jnp.where(is_known, 1 / jnp.sqrt(jnp.maximum(values, _TINY)), 0)
        known = jnp.where(is_known, values, 0)
        found = {"along": known, "rest": jnp.zeros(())}
        return {"values": found, "vectors": shrink[:, None] * rows}

    def turned(self, spectrum, rows):
        """Rows along the eigenvectors, and what is left of them."""
        flat, vectors = _flat(rows), spectrum["vectors"]
        along = flat @ vectors.T
        return {"along": along, "rest": flat - along @ vectors}

    def log_det(self, spectrum, precision: Array) -> Array:
        """Log determinant of the eigenvalues that are kept, and of the prior."""
        rank, size = spectrum["vectors"].shape
        rest = (size - rank - 1) * jnp.log(precision)  # `rest` of the spectrum is one direction.
        return super().log_det(spectrum, precision) + rest

    def draw(self, spectrum, precision: Array, normal):
        """A draw of the prior, shrunk along the eigenvectors."""
        flat, restore = ravel_pytree(normal)
        drawn = super().draw(spectrum, precision, self.turned(spectrum, flat[None]))
        return restore((drawn["along"] @ spectrum["vectors"] + drawn["rest"])[0])


class LastLayer(Diagonal):
    """All covariances of the layer that puts the outputs out, a matrix [F', K].

    Its rows are not made: R_n J_n is a product of the layer's inputs, features [F'] with a 1 for
    the bias, and of R_n.
    """

    def nothing(self, params):
        """Zeros [F', K, F', K]."""
        return {"sums": jnp.zeros(params.shape * 2)}

    def terms(self, curvature, rows, number):
        """Sums of products of features, times the information."""
        features, information = rows
        return {"sums": jnp.einsum("nf,ng,nkl->fkgl", features, features, information)}

    def spectrum(self, curvature):
        """Eigenvalues [F', K], and eigenvectors [F', K, F' K]."""
        shape = curvature["sums"].shape[:2]
        size = math.prod(shape)
        values, vectors = jnp.linalg.eigh(curvature["sums"].reshape(size, size))
        values = jnp.maximum(values, 0).reshape(shape)
        return {"values": values, "vectors": vectors.reshape(*shape, size)}

    def back(self, spectrum, scaled):
        """Parameters by the eigenvectors."""
        return spectrum["vectors"] @ scaled.reshape(-1)

    def kept(self, spectrum, precision: Array):
        """Covariances `blocks` [K, F', F'] of the parameters of each output."""
        scaled = spectrum["vectors"] / jnp.sqrt(spectrum["values"].reshape(-1) + precision)
        return {"blocks": jnp.einsum("fkp,gkp->kfg", scaled, scaled)}

    def variances(self, spectrum, precision: Array, rows):
        """Variances [K] of the outputs, by the features of an example."""
        if "blocks" in spectrum:
            return jnp.einsum("f,kfg,g->k", rows, spectrum["blocks"], rows)
        along = jnp.einsum("f,fkp->kp", rows, spectrum["vectors"])
        return jnp.sum(along**2 / (spectrum["values"].reshape(-1) + precision), axis=1)


class LastLayerKronecker(Kronecker):
    """A `LastLayer` with the curvature A x G of features and of outputs.

    A is the sum of products of features, each by the trace of its information, and G the sum of
    information over the sum of traces: exact where all examples have the same information.
    """

    num_passes = 1

    def terms(self, curvature, rows, number):
        """Sums over examples."""
        features, information = rows
        left = jnp.einsum("nf,ng,nkk->fg", features, features, information)
        return {"left": left, "right": jnp.sum(information, axis=0)}

    def spectrum(self, curvature):
        """The same of factors of which the right one has trace 1."""
        right = curvature["right"]
        right = right / jnp.maximum(jnp.trace(right), _TINY)
        return super().spectrum({**curvature, "right": right})

    def variances(self, spectrum, precision: Array, rows):
        """Variances of the outputs [K], by the features of an example."""
        left, right = spectrum["vectors"].values()
        return right**2 @ ((rows @ left) ** 2 @ (1 / (spectrum["values"] + precision)))


STRUCTURES = {
    "last_layer": LastLayer,
    "last_layer_kronecker": LastLayerKronecker,
    "diagonal": Diagonal,
    "kronecker": Kronecker,
    "low_rank": LowRank,
}
"""Structures by the values of `config.laplace.structure`."""


def _largest(rows: Array, number: int) -> Array:
    """The largest principal components of rows [R, P], as rows."""
    _, vectors = jnp.linalg.eigh(rows @ rows.T)
    return vectors[:, -number:].T @ rows


def _flat(rows) -> Array:
    """Rows [R, P] of all parameters, side by side."""
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(rows)], axis=1)


# The method.


class LaplaceState(NamedTuple):
    """A member, and its curvature.

    Attributes:
        mean: Its variables, as their run has left them.
        curvature: Terms that have been added up so far.
        precision: Precision of the prior, [].
    """

    mean: Variables
    curvature: Any
    precision: Array


class LaplaceReport(Report):
    """Report of a run of Laplace approximations."""

    predicts_at_end = True

    def sections(self, run) -> ByName:
        """The prior of each member."""
        precisions = run.devices.fetch_members(run.loop.members.state.precision)
        return {"laplace": {"prior_precision": precisions.tolist()}}


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration.

    Raises:
        InputError: The network, the likelihood or the run that is begun from do not suit it.
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
    remedy = "set config.laplace.prior_precision to a larger number, such as 100"
    report = LaplaceReport(config, task, remedy)
    report.predict = _predict_of(config)
    # What does not add up sees whole batches.
    splits = task.traits.examples_are_independent and STRUCTURES[name].adds
    epochs = training.Epochs.of(config, task.num_train_examples)
    return training.of_members(
        config,
        task,
        epochs,
        place=lambda count: Devices(count, processes.devices(config.num_devices), splits),
        algorithm=partial(_algorithm, config, task, epochs.steps),
        report=report,
    )


def _algorithm(
    config, task: Supervised, epoch: int, devices: Devices, numbers: Sequence[int]
) -> Algorithm:
    """Makes the algorithm of some members."""
    given = config.laplace.prior_precision
    member = Approximation(task, config.laplace.structure)
    structure, likelihood = member.structure, task.likelihood
    steps = structure.num_passes * epoch
    is_chosen = given in (MARGINAL, VALIDATION)
    tried = jnp.asarray(_TRIED if given == VALIDATION else _PRECISIONS, jnp.float32)
    feed = training.batches(training.with_own_keys(config), task, devices, numbers, steps)

    def of_slice(one, batch):
        return member.added(*one, batch.inputs, batch.weights), ()

    spread = devices.over_examples(of_slice, unrolls=task.traits.unrolls)

    def init(now, batch):
        # Without what is given, only the shapes are asked for.
        variables = task.init_variables(now.key) if now.given is None else now.given
        curvature = structure.nothing(member.matrices(member.covered(variables)))
        return LaplaceState(variables, curvature, jnp.float32(0 if is_chosen else given))

    @precise
    def step(now, state, batch):
        found, _ = spread((state.mean, state.curvature, now.step // epoch), batch)
        curvature = jax.tree.map(jnp.add, state.curvature, found)
        return state._replace(curvature=curvature), Info({})

    @precise
    def parameters(now, state):
        spectrum, precision = structure.spectrum(state.curvature), state.precision
        if not config.num_draws:
            spectrum = structure.kept(spectrum, precision)
        found = {"spectrum": spectrum, "prior_precision": precision}
        found["rng_key"] = random.key_data(now.key)
        return pytrees.at({**state.mean, OF_METHOD: found}, None)

    def losses(one, batch):
        said = member.closed(one[0], one[1], tried, Supervised.prepare(task, batch.inputs))
        said = pytrees.at(said, np.s_[:, None])
        return jax.vmap(lambda each: likelihood.scores(each, batch.targets))(said)[likelihood.loss]

    loss = training.mean_loss(task, devices, losses)

    @precise
    def choose(now, state, data):
        spectrum = structure.spectrum(state.curvature)
        if given == VALIDATION:
            found = loss((state.mean, spectrum), data)
        else:
            evidence = partial(member.log_evidence, state.mean, spectrum)
            found = -lax.map(evidence, tried)
        best = jnp.argmin(jnp.where(jnp.isfinite(found), found, jnp.inf))
        return state._replace(precision=tried[best]), jnp.int8(Status.ACTIVE)

    between: tuple = ()
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
        start=partial(_start, config, task),
        passes=config.num_draws or 1,
    )


def _predict_of(config) -> Predict:
    """Function by which a set predicts."""
    return partial(predict, config["laplace"]["structure"], config["num_draws"] == 0)


def fitted(saved: loading.Saved) -> Fitted:
    """The members that are on disk, and their posteriors.

    Raises:
        InputError: The curvature is not complete.
    """
    config = saved.config
    passes = config["num_draws"] or 1
    return loading.fitted(saved, predict=_predict_of(config), num_passes=passes)


def _start(config, task: Supervised) -> Start:
    """The variables [L, ...] of the live members of `config.init_from`.

    Raises:
        InputError: They have learned something else, or are too few.
    """
    restored = run_of(config, task)
    found = restored.fitted
    theirs = restored.config["likelihood"], restored.description.get("class_weights")
    ours = config.likelihood, task.describe().get("class_weights")
    if theirs != ours or found.num_estimators != found.num_members:
        raise InputError(
            f"config.init_from={config.init_from!r} must be a run of single networks, such as a "
            "deep_ensemble, with config.likelihood, config.class_weights and batch_size as here"
        )
    check_number(config, found.num_members, "ensemble_size")
    return Start(given=pytrees.without(found.sets, OF_METHOD))


# The functions of one member.


def own_of(variables: Variables):
    """The likelihood's own parameters."""
    return variables["params"].get(OWN, {})


class Approximation:
    """The functions of one member.

    Args:
        task: Task of the member.
        name: Name of the covariance's structure.

    Attributes:
        structure: The covariance's structure.
        is_last: Whether the last layer alone has a distribution.
    """

    def __init__(self, task: Supervised, name: str):
        self.task = task
        self.is_last, self.structure = name in LAST_LAYER, STRUCTURES[name]()

    # Parameters.

    def covered(self, variables: Variables) -> Variables:
        """The parameters that have a distribution, by name."""
        leaves = jax.tree.leaves_with_path(variables["params"])
        params = {path_name(path): leaf for path, leaf in leaves}
        names = [name for name in params if not name.startswith(f"{OWN}/")]
        if self.is_last:
            names = [path_name(path) for path in (self.task.output_layer or {}).values()]
        return {name: params[name] for name in names}

    def matrices(self, covered: Mapping[str, Array]):
        """Matrices [I, F] of such parameters; those of the last layer are one, the bias below."""
        if self.is_last:
            parts = sorted(covered.values(), key=jnp.ndim, reverse=True)
            return jnp.concatenate([jnp.atleast_2d(leaf) for leaf in parts])
        return {
            name: leaf.reshape(-1, leaf.shape[-1] if leaf.ndim else 1)
            for name, leaf in covered.items()
        }

    def outputs(self, variables: Variables, matrices, inputs: Array) -> Array:
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

    def information_root(self, variables: Variables, outputs: Array) -> Array:
        """R [R, K], of which R'R is the Fisher information of a target in the outputs [K]."""
        likelihood: Any = self.task.likelihood

        def parts(one):
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

    def rows(self, variables: Variables, one: Array, weight=None):
        """The rows of one prepared example, as its structure takes them.

        Args:
            variables: Variables of the member.
            one: The example.
            weight: Weight in the curvature, []; None: the rows are those of the outputs [K], whose
                variances are wanted.
        """

        def outputs_of(matrices):
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
        of_one = 8 * pytrees.size(self.covered(variables)) * self.task.likelihood.num_outputs
        most = size if self.is_last else max(1, min(size, _JACOBIAN_BYTES // of_one))
        return next(number for number in range(most, 0, -1) if size % number == 0)

    def added(self, variables: Variables, curvature, number, *examples):
        """Terms of a batch in the curvature.

        Args:
            variables: Variables of the member.
            curvature: Curvature so far.
            number: Number of the pass over the data.
            *examples: Inputs [B, ...], prepared, and weights [B].
        """
        size = self.at_once(variables, len(examples[0]))

        def scanned(variables, curvature, number, batch):
            def one(found, part):
                rows = pytrees.merged(jax.vmap(self.rows, (None, 0, 0))(variables, *part))
                so_far = jax.tree.map(jnp.add, curvature, found)
                terms = self.structure.terms(so_far, rows, number)
                return jax.tree.map(jnp.add, found, terms), None

            parts = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), batch)
            return lax.scan(one, jax.tree.map(jnp.zeros_like, curvature), parts)[0]

        of_member = scanned if self.is_last else in_turn(scanned)
        return of_member(variables, curvature, jnp.asarray(number), examples)

    def log_evidence(self, mean: Variables, spectrum, tau: Array) -> Array:
        """Log marginal likelihood by a precision of the prior, but for a constant."""
        leaves = jax.tree.leaves(self.covered(mean))
        size, squares = pytrees.size(leaves), sum(jnp.sum(leaf**2) for leaf in leaves)
        return (size * jnp.log(tau) - tau * squares - self.structure.log_det(spectrum, tau)) / 2

    # Predictions.

    def closed(self, variables: Variables, spectrum, precisions, inputs: Array) -> Arrays:
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

        def variances_of(variables, spectrum, taus, inputs):
            def of_example(one):
                rows = self.rows(variables, one)
                return jax.vmap(lambda tau: self.structure.variances(spectrum, tau, rows))(taus)

            if self.is_last:
                return jax.vmap(of_example)(inputs)
            # The batch of an export has no size.
            is_known = isinstance(inputs.shape[0], int)
            size = self.at_once(variables, len(inputs)) if is_known else None
            return lax.map(of_example, inputs, batch_size=size)

        of_member = variances_of if self.is_last else in_turn(variances_of)
        variances = of_member(variables, spectrum, precisions, inputs)
        outputs = self.task.outputs(variables, inputs)[0]
        likelihood = self.task.likelihood
        predict = partial(likelihood.predict, own_of(variables))
        predicted = predict(outputs)

        def widened(variances):
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
def predict(name: str, is_closed: bool, task: Supervised, one, number, inputs: Array) -> Arrays:
    """Predictions by one draw of the parameters, in which the network is linearised.

    Or by the variances of its outputs: see `Approximation.closed`.
    """
    posterior, variables = one[OF_METHOD], pytrees.without(one, OF_METHOD)
    member, seen = Approximation(task, name), Supervised.prepare(task, inputs)
    spectrum, precision = posterior["spectrum"], posterior["prior_precision"]
    if is_closed:
        return pytrees.at(member.closed(variables, spectrum, precision[None], seen), 0)
    covered = member.covered(variables)
    rng_key = random.fold_in(random.wrap_key_data(posterior["rng_key"]), Stream.DRAWS)
    normal = pytrees.standard_normal(random.fold_in(rng_key, number), covered)
    off = member.structure.draw(spectrum, precision, member.matrices(normal))
    outputs = partial(member.outputs, variables, inputs=seen)
    # Not `jax.jvp`: what has a gradient of its own, as convolutions on CPU, has no other.
    at_mean, pull_back = jax.vjp(outputs, member.matrices(covered))
    (change,) = jax.linear_transpose(lambda one: pull_back(one)[0], at_mean)(off)
    return task.likelihood.predict(own_of(variables), at_mean + change)
