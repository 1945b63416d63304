"""The method `laplace`: a normal distribution around the parameters of members that are trained.

Its mean are a member's parameters, and its precision the curvature of the log likelihood there, by
Gauss and Newton, plus that of a normal prior (MacKay 1992; Daxberger et al. 2021,
arXiv:2106.14806). Predictions are those of the network linearised in its parameters (Immer et al.
2021, arXiv:2008.08400), of which the last layer is linear as it is. Nothing is trained: the steps
are batches of the training data, whose curvature is added up.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from ensemble import registry, target_rows
from ensemble.batched_prediction import make_predict
from ensemble.config import model_settings
from ensemble.draws.predictions import predict_in_passes
from ensemble.errors import UserError
from ensemble.fitted import OWN as OF_METHOD
from ensemble.fitted import Fitted, OnDisk, Predict, in_passes
from ensemble.methods.common_keys import is_file
from ensemble.methods.members.engine import (
    MAX_IN_LINE,
    ChunkInfo,
    Engine,
    EngineState,
    batch_sizes,
)
from ensemble.methods.members.engine_method import EngineMethod
from ensemble.methods.members.laplace_keys import LAST_LAYER, MARGINAL, OF_A_RUN, VALIDATION
from ensemble.methods.members.laplace_member import (
    added,
    closed_prediction,
    covered_params,
    features_of,
    finished,
    outputs_of,
    precise,
    predict_closed,
    predict_draw,
)
from ensemble.methods.members.laplace_structures import structure_of
from ensemble.methods.members.member import MEMBER_DEVICES
from ensemble.methods.members.optimizers import Descent
from ensemble.network import Variables
from ensemble.scoring.sections import member_terms
from ensemble.sharding import processes
from ensemble.sharding.mesh import spec
from ensemble.sharding.placement import EVERYWHERE, MEMBERS
from ensemble.source import SplitInputs
from ensemble.storage.memory import check_memory
from ensemble.storage.predictions import MemberPredictions
from ensemble.storage.workdir import Workdir
from ensemble.task import Learned
from ensemble.tasks.supervised import OWN, Supervised

_LIKELIHOODS = ("categorical", "gaussian", "gaussian_shared")
_TRIED = np.logspace(-2, 5, 22)
"""Precisions of the prior, which are tried on the validation split."""


class LaplaceState(NamedTuple):
    """Members, and what is known of their curvature; all arrays are [num_places, ...].

    Attributes:
        members: as their run has left them; `step` counts batches.
        curvature: what has been added up so far; empty at the end.
        posterior: what predictions take; empty before the end.
    """

    members: EngineState
    curvature: dict[str, Any]
    posterior: dict[str, Any]

    @property
    def step(self) -> int:
        """Batches whose curvature has been added."""
        return self.members.step


class Laplace(EngineMethod[LaplaceState]):
    """Adds up the curvature of trained members; the arguments are those of `EngineMethod`.

    Raises:
        UserError: the network, the likelihood or the run that is begun from do not suit it, or it
            takes too much memory.
    """

    task: Supervised

    def __init__(
        self,
        config: ml_collections.FrozenConfigDict,
        task: Learned,
        others: Mapping[str, int] | None = None,
    ):
        super().__init__(config, task, others)
        self._weights = None  # The head is of the run, too.

    def make_remedy(self) -> str:
        """Another prior."""
        return "set config.laplace.prior_precision to a larger number, such as 100"

    def make_engine(self, others: Mapping[str, int] | None) -> Engine:
        """An engine that holds members where they are."""
        config, task = self.config, self.task
        self._structure = structure_of(config.laplace.structure, config.laplace.rank)
        _check(config, task)
        num_steps = self._structure.num_passes * batch_sizes(config, task)[1]
        descent = Descent(optax.constant_schedule(0.0), optax.set_to_zero())
        devices = processes.devices(config.num_devices)
        return Engine(config, task, devices, config.ensemble_size, num_steps, descent, others)

    def moved(self, state: LaplaceState) -> EngineState:
        """The members."""
        return state.members

    def init(self, rng_key: jax.Array) -> LaplaceState:
        """Puts the run's members on the devices, in their order."""
        found: list[Variables] = []
        processes.from_main(lambda: found.append(self._trained()))
        given = processes.arrays_from_main(found[0] if found else None)
        members = self.engine.init(rng_key, given)
        return LaplaceState(members, self._programs.nothing(members.members.variables), {})

    def _trained(self) -> Variables:
        """The variables [L, ...] of the live members of `config.init_from`.

        Raises:
            UserError: they have learned something else, or are too few.
        """
        config, what = self.config, f"config.init_from={self.config.init_from!r}"
        try:
            restored = registry.load(registry.RESTORE)(Workdir(config.init_from))
        except UserError as error:
            raise UserError(f"{what}: {error}") from None
        found, ours = restored.description, self.task.describe()
        if found["fingerprint"] != ours["fingerprint"]:
            raise UserError(
                f"{what} has learned other data, {found['name']}, than {ours['name']} as it is "
                "split here; give the data, config.seed and config.hold_out of its run"
            )
        fitted: Fitted = restored.fitted
        if fitted.num_estimators != fitted.num_members:
            raise UserError(
                f"{what} has several {fitted.nouns[1]}s of a {fitted.nouns[0]}, "
                f"{fitted.num_estimators} in all; a Laplace approximation is around one set of "
                "each: give a run of config.method='sgd'"
            )
        if fitted.num_members < config.ensemble_size:
            raise UserError(
                f"{what} has {fitted.num_members} live members; set "
                f"config.ensemble_size={fitted.num_members} or less"
            )
        model = config.model, model_settings(config), config.likelihood
        theirs = restored.config
        of_run = theirs["model"], model_settings(theirs), theirs["likelihood"]
        if model != of_run:
            raise UserError(
                f"{what} has the network and likelihood {of_run}, and this configuration {model}; "
                "set them to those of the run"
            )
        if found.get("class_weights") != ours.get("class_weights"):
            raise UserError(
                f"{what} has probabilities that are corrected for other class weights than here; "
                "set config.class_weights, correct_class_weights and batch_size to those of the run"
            )
        expected = jax.eval_shape(self.task.init_variables, jax.random.key(0))
        shapes = jax.tree.map(lambda leaf: leaf.shape, expected)
        if jax.tree.map(lambda leaf: leaf.shape[1:], fitted.variables) != shapes:
            raise UserError(f"{what} has another network than config.model={config.model!r}")
        return dict(fitted.variables)

    @functools.cached_property
    def _programs(self) -> "_Programs":
        return _Programs(self)

    def advance(
        self, state: LaplaceState, limit: int | None = None
    ) -> tuple[LaplaceState, ChunkInfo]:
        """Adds the curvature of some batches; after the last one the posterior is made."""
        engine, placement = self.engine, self.engine.programs.placement
        first, periods = state.step, (self.config.log_every_steps, engine.steps_per_epoch)
        due = min(*((first // every + 1) * every for every in periods), engine.goal)
        end = due if limit is None else min(first + limit, due)
        curvature, variables = state.curvature, state.members.members.variables
        for step in range(first, end):
            batch = engine.batches.place(placement, engine.indices, step, 1, 1)
            number = np.int32(step // engine.steps_per_epoch)
            curvature = self._programs.add(curvature, variables, batch, number)
            if step % MAX_IN_LINE == 0:  # Batches on their way take memory, and CPUs may stall.
                jax.block_until_ready(curvature["log_likelihood"])
        begun, count = state.members.begun, engine.batches.examples_before
        members = state.members.replace(step=end, begun=begun if end < due else end)
        status = jnp.copy(members.members.status)
        info = ChunkInfo(end, first, count(end) - count(begun), {}, {}, status, end < due)
        if end < engine.num_steps:
            return LaplaceState(members, curvature, {}), info
        return LaplaceState(members, {}, self._posterior(members, curvature)), info

    def _posterior(self, state: EngineState, curvature: dict[str, Any]) -> Any:
        """What predictions take, for the prior that is configured or found best."""
        variables, chosen = state.members.variables, self.config.laplace.prior_precision
        spectrum = self._programs.spectrum(curvature)

        def of(precisions: Any, finish: Callable[..., Any] = self._programs.finish) -> Any:
            return finish(spectrum, variables, self._precisions(precisions))

        if chosen != VALIDATION:
            return of(np.float32("nan" if chosen == MARGINAL else chosen))
        is_last = self.config.laplace.structure in LAST_LAYER
        by_features = self._by_features(state, "validation") if is_last else None
        say = by_features or functools.partial(self._say, state, name="validation")
        nll = np.full(len(self.indices), np.inf)
        best = np.full(len(self.indices), _TRIED[-1])
        for precision in _TRIED:
            said = say(of(precision, self._programs.to_try))
            view = said.view(self.task.likelihood, self.task.dataset.targets("validation"))
            found = member_terms(view, self.task.likelihood.loss).mean(axis=1)
            better = found < nll  # Not of NaN.
            nll, best = np.where(better, found, nll), np.where(better, precision, best)
        return of(best)

    def _by_features(
        self, state: EngineState, name: str
    ) -> Callable[[dict[str, Any]], MemberPredictions]:
        """What a posterior of the last layer says of a split in closed form.

        The network computes the features of the split once, and not for each posterior.
        """
        task, structure, kind = self.task, self._structure, self.config.laplace.structure
        placement, variables = self.engine.programs.placement, state.members.variables

        def features(variables: Variables, inputs: jax.Array) -> dict[str, jax.Array]:
            seen, layer = Supervised.prepare(task, inputs), covered_params(task, variables, kind)
            of_one = jax.vmap(
                lambda one: features_of(outputs_of(task, variables, kind, one), layer)
            )
            return {"features": of_one(seen), "outputs": task.outputs(variables, seen)[0]}

        found = make_predict(features, placement)(variables, SplitInputs(task.dataset, name))
        own = placement.gather_members(variables["params"].get(OWN, {}))

        @jax.jit
        @jax.vmap
        @precise
        def closed(own: Any, posterior: Any, found: Any) -> Any:
            spectrum, precision = posterior["spectrum"], posterior["prior_precision"]
            variances = jax.vmap(lambda one: structure.variances(spectrum, precision, one))
            return closed_prediction(task, own, found["outputs"], variances(found["features"]))

        def say(posterior: dict[str, Any]) -> MemberPredictions:
            arrays = closed(own, placement.gather_members(posterior), found)
            return MemberPredictions(jax.tree.map(np.asarray, arrays))

        return say

    def _precisions(self, values: Any) -> jax.Array:
        """Prior precisions of the members on the devices."""
        each = np.broadcast_to(np.asarray(values, np.float32), len(self.indices))
        placed: jax.Array = self.engine.programs.placement.place_members(np.ascontiguousarray(each))
        return placed

    # What a run shows.

    def scalars(self, info: ChunkInfo) -> dict[str, float]:
        """There are none."""
        return {}

    def rate_scalars(self, member_examples_per_second: float) -> dict[str, float]:
        """The speed as it is shown."""
        return {"laplace/member_examples_per_second": member_examples_per_second}

    def report_sections(
        self, state: LaplaceState, draws: Any, timing: Mapping[str, float | None]
    ) -> dict[str, Any]:
        """The prior of each member, and its log marginal likelihood, nats."""
        gather = self.engine.programs.placement.gather_members
        return {
            "laplace": {
                "structure": self.config.laplace.structure,
                **{
                    name: [float(one) for one in gather(state.posterior[name])]
                    for name in ("prior_precision", "log_marginal_likelihood")
                },
            }
        }

    # What predicts.

    def has_predictions(self, state: LaplaceState) -> bool:
        """At the end."""
        return bool(state.posterior)

    @functools.cached_property
    def _predict(self) -> Callable[..., dict[str, np.ndarray]]:
        predict, num_passes = _predict_of(self.config.laplace)
        of_set = in_passes(predict, self.task, num_passes)
        return make_predict(of_set, self.engine.programs.placement, num_passes)

    def _say(self, state: EngineState, posterior: dict[str, Any], name: str) -> MemberPredictions:
        """What members say of a split by a posterior."""
        members, num_passes = state.members, _predict_of(self.config.laplace)[1]
        sets = _sets(members.variables, posterior, jax.random.key_data(members.rng_key))
        return predict_in_passes(
            functools.partial(self._predict, sets),
            SplitInputs(self.task.dataset, name),
            (len(self.indices), num_passes),
            self.task.likelihood.pooled,
        )

    def predict_split(self, state: LaplaceState, name: str, draws: Any = None) -> MemberPredictions:
        """What the members say of a split."""
        return self._say(state.members, state.posterior, name)

    def fitted(self, state: LaplaceState, live: Sequence[int], draws: Any) -> Fitted:
        """The live members, and their posteriors."""
        members, placement = state.members.members, self.engine.programs.placement
        keys = jax.random.key_data(members.rng_key)
        sets = placement.gather_members(_sets(members.variables, state.posterior, keys))
        rows = [self.indices.index(k) for k in live]
        return _fitted(sets, rows, self.config.laplace, placement.member_devices)

    # What a checkpoint holds.

    def saved(
        self, state: LaplaceState, gather: Callable[[Any], Any]
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """A state as `(arrays, counters)`, with the curvature or the posterior."""
        arrays, counters = super().saved(state, gather)
        own = {"curvature": state.curvature, "posterior": state.posterior}
        return arrays | {name: gather(one) for name, one in own.items() if one}, counters

    def from_host(
        self, rng_key: jax.Array, arrays: dict[str, Any], counters: dict[str, int]
    ) -> LaplaceState:
        """The inverse of `to_host`, on any devices."""
        arrays = dict(arrays)
        own = [arrays.pop(name, {}) for name in ("curvature", "posterior")]
        place = self.engine.programs.placement.place_members
        return LaplaceState(self.engine.restored(arrays, counters), *map(place, own))


class _Programs:
    """The compiled functions of a run."""

    def __init__(self, method: Laplace):
        task, structure = method.task, method._structure
        placement, laplace = method.engine.programs.placement, method.config.laplace

        def nothing(variables: Variables) -> dict[str, Any]:
            covered = covered_params(task, variables, laplace.structure)
            return {"sums": structure.nothing(covered), "log_likelihood": jnp.zeros(())}

        def add(curvature: Any, variables: Variables, batch: Any, number: Any) -> Any:
            inputs = task.prepare(batch.inputs)
            found, outputs = added(
                task,
                laplace.structure,
                structure,
                curvature["sums"],
                variables,
                inputs,
                batch.weights,
                number,
            )
            own = variables["params"].get(OWN, {})
            log_prob = task.likelihood.log_prob(own, outputs, batch.targets)
            # A structure may pass over the data twice.
            told = jnp.where(number == 0, jnp.sum(batch.weights * log_prob), 0.0)
            return {"sums": found, "log_likelihood": told}

        @precise
        def in_line(curvature: Any, variables: Variables, batches: Any, number: Any) -> Any:
            batch = jax.tree.map(lambda leaf: leaf[0], batches)  # Of one step.
            found = placement.map_slots(add, in_axes=(0, 0, None, None))(
                curvature, variables, batch, number
            )
            if not structure.adds:
                total = curvature["log_likelihood"] + found["log_likelihood"]
                return {**found, "log_likelihood": total}
            return jax.tree.map(jnp.add, curvature, placement.sum_over_slices(found))

        @precise
        def spectrum(curvature: Any) -> Any:
            return {**curvature, "sums": structure.spectrum(curvature["sums"])}

        of_batches = spec(None, "example") if structure.adds else EVERYWHERE
        self.nothing = placement.map_devices(jax.vmap(nothing), (MEMBERS,), MEMBERS)
        self.add = placement.map_devices(
            in_line, (MEMBERS, MEMBERS, of_batches, EVERYWHERE), MEMBERS, donate=(0,)
        )
        self.spectrum = placement.map_devices(
            placement.map_slots(spectrum, in_axes=(0,)), (MEMBERS,), MEMBERS
        )

        def finish(predictive: str) -> Callable[..., Any]:
            posterior = functools.partial(finished, task, laplace.structure, predictive, structure)
            return placement.map_devices(
                placement.map_slots(precise(posterior), in_axes=(0, 0, 0)), (MEMBERS,) * 3, MEMBERS
            )

        self.finish = finish(laplace.predictive)
        self.to_try = finish("closed" if laplace.structure in LAST_LAYER else laplace.predictive)


# What predicts.


def _predict_of(laplace: Any) -> tuple[Predict, int]:
    """How a set predicts, and in how many passes."""
    name, rank = laplace["structure"], laplace["rank"]
    if laplace["predictive"] == "closed":
        return functools.partial(predict_closed, name, rank), 1
    return functools.partial(predict_draw, name, rank), laplace["num_draws"]


def _sets(variables: Variables, posterior: Mapping[str, Any], keys: Any) -> dict[str, Any]:
    """What predicts of members [M, ...], by their keys."""
    return {**variables, OF_METHOD: {**posterior, "rng_key": keys}}


def _fitted(sets: Any, rows: Sequence[int], laplace: Any, member_devices: int) -> Fitted:
    """What some members predict with."""
    chosen = jax.tree.map(lambda leaf: np.asarray(leaf)[list(rows)], sets)
    predict, num_passes = _predict_of(laplace)
    return Fitted(
        chosen, np.arange(len(rows)), predict, num_passes, member_devices, ("member", "draw")
    )


def fitted(saved: OnDisk) -> Fitted:
    """The members that are on disk, and their posteriors: see `ensemble.entries.MethodEntry`.

    Raises:
        UserError: the curvature is not complete.
    """
    arrays = saved.arrays
    if "posterior" not in arrays:
        raise UserError(
            f"the curvature of {saved.counters['step']} batches has been added up, of "
            f"{saved.counters['last_step']}; wait for the rest"
        )
    variables = {"params": arrays["params"], **arrays["model_state"]}
    sets = _sets(variables, arrays["posterior"], arrays["rng_key"])
    return _fitted(sets, saved.live, saved.config["laplace"], saved.counters[MEMBER_DEVICES])


# Checks.


def _check(config: ml_collections.FrozenConfigDict, task: Supervised) -> None:
    """Refuses what has no such approximation, or too large a one.

    Raises:
        UserError: as said.
    """
    name, laplace = config.laplace.structure, config.laplace
    if not config.init_from or is_file(config.init_from):
        raise UserError(f"config.init_from={config.init_from!r} {OF_A_RUN}")
    if task.likelihood.name not in _LIKELIHOODS:
        raise UserError(
            f"config.method='laplace' is for {', '.join(_LIKELIHOODS)}, and config.likelihood is "
            f"{task.likelihood.name!r}"
        )
    if name in LAST_LAYER and task.output_layer is None:
        raise UserError(
            f"config.model={config.model!r} puts out what no dense layer does, inputs @ kernel + "
            "bias; let it end in one, or choose another config.laplace.structure"
        )
    if laplace.prior_precision == VALIDATION and "validation" not in task.dataset.sizes:
        raise UserError(
            f"config.laplace.prior_precision={VALIDATION!r} needs a validation split: give one, "
            f"set config.hold_out=True, or choose {MARGINAL!r}"
        )
    if target_rows.columns(task.dataset.targets("train")).keys() > {target_rows.VALUE}:
        raise UserError(
            "config.method='laplace' takes targets as they are; these are censored, or have "
            "errors of measurement"
        )
    structure = structure_of(name, laplace.rank)
    shapes = jax.eval_shape(task.init_variables, jax.random.key(0))
    covered = jax.eval_shape(lambda: covered_params(task, _zeros(shapes), name))
    curvature = jax.eval_shape(lambda: structure.nothing(_zeros(covered)))
    sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(curvature)]
    num_params = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(covered))
    # The curvature, its eigenvectors and a copy of these; derivatives of an example.
    own = 4 * (3 * sum(sizes) + 2 * num_params * task.likelihood.num_outputs)
    on_devices = own * config.ensemble_size // processes.count()
    check_memory(
        on_devices,
        f"the curvatures {name!r} of config.ensemble_size={config.ensemble_size} members, of "
        f"{num_params:,} parameters,",
        "it, or choose another config.laplace.structure",
        on_devices,
        processes.devices(config.num_devices),
    )


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
