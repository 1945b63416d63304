"""Members of several estimators: batch ensembles, which share weights, and packed ensembles.

Wen, Tran and Ba, "BatchEnsemble" (2020), arXiv:2002.06715: K estimators have one kernel in common,
each times an outer product of two vectors of its own. Gorishniy, Kotelnikov and Babenko, "TabM"
(2024), arXiv:2410.24210: on tables, estimators with factors of few layers and a last layer of their
own win. Laurent et al., "Packed-Ensembles" (2023), arXiv:2210.09184: K narrow networks divide the
units of one. A member is one tree; its estimators see the same batches, each learns by its own
loss, and their mixture predicts.

The parameters of a member are a tree like that of its network, with a dict in the place of each
leaf. It holds `own` [K, ...], of which estimator k has the k-th, or `shared` [..., I, O], which all
have; beside the latter there may be `rows` [K, I] and `columns` [K, O], by which estimator k has it
multiplied along its last two axes. State is each estimator's own, [K, ...]. Unfolded, these are the
variables of K networks like any other.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random

from ensemble import pytrees
from ensemble.config import Config
from ensemble.errors import InputError
from ensemble.fitted import Fitted
from ensemble.likelihoods.predictive import Arrays
from ensemble.methods import training
from ensemble.methods.optimizers import create_descent
from ensemble.network import Variables, path_name
from ensemble.networks import layers
from ensemble.runtime import loading
from ensemble.runtime.method import Method
from ensemble.task import Aux
from ensemble.tasks.supervised import Supervised

OWN = "own"
SHARED = "shared"
ROWS = "rows"
COLUMNS = "columns"
ALL = "all"
"""The adapters of estimators that share nothing."""
_AXES = {ROWS: -2, COLUMNS: -1}
_NETWORKS, _FACTORS = 2**32 - 4, 2**32 - 3  # What a member's key is folded with to start these.


def create(config: Config, task: Supervised) -> Method:
    """Makes the method of a configuration; packed ensembles have no adapters, and share nothing."""
    learned = SharedWeights.of(task, config.num_estimators, config.get("adapters", ALL))
    return training.create(config, task, create_descent, learned=learned)


def fitted(saved: loading.Saved) -> Fitted:
    """The networks of members that are on disk."""
    members, number = loading.fitted(saved), saved.config["num_estimators"]
    if number == 1:  # They are networks already.
        return members
    found = [
        unfolded(nth(pytrees.at(members.sets, m), k))
        for m in range(members.num_sets)
        for k in range(number)
    ]
    sets = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
    return dataclasses.replace(members, sets=sets, member_of=np.repeat(members.member_of, number))


@dataclasses.dataclass(frozen=True)
class SharedWeights(Supervised):
    """A supervised task for members of K estimators; what it predicts is [B, K, ...].

    Attributes:
        num_estimators: K.
        adapters: Arrays of an estimator of its own, a value of `config.adapters`, or `ALL`.
    """

    num_estimators: int = 2
    adapters: str = "rank_one"

    @classmethod
    def of(cls, task: Supervised, num_estimators: int, adapters: str) -> SharedWeights:
        """The task of one network, for members of estimators."""
        fields = {one.name: getattr(task, one.name) for one in dataclasses.fields(Supervised)}
        return cls(**fields, num_estimators=num_estimators, adapters=adapters)

    @cached_property
    def _layers(self) -> tuple[list[str], set[str]]:
        """Paths of the kernels of dense layers, in their order, and of the arrays of the last.

        Raises:
            InputError: The network lacks the first and last dense layer that the adapters are of.
        """
        params = jax.eval_shape(super().init_variables, random.key(0))["params"]
        leaves = [(path_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)]
        kernels = [name for name, leaf in leaves if name.endswith("kernel") and leaf.ndim == 2]
        ends = {*map(path_name, (self.output_layer or {}).values())}
        if not ends or kernels[0] in ends or self.traits.has_convolutions:
            raise InputError(
                f"config.adapters={self.adapters!r} is for networks that begin and "
                "end with a dense layer each, such as 'mlp'; use 'rank_one'"
            )
        return kernels, ends

    def _factors(self, path: str, num_axes: int) -> dict[str, bool] | None:
        """The factors of a leaf, by its path in `params` and its axes; None: it is not shared.

        Returns:
            By name, whether they start as random signs, or as 1.
        """
        if self.adapters == ALL:
            return None
        if self.adapters == "rank_one":  # But for biases, of which attention has some of two axes.
            is_kernel = num_axes > 1 and not path.endswith("bias")
            return {ROWS: True, COLUMNS: True} if is_kernel else None
        kernels, ends = self._layers
        if path in ends or (self.adapters == "tabm" and num_axes < 2):
            return None
        if self.adapters == "tabm_mini":
            return {ROWS: True} if path == kernels[0] else {}
        return {ROWS: path == kernels[0], COLUMNS: False} if path in kernels else {}

    # Parameters.

    def init_variables(self, rng_key: Array) -> Variables:
        """Starts the variables of a member: those of K networks, the first one's where shared."""
        key_factors = random.fold_in(rng_key, _FACTORS)
        key_networks = random.fold_in(rng_key, _NETWORKS)
        keys = pytrees.keys_of(key_networks, jnp.arange(self.num_estimators))
        each = jax.vmap(super().init_variables)(keys)

        def start(path, leaves):
            name = path_name(path)
            factors = self._factors(name, leaves.ndim - 1)
            if factors is None:
                return {OWN: leaves}
            found = {SHARED: leaves[0]}
            for part, is_random in factors.items():
                shape = (self.num_estimators, leaves.shape[_AXES[part]])
                key = random.fold_in(key_factors, zlib.crc32(f"{name}/{part}".encode()))
                signs = random.rademacher(key, shape, leaves.dtype)
                found[part] = signs if is_random else jnp.ones_like(signs)
            return found

        return {**each, "params": jax.tree.map_with_path(start, each["params"])}

    def log_prior(self, params) -> Array:
        """Returns the mean over estimators of log p(params) up to a constant, nats."""
        of_one = super().log_prior
        if not self.priors:
            return of_one(params)
        return jnp.mean(self._of_each(lambda one, k: of_one(one["params"]), {"params": params}))

    # The likelihood.

    def log_likelihood(
        self,
        variables: Variables,
        inputs: Array,
        targets: Array,
        train: bool = False,
        rng_key: Array | None = None,
    ) -> tuple[Array, Aux]:
        """The mean over a member's estimators of log p(target | input, estimator).

        Args:
            variables: Variables of one member.
            inputs: [B, ...], prepared, which all estimators see.
            targets: [B].
            train: As of `Network.apply`.
            rng_key: As of `Network.apply`; each estimator has its own.

        Returns:
            Nats [B], and what else the passes leave: predictions [B, K, ...], and state [K, ...].
        """
        of_one = super().log_likelihood

        def one(variables, k):
            key = None if rng_key is None else random.fold_in(rng_key, k)
            log_prob, aux = of_one(variables, inputs, targets, train, key)
            return log_prob, aux.predicted, aux.state

        log_probs, predicted, state = self._of_each(one, variables)
        return jnp.mean(log_probs, axis=0), Aux(_examples_first(predicted), state)

    def predict(self, variables: Variables, inputs: Array, rng_key: Array | None = None) -> Arrays:
        """Predictions [B, K, ...] by the estimators of one member for raw inputs [B, ...]."""
        of_one = super().predict
        return _examples_first(self._of_each(lambda each, k: of_one(each, inputs), variables))

    def _of_each(self, fn: Callable[[Variables, Any], Any], variables: Variables):
        """`fn(variables, k)` of every estimator, stacked.

        Gradients of a mean of it become those of each one's own loss. What an estimator has alone
        is in one of the K terms of a mean: its gradient is multiplied by K. That of what is shared
        is the mean of K.
        """
        number = self.num_estimators
        numbers = jnp.arange(number)
        paths, structure = jax.tree.flatten_with_path(variables)
        # Of all estimators, and the others with an axis of them.
        shared = {i: leaf for i, (path, leaf) in enumerate(paths) if _is_shared(path)}
        own = {
            i: _with_gradient_times(number, leaf)
            for i, (_, leaf) in enumerate(paths)
            if i not in shared
        }

        def each(own, k):
            leaves = shared | own
            whole = jax.tree.unflatten(structure, [leaves[i] for i in range(len(paths))])
            return fn(unfolded(whole), k)

        if self.traits.has_convolutions:
            # Mapped, they would become grouped ones; XLA:CPU differentiates them slowly in a loop.
            one = jax.jit(each)
            found = [one(pytrees.at(own, k), numbers[k]) for k in range(number)]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
        if self.adapters == ALL:
            with layers.mapped_over_networks():  # These are narrow.
                return jax.vmap(each)(own, numbers)
        if not layers.on_cpu():
            return jax.vmap(each)(own, numbers)
        # What one works with stays in the cache; beside products, gradients make it again.
        policy = jax.checkpoint_policies.dots_saveable
        each = jax.checkpoint(each, policy=policy, prevent_cse=False)
        return jax.lax.map(lambda one: each(*one), (own, numbers))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient_times(factor: int, leaf: Array) -> Array:
    return leaf


