"""The contract of tasks, by its implementations: what every one of them has to do alike."""

import json

import applications
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_parts import mesh_of, validated
from small_runs import make_blobs

from ensemble import UserError, registry
from ensemble.methods.mcmc.coordinates import as_regression
from ensemble.run.loop import create_task
from ensemble.sources import in_memory
from ensemble.sources.data_forms import recognise
from ensemble.task import Defaults, Learned, PredictingTask, Scored

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
    """A task as the loop makes it, and its configuration."""
    config = validated(RUNS[name])
    own_data = name in applications.examples("TASKS")
    return create_task(config, None if own_data else recognise(make_blobs())), config


@pytest.fixture(params=RUNS)
def task(request):
    return make(request.param)[0]


@pytest.fixture(params=LEARNED)
def learned(request):
    return make(request.param)[0]


def batch_of(task):
    """Five training examples, as the likelihood takes them."""
    inputs, targets = task.dataset.read("train", np.arange(5))
    return inputs, task.prepare(jnp.asarray(inputs)), jnp.asarray(targets)


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


def test_a_description_is_json_and_tells_the_task(task):
    description = task.describe()
    assert json.loads(json.dumps(description)) == description
    assert isinstance(description["name"], str)
    assert isinstance(description["fingerprint"], str)
    assert description["num_examples"] == dict(task.sizes)


def test_sizes_and_scores_agree(task):
    scored = task.scored()
    assert (scored is None) == (not task.sizes)
    if scored is None:
        assert task.num_train_examples == 0
        return
    assert isinstance(scored, Scored)
    assert next(iter(task.sizes)) == "train"
    assert scored.dataset.sizes == task.sizes
    assert task.num_train_examples > 0


def test_the_same_run_has_the_same_description():
    for name in RUNS:
        assert make(name)[0].describe() == make(name)[0].describe()


def test_parameters_have_one_structure(learned):
    variables = learned.init_variables(KEY)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), learned.params_shapes())
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), variables["params"]) == shapes
    drawn = learned.sample_prior(KEY)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), drawn) == shapes
    assert (variables.keys() > {"params"}) == learned.traits.has_state
    prior = learned.log_prior(drawn)
    assert prior.shape == ()
    assert np.isfinite(prior)


def test_log_likelihoods_are_of_single_examples(learned):
    variables = learned.init_variables(KEY)
    raw, inputs, targets = batch_of(learned)
    log_prob, aux = learned.log_likelihood(variables, inputs, targets)
    assert log_prob.shape == (5,)
    assert log_prob.dtype == jnp.float32
    one, _ = learned.log_likelihood(variables, inputs[3:4], targets[3:4])
    np.testing.assert_allclose(one, log_prob[3:4], rtol=1e-5)
    predicted = learned.predict(variables, jnp.asarray(raw))
    for name, array in predicted.items():
        assert array.shape[0] == 5
        np.testing.assert_allclose(array, aux.predicted[name], rtol=1e-5)
    scores = learned.likelihood.example_scores(predicted, targets)
    np.testing.assert_allclose(scores["nll"], -log_prob, rtol=1e-5)


def test_a_restored_task_predicts_alike():
    for name in LEARNED:
        task, config = make(name)
        keys = jax.random.split(KEY, 2)
        variables = jax.tree.map(np.asarray, jax.jit(jax.vmap(task.init_variables))(keys))
        description = json.loads(json.dumps(task.describe()))
        restore = registry.load(registry.TASKS[registry.task_of(config)].restore)
        restored = restore(config.to_dict(), description, variables["params"])
        raw, _, _ = batch_of(task)
        again = restored.without_examples()
        for one in range(2):
            member = jax.tree.map(lambda leaf, k=one: leaf[k], variables)
            expected = task.predict(member, jnp.asarray(raw))
            for found in (restored, again):
                jax.tree.map(
                    np.testing.assert_array_equal, found.predict(member, jnp.asarray(raw)), expected
                )
        assert restored.describe()["name"] == description["name"]
        damaged = jax.tree.map(lambda leaf: leaf[..., None], variables["params"])
        with pytest.raises(UserError, match="other parameters than"):
            restore(config.to_dict(), description, damaged)


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
    known = [name for name in LEARNED if as_regression(make(name)[0]) is not None]
    assert known == ["logistic regression"]


def test_defaults_are_all_of_the_contract():
    """A name that the contract does not ask for would never be called."""
    asked = {name for one in (Learned, PredictingTask) for name in vars(one)}
    assert {name for name in vars(Defaults) if not name.startswith("_")} <= asked
