"""What every task promises: a description, and what is learned, of examples one by one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ensemble import registry
from ensemble.config_rules import validate
from ensemble.errors import UserError
from ensemble.run.loop import create_task
from ensemble.sources.catalogue import complete
from ensemble.task import Scored
from ensemble.testing.promises import Promise, demand, keep_all, of_data, promise

KEY = jax.random.key(3)


@dataclasses.dataclass(frozen=True)
class TaskCase:
    """A task of a configuration.

    Attributes:
        name: of the task.
        config: validated.
        task: that it means.
        create: makes it anew.
    """

    name: str
    config: Any
    task: Any
    create: Callable[[], Any]
    kind: str = "task"

    @property
    def is_learned(self) -> bool:
        """Whether it has a likelihood of examples, and predicts."""
        return registry.predicts(self.config)

    def batch(self) -> tuple[Any, Any, Any]:
        """Five training examples: raw inputs, prepared ones, and targets."""
        inputs, targets = self.task.dataset.read("train", np.arange(5))
        return inputs, self.task.prepare(jnp.asarray(inputs)), jnp.asarray(targets)


def check_task(settings: Mapping[str, Any], data: Any = None) -> None:
    """Checks what every task promises.

    Args:
        settings: of a configuration that means the task, with a small model and a prior.
        data: as of `ensemble.train`; None where the settings name them.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: the settings cannot stand.
    """
    keep_all(PROMISES, case_of(settings, data))


def case_of(settings: Mapping[str, Any], data: Any) -> TaskCase:
    """The task of a configuration."""
    given, said = complete(settings, data)
    config = validate({**of_data(said), **settings})

    def create() -> Any:
        return create_task(config, given)

    return TaskCase(registry.task_of(config), config, create(), create)


_FOUND: list[Promise] = []


def _is_learned(case: TaskCase) -> bool:
    return case.is_learned


@promise(_FOUND, "describe")
def a_description_is_json_and_tells_the_task(case: TaskCase) -> None:
    """A description is JSON, has name, fingerprint and numbers of examples, and stays the same."""
    description = case.task.describe()
    read = json.loads(json.dumps(description))
    demand(read == description, f"{description} comes back from JSON as {read}")
    for key in ("name", "fingerprint"):
        demand(isinstance(description[key], str), f"{key} is {description[key]!r}, no text")
    numbers, sizes = description["num_examples"], dict(case.task.sizes)
    demand(numbers == sizes, f"num_examples is {numbers}, and sizes {sizes}")
    again = case.create().describe()
    demand(again == description, f"made anew, it says {again}, not {description}")


@promise(_FOUND, "scored, sizes and num_train_examples")
def sizes_and_scores_agree(case: TaskCase) -> None:
    """What has splits is scored by them, and what has none is not."""
    task = case.task
    scored, sizes = task.scored(), dict(task.sizes)
    demand((scored is None) == (not sizes), f"sizes are {sizes}, and it is scored by {scored}")
    if scored is None:
        return
    demand(isinstance(scored, Scored), f"scored is a {type(scored).__name__}")
    demand(next(iter(sizes)) == "train", f"the first split of {sizes} is not train")
    own = dict(scored.dataset.sizes)
    demand(own == sizes, f"its data have {own}, and it says {sizes}")
    demand(task.num_train_examples > 0, f"num_train_examples is {task.num_train_examples}")


@promise(_FOUND, "init_variables, params_shapes, sample_prior and log_prior", _is_learned)
def parameters_have_one_structure(case: TaskCase) -> None:
    """Parameters that are initialised and drawn from the prior are as params_shapes says."""
    task = case.task
    variables, drawn = task.init_variables(KEY), task.sample_prior(KEY)
    expected = _shapes(task.params_shapes())
    for what, params in (("initialised", variables["params"]), ("drawn", drawn)):
        found = _shapes(params)
        demand(found == expected, f"{what} parameters are {found}, not {expected}")
    has_state = variables.keys() > {"params"}
    told = f"traits.has_state is {task.traits.has_state}, and variables are {list(variables)}"
    demand(has_state == task.traits.has_state, told)
    prior = task.log_prior(drawn)
    demand(prior.shape == () and np.isfinite(prior), f"the log prior of a draw is {prior}")


@promise(_FOUND, "log_likelihood and predict", _is_learned)
def log_likelihoods_are_of_single_examples(case: TaskCase) -> None:
    """The log likelihood is one number an example, the same in any batch; predict says the same."""
    task = case.task
    variables = task.init_variables(KEY)
    raw, inputs, targets = case.batch()
    log_prob, aux = task.log_likelihood(variables, inputs, targets)
    found = f"{log_prob.dtype}{list(log_prob.shape)}"
    demand(log_prob.shape == (5,) and log_prob.dtype == jnp.float32, f"of five it is {found}")
    one, _ = task.log_likelihood(variables, inputs[3:4], targets[3:4])
    np.testing.assert_allclose(one, log_prob[3:4], rtol=1e-5, err_msg="an example alone")
    predicted = task.predict(variables, jnp.asarray(raw))
    for name, array in predicted.items():
        demand(array.shape[0] == 5, f"{name} is {array.shape} of five examples")
        np.testing.assert_allclose(array, aux.predicted[name], rtol=1e-5, err_msg=name)


@promise(_FOUND, "restore of its entry, and without_examples", _is_learned)
def a_restored_task_predicts_alike(case: TaskCase) -> None:
    """Restored from its description, with or without examples, it predicts the same bits."""
    task, config = case.task, case.config
    keys = jax.random.split(KEY, 2)
    variables = jax.tree.map(np.asarray, jax.jit(jax.vmap(task.init_variables))(keys))
    description = json.loads(json.dumps(task.describe()))
    restore = registry.load(registry.TASKS[case.name].restore)
    restored = restore(config.to_dict(), description, variables["params"])
    inputs = jnp.asarray(case.batch()[0])
    for k in range(2):
        member = jax.tree.map(lambda leaf, k=k: leaf[k], variables)
        expected = task.predict(member, inputs)
        for found in (restored, restored.without_examples()):
            jax.tree.map(np.testing.assert_array_equal, found.predict(member, inputs), expected)
    damaged = jax.tree.map(lambda leaf: leaf[..., None], variables["params"])
    try:
        restore(config.to_dict(), description, damaged)
    except UserError as error:
        demand("other parameters than" in str(error), f"of other parameters it says {error}")
    else:
        raise AssertionError("parameters of other shapes are restored without a word")


def _shapes(params: Any) -> Any:
    return jax.tree.map(lambda leaf: (tuple(leaf.shape), np.dtype(leaf.dtype).name), params)


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of tasks, in order."""