_with_gradient_times.defvjp(
    lambda factor, leaf: (leaf, None), lambda factor, _, gradient: (factor * gradient,)
)


def nth(variables: Variables, k) -> Variables:
    """Variables of estimator k: the tree of the member, without the axis [K]."""
    return jax.tree.map_with_path(
        lambda path, leaf: leaf if _is_shared(path) else leaf[k], variables
    )


def unfolded(variables: Variables) -> Variables:
    """Variables of a network, from those of an estimator, as of `nth`."""

    def whole(leaf):
        if OWN in leaf:
            return leaf[OWN]
        found = leaf[SHARED]
        if ROWS in leaf:
            found = found * leaf[ROWS][:, None]
        return found * leaf[COLUMNS] if COLUMNS in leaf else found

    params = jax.tree.map(whole, variables["params"], is_leaf=_is_folded)
    return {**variables, "params": params}


def _is_shared(path) -> bool:
    """Returns True for an array of a member's variables that all estimators have."""
    return path[0].key == "params" and path[-1].key == SHARED


def _is_folded(node) -> bool:
    """Returns True for a dict in the place of a leaf."""
    return isinstance(node, Mapping) and any(hasattr(one, "ndim") for one in node.values())


def _examples_first(predicted: Arrays) -> Arrays:
    """Predictions [B, K, ...], from [K, B, ...]."""
    return {name: jnp.swapaxes(one, 0, 1) for name, one in predicted.items()}
