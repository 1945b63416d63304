"""The contract of tasks, by its implementations: what every one of them has to do alike."""

import applications
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import mesh_of, validated
from small_runs import make_blobs

from ensemble import registry
from ensemble.methods.mcmc.coordinates import as_regression
from ensemble.sources import in_memory
from ensemble.task import Defaults, Learned, PredictingTask
from ensemble.testing import tasks

KEY = jax.random.key(3)
RUNS = {
    "network": {"model": "tiny", "prior": "normal(1)", "num_epochs": 1},
    "logistic regression": {
        "model": "logistic_regression",
        "prior": "normal(1)",
        "num_epochs": 1,
    },
    **applications.examples("TASKS"),
}
LEARNED = [name for name, run in RUNS.items() if registry.predicts({"method": "hmc"} | run)]


def make(name):
    """A task with what it is checked on."""
    own_data = name in applications.examples("TASKS")
    return tasks.case_of(RUNS[name], None if own_data else make_blobs())


@pytest.fixture(scope="module", params=RUNS)
def task(request):
    return make(request.param)


@pytest.fixture(params=LEARNED)
def learned(request):
    return make(request.param).task


@pytest.mark.parametrize("promise", tasks.PROMISES, ids=str)
def test_it_keeps(task, promise):
    promise.keep(task)


def test_every_task_of_the_registry_is_tested():
    configs = [validated(run) for run in RUNS.values()]
    found = {registry.task_of(one) for one in configs}
    # Some have tests of their own: they need the workdir of another run, or a model in a file.
    others = {"distillation", *applications.examples("OF_TASKS")}
    assert found | others == registry.TASKS.keys()


@pytest.mark.parametrize("name", registry.TASKS)
def test_an_entry_names_functions(name):
    entry = registry.TASKS[name]
    assert callable(registry.load(entry.create))
    assert not entry.restore or callable(registry.load(entry.restore))
    assert entry.restore or entry.why_not_evaluated  # What cannot be loaded is not evaluated.


def test_the_log_likelihood_is_that_of_what_is_predicted(learned):
    variables = learned.init_variables(KEY)
    inputs, targets = learned.dataset.read("train", np.arange(5))
    log_prob, _ = learned.log_likelihood(
        variables, learned.prepare(jnp.asarray(inputs)), jnp.asarray(targets)
    )
    predicted = learned.predict(variables, jnp.asarray(inputs))
    scores = learned.likelihood.example_scores(predicted, jnp.asarray(targets))
    np.testing.assert_allclose(scores["nll"], -log_prob, rtol=1e-5)


def test_what_a_task_says_of_itself_fits_its_likelihood(learned):
    split = in_memory(learned.dataset, "train")
    own = learned.own_log_likelihood(split, mesh_of(1, 2))
    if own is None:
        return
    assert own.num_parts > 0
    assert own.parts in ("examples", "users")
    params = learned.init_variables(KEY)["params"]
    assert own.layout.strip(own.layout.pad(params)).keys() == params.keys()


def test_only_logistic_regression_has_a_known_curvature():
    known = [name for name in LEARNED if as_regression(make(name).task) is not None]
    assert known == ["logistic regression"]


def test_defaults_are_all_of_the_contract():
    """A name that the contract does not ask for would never be called."""
    asked = {name for one in (Learned, PredictingTask) for name in vars(one)}
    assert {name for name in vars(Defaults) if not name.startswith("_")} <= asked
