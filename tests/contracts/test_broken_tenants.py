"""The kit can fail: tenants with one fault each, and the rule that each of them breaks."""

import dataclasses
import itertools
import pathlib
import tempfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_runs import make_blobs

from ensemble import UserError, registry, testing
from ensemble.entries import (
    AugmentationEntry,
    LikelihoodEntry,
    NetworkEntry,
    OptimizerEntry,
    PriorEntry,
    ScheduleEntry,
    ScoreEntry,
    SourceEntry,
    WriterEntry,
)
from ensemble.keys import POSITIVE, Block, Key
from ensemble.likelihoods.bernoulli import Bernoulli
from ensemble.likelihoods.laplace import Laplace
from ensemble.likelihoods.poisson import Poisson
from ensemble.method import Status
from ensemble.methods.members.sgd import SGD
from ensemble.priors.normal_prior import Normal
from ensemble.scoring import combine
from ensemble.scoring.score import Score, _declared, declared, score
from ensemble.scoring.view import ClassView
from ensemble.sources.dataset import Dataset, dataset_from_arrays
from ensemble.tasks import supervised
from ensemble.tasks.supervised import Supervised
from ensemble.testing import (
    augmentations,
    likelihoods,
    methods,
    networks,
    optimizers,
    priors,
    schedules,
    scores,
    sources,
    writers,
)


class Unnormalised(Laplace):
    def standard_log_density(self, parts, z, xp, special):
        return -xp.abs(z)


class UnnormalisedClasses(Bernoulli):
    def class_log_probs(self, outputs):
        return super().class_log_probs(outputs) + 0.1


class OneRow(Laplace):
    def predict(self, params, outputs):
        return {key: one[:1] for key, one in super().predict(params, outputs).items()}


class HeedsNoWeights(Bernoulli):
    def view(self, arrays, targets, member_of=None, weights=None):
        return super().view(arrays, targets, member_of)


class LearnsAnotherUnit(Laplace):
    def log_prob(self, params, outputs, targets):
        return super().log_prob(params, outputs, targets) + np.log(self.units[1])


class MixesTheDead(Bernoulli):
    def mixture_scores(self, predicted, targets, live, over):
        return super().mixture_scores(predicted, targets, live | True, over)


class Forgets(Laplace):
    def describe(self):
        return {**super().describe(), "target_scale": 1.0}


class Overflows(Laplace):
    def parameters(self, params, outputs):
        found = super().parameters(params, outputs)
        return {**found, "scale": jax.numpy.exp(-3 * outputs[..., 1])}


class TwoDensities(Laplace):
    def standard_log_density(self, parts, z, xp, special):
        return super().standard_log_density(parts, z, xp, special) + (0.01 if xp is np else 0)


class AnotherCdf(Laplace):
    def standard_cdf(self, parts, z, xp, special):
        return special.ndtr(z)


class AnotherVariance(Poisson):
    def variance(self, parts, xp, unit=1.0):
        return 1.1 * super().variance(parts, xp, unit)


class AnotherCrps(Laplace):
    def closed_crps(self, arrays, targets, weights=None):
        return np.abs(np.asarray(arrays["loc"]).mean(axis=0) - targets)


LIKELIHOODS = [
    (Unnormalised, "total_probability_is_one"),
    (UnnormalisedClasses, "total_probability_is_one"),
    (OneRow, "there_is_a_row_for_each_example"),
    (HeedsNoWeights, "weights_count_as_members"),
    (LearnsAnotherUnit, "the_loss_is_what_is_learned"),
    (MixesTheDead, "mixtures_on_devices_are_those_of_reports"),
    (Forgets, "a_description_makes_the_same_likelihood"),
    (Overflows, "extreme_outputs_are_finite"),
    (TwoDensities, "both_sides_agree"),
    (AnotherCdf, "the_cdf_and_moments_are_of_the_density"),
    (AnotherVariance, "the_cdf_and_moments_are_of_the_density"),
    (AnotherCrps, "crps_and_quantiles_are_of_the_mixture"),
]


def keep(promises, name, case):
    """Tries one rule by its name."""
    (one,) = [one for one in promises if one.name == name]
    one.keep(case)


def told(kind, name):
    """How a message begins."""
    return rf"^the {kind} 'broken' breaks {name}: [^\n]*\. Look at [^\n]*\.\n."


@pytest.mark.parametrize(("broken", "name"), LIKELIHOODS)
def test_a_broken_likelihood_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.LIKELIHOODS.registered, "broken", LikelihoodEntry(broken))
    case = likelihoods.likelihood_case("broken")
    with pytest.raises(testing.BrokenPromise, match=told("likelihood", name)):
        keep(likelihoods.PROMISES, name, case)


def test_a_key_of_another_name_is_told(monkeypatch):
    block = Block({"widths.much": Key(1.0, "a number", POSITIVE)})
    entry = LikelihoodEntry(Laplace, block)
    monkeypatch.setitem(registry.LIKELIHOODS.registered, "broken", entry)
    with pytest.raises(UserError, match=r"own keys must begin with its name: 'broken\."):
        testing.check_likelihood("broken")


def test_check_likelihood_tries_all_rules(monkeypatch):
    monkeypatch.setitem(registry.LIKELIHOODS.registered, "broken", LikelihoodEntry(Unnormalised))
    targets = np.random.default_rng(0).normal(size=20)
    with pytest.raises(testing.BrokenPromise, match="total_probability_is_one"):
        testing.check_likelihood("broken", targets)
    with pytest.raises(UserError, match="is for classes"):
        testing.check_likelihood("categorical", targets)


class Shifted(Normal):
    def sample(self, rng_key, shape, scale, setting):
        return 0.1 + super().sample(rng_key, shape, scale, setting)


class Wide(Normal):
    def standard_deviation(self, scale, setting):
        return 2 * scale


class Uniform(Normal):
    def sample(self, rng_key, shape, scale, setting):
        most = scale * 3**0.5
        return jax.random.uniform(rng_key, shape, minval=-most, maxval=most)


class Squared(Normal):
    def log_density(self, values, scale, setting):
        return super().log_density(values, scale**2, setting)


class Lopsided(Normal):
    def log_density(self, values, scale, setting):
        return super().log_density(values - 0.01 * scale, scale, setting)


class Root(Normal):
    def log_density(self, values, scale, setting):
        return -jax.numpy.sqrt(jax.numpy.sum(jax.numpy.square(values / scale)))


PRIORS = [
    (Shifted, "draws_have_the_deviation_that_is_said"),
    (Wide, "draws_have_the_deviation_that_is_said"),
    (Uniform, "draws_are_of_the_density"),
    (Squared, "draws_are_of_the_density"),
    (Squared, "the_density_is_symmetric_highest_at_zero_and_scales"),
    (Lopsided, "the_density_is_symmetric_highest_at_zero_and_scales"),
    (Root, "gradients_are_finite"),
]


@pytest.mark.parametrize(("broken", "name"), PRIORS)
def test_a_broken_prior_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.PRIORS.registered, "broken", PriorEntry(broken))
    with pytest.raises(testing.BrokenPromise, match=told("prior", name)):
        keep(priors.PROMISES, name, priors.prior_case("broken"))


def test_check_prior_tries_all_rules(monkeypatch):
    monkeypatch.setitem(registry.PRIORS.registered, "broken", PriorEntry(Root))
    with pytest.raises(testing.BrokenPromise, match="breaks draws_are_of_the_density"):
        testing.check_prior("broken")
    with pytest.raises(UserError, match="has no setting"):
        testing.check_prior("normal", 3)


class Layer(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(self.num_outputs)(inputs)


class OneMore(Layer):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(self.num_outputs + 1)(inputs)


class SameForAll(Layer):
    @nn.compact
    def __call__(self, inputs):
        start = nn.initializers.constant(0.1)
        return nn.Dense(self.num_outputs, kernel_init=start)(inputs)


class OverTheBatch(Layer):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(self.num_outputs)(inputs - inputs.mean(axis=0))


class WithoutEffect(Layer):
    @nn.compact
    def __call__(self, inputs):
        unused = self.param("unused", nn.initializers.ones, (2,))
        return nn.Dense(self.num_outputs)(inputs) + 0 * unused.sum()


NETWORKS = [
    (OneMore, "outputs_have_the_size_that_is_asked_for"),
    (SameForAll, "members_differ_by_their_key"),
    (OverTheBatch, "an_example_is_predicted_alone_as_in_its_batch"),
    (WithoutEffect, "every_parameter_has_a_gradient"),
]


@pytest.mark.parametrize(("broken", "name"), NETWORKS)
def test_a_broken_network_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.NETWORKS.registered, "broken", NetworkEntry(broken))
    with pytest.raises(testing.BrokenPromise, match=told("network", name)):
        keep(networks.PROMISES, name, networks.NetworkCase("broken", (5,), {}))


@pytest.mark.check
def test_check_network_tries_all_rules(monkeypatch):
    monkeypatch.setitem(registry.NETWORKS.registered, "broken", NetworkEntry(OverTheBatch))
    with pytest.raises(testing.BrokenPromise, match="breaks an_example_is_predicted_alone"):
        testing.check_network("broken")
    testing.check_network("mlp", (3,), widths="8")
    with pytest.raises(UserError, match="is not a known model"):
        testing.check_network("nobody's")


def errors(view):
    """Whether each row is wrong."""
    return 1 - view.hits


class Narrow(combine.Mean):
    def interval(self, terms, level=0.95):
        middle = self.value(terms)
        return middle - 1e-4 * level, middle + 1e-4 * level


class Beside(combine.Mean):
    def interval(self, terms, level=0.95):
        return 2.0, 2.0 + level


class Uncounted(combine.Mean):
    def value(self, terms, counts=None):
        return super().value(terms)


SCORES = [
    (lambda view: errors(view)[:-1], {}, "it_has_a_term_for_each_row_and_one_value"),
    (errors, {"better": "smaller"}, "it_has_a_term_for_each_row_and_one_value"),
    (lambda view: np.cumsum(view.hits), {}, "the_order_of_rows_does_not_count"),
    (errors, {"combine": Uncounted()}, "repeated_rows_count_as_often"),
    (errors, {"combine": Beside()}, "an_interval_holds_the_value"),
    (errors, {"combine": Narrow()}, "intervals_cover"),
    (errors, {"better": "higher"}, "better_is_what_is_said"),
]


@pytest.mark.parametrize(("terms", "how", "name"), SCORES)
def test_a_broken_score_is_told_by_its_rule(terms, how, name):
    how = {"combine": combine.Mean(0, 1), **how}
    case = scores.ScoreCase(
        "broken", Score("broken", "broken", ClassView, terms, **how), "bernoulli"
    )
    with pytest.raises(testing.BrokenPromise, match=told("score", name)):
        keep(scores.PROMISES, name, case)


def test_check_score_finds_registered_scores_and_those_of_the_folder(monkeypatch):
    declared()  # All of the folder.
    kept = [*_declared]
    how = {"of": ClassView, "title": "errors", "combine": combine.Mean(0, 1)}
    entry = ScoreEntry(score(**how, name="broken", better="higher")(errors))
    monkeypatch.setattr("ensemble.scoring.score._declared", [*_declared])
    _declared[:] = kept  # Other tests count them.
    monkeypatch.setitem(registry.SCORES.registered, "broken", entry)
    with pytest.raises(testing.BrokenPromise, match="breaks better_is_what_is_said"):
        testing.check_score("broken")
    testing.check_score("accuracy")
    with pytest.raises(UserError, match="is no score of such predictions"):
        testing.check_score("nobody's")


def _arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {"inputs": rng.normal(size=(60, 2)), "targets": rng.normal(size=60)}


class Reversed(Dataset):
    def read(self, split, indices):
        found = super().read(split, indices)
        return found if isinstance(indices, slice) else found._replace(inputs=found.inputs[::-1])


def _reversed(name, request):
    whole = dataset_from_arrays(_arrays(), name)
    fields = {one.name: getattr(whole, one.name) for one in dataclasses.fields(whole)}
    return Reversed(**fields)


def _numbers_with_classes(name, request):
    return dataclasses.replace(dataset_from_arrays(_arrays(), name), class_names=("a", "b"))


def _another_each_time():
    seeds = iter(range(10))
    return lambda name, request: dataset_from_arrays(_arrays(next(seeds)), name)


SOURCES = [
    (_numbers_with_classes, "it_says_what_its_examples_are"),
    (_reversed, "examples_are_read_by_their_indices"),
    (_another_each_time(), "the_same_data_are_loaded_again"),
]


@pytest.mark.parametrize(("broken", "name"), SOURCES, ids=[name for _, name in SOURCES])
def test_a_broken_source_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.SOURCES.registered, "broken", SourceEntry(broken))
    with pytest.raises(testing.BrokenPromise, match=told("source", name)):
        testing.check_source("broken")


def test_every_rule_of_sources_has_a_broken_one():
    assert [name for _, name in SOURCES] == [one.name for one in sources.PROMISES]


FEW = {"model": "logistic_regression", "ensemble_size": 2, "num_epochs": 2, "log_every_steps": 4}
FEW |= {"batch_size": 16, "num_devices": 2}


class Short(SGD):
    def finished(self, state):
        return state.step >= self.num_steps - 4


class Silent(SGD):
    def status(self, info_or_state):
        return {0: super().status(info_or_state)[0]}


class Forgetful(SGD):
    def from_host(self, rng_key, arrays, counters):
        state = super().from_host(rng_key, arrays, counters)
        params = jax.tree.map(lambda leaf: leaf + 1e-3, state.members.params)
        return state.replace(members=state.members.replace(params=params))


class Homebound(SGD):
    def from_host(self, rng_key, arrays, counters):
        if self.config.num_devices == 1:
            counters = counters | {"step": counters["step"] - 1}
        return super().from_host(rng_key, arrays, counters)


class Lenient(SGD):
    def check_resumable(self, counters, where):
        return None


class Deaf(SGD):
    def advance(self, state, limit=None):
        return super().advance(state)


METHODS = [
    (Short, "chunks_follow_each_other_to_the_goal"),
    (Silent, "what_a_chunk_shows_is_finite_and_of_its_members"),
    (Forgetful, "a_checkpoint_goes_on_to_the_same_bits"),
    (Homebound, "a_checkpoint_comes_back_on_other_devices"),
    (Lenient, "a_run_that_has_gone_further_is_not_resumed"),
    (Deaf, "a_limit_cuts_chunks_short_and_changes_nothing"),
]


@pytest.mark.parametrize(("broken", "name"), METHODS, ids=[name for _, name in METHODS])
def test_a_broken_method_is_told_by_its_rule(broken, name, monkeypatch):
    entry = dataclasses.replace(registry.METHODS["sgd"], factory=broken)
    monkeypatch.setitem(registry.METHODS.registered, "broken", entry)
    with pytest.raises(testing.BrokenPromise, match=told("method", name)):
        testing.check_method("broken", FEW, make_blobs())


def test_check_method_takes_a_method_that_keeps_its_promises():
    testing.check_method("sgd", FEW, make_blobs())
    inputs = make_blobs()["inputs"]
    numbers = {"inputs": inputs, "targets": inputs.sum(axis=1)}
    network = {"model": "mlp", "mlp.widths": "8"}
    testing.check_method("sgd", FEW | network, numbers)  # The likelihood is that of numbers.


class Content(SGD):
    """Ends after the first epoch."""

    def finished(self, state):
        return state.step >= self.steps_per_epoch

    def __init__(self, config, task):
        super().__init__(config, task)
        self.may_end_early = True


def test_check_method_takes_methods_that_may_end_early(monkeypatch):
    entry = dataclasses.replace(registry.METHODS["sgd"], factory=Content)
    monkeypatch.setitem(registry.METHODS.registered, "content", entry)
    testing.check_method("content", FEW, make_blobs())


@pytest.mark.check
def test_check_method_takes_members_that_stop_early():
    few = {**FEW, "num_epochs": 20, "learning_rate": 0.8, "early_stopping_epochs": 1}
    with tempfile.TemporaryDirectory() as folder:
        case = methods.case_of({**few, "method": "sgd"}, make_blobs(), folder)
    assert Status.STOPPED_EARLY in case.method.status(case.state).values()
    for one in methods.PROMISES:
        one.keep(case)


class Nameless(Supervised):
    def describe(self):
        return super().describe() | {"fingerprint": None}


class Uncounted(Supervised):
    @property
    def num_train_examples(self):
        return 0


class Improper(Supervised):
    def log_prior(self, params):
        return jnp.inf * super().log_prior(params)


class Mixing(Supervised):
    def log_likelihood(self, variables, inputs, targets, train=False, rng_key=None):
        found, aux = super().log_likelihood(variables, inputs, targets, train, rng_key)
        return found - found.mean(), aux


TASKS = [
    (Nameless, "a_description_is_json_and_tells_the_task"),
    (Uncounted, "sizes_and_scores_agree"),
    (Improper, "parameters_have_one_structure"),
    (Mixing, "log_likelihoods_are_of_single_examples"),
]


@pytest.mark.parametrize(("broken", "name"), TASKS, ids=[name for _, name in TASKS])
def test_a_broken_task_is_told_by_its_rule(broken, name, monkeypatch):
    def create(config, data):
        made = supervised.create(config, data)
        fields = {one.name: getattr(made, one.name) for one in dataclasses.fields(made) if one.init}
        return broken(**fields)

    entry = dataclasses.replace(registry.TASKS["supervised"], create=create)
    monkeypatch.setattr(
        registry.TASKS, "built_in", {**registry.TASKS.built_in, "supervised": entry}
    )
    with pytest.raises(testing.BrokenPromise, match=f"the task 'supervised' breaks {name}: "):
        testing.check_task({**FEW, "prior": "normal(1)"}, make_blobs())


class Elsewhere:
    """A task that predicts something else."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        return getattr(self._task, name)

    def predict(self, *arguments):
        return jax.tree.map(lambda leaf: leaf + 1e-3, self._task.predict(*arguments))


def test_a_task_that_is_restored_as_another_is_told(monkeypatch):
    def restore(*arguments):
        return Elsewhere(supervised.restore(*arguments))

    entry = dataclasses.replace(registry.TASKS["supervised"], restore=restore)
    monkeypatch.setattr(
        registry.TASKS, "built_in", {**registry.TASKS.built_in, "supervised": entry}
    )
    with pytest.raises(testing.BrokenPromise, match="breaks a_restored_task_predicts_alike"):
        testing.check_task({**FEW, "prior": "normal(1)"}, make_blobs())


def test_check_task_takes_a_task_that_keeps_its_promises():
    testing.check_task({**FEW, "prior": "normal(1)"}, make_blobs())


def sgd(learning_rate, weight_decay):
    """As the built-in one."""
    decay = optax.add_decayed_weights(weight_decay)
    return optax.chain(decay, optax.sgd(learning_rate, momentum=0.9))


def stateless(change):
    """What is done to the updates, without a state."""
    return optax.stateless(lambda updates, params: jax.tree.map(change, updates))


def halves(config, rate, decay):
    return optax.chain(sgd(rate, decay), stateless(lambda one: one.astype(jnp.float16)))


def uphill(config, rate, decay):
    return optax.chain(sgd(rate, decay), optax.scale(-1))


def restless(config, rate, decay):
    return optax.chain(sgd(rate, decay), stateless(lambda one: one + 1e-3))


def unruly(config, rate, decay):
    return sgd(0.02, decay)


def greedy(config, rate, decay):
    return optax.sgd(rate)


def choosy(config, rate, decay):
    return sgd(rate, decay) if decay else optax.sgd(rate)


_STEPS = itertools.count()


def worn_out(config, rate, decay):
    slower = 0.9 ** next(_STEPS)
    return sgd(lambda step: slower * rate(step), decay)


@jax.custom_batching.custom_vmap
def mixed(one):
    """Of members that are mapped side by side, the mean of all."""
    return one


@mixed.def_vmap
def _(axis_size, in_batched, one):
    return jnp.broadcast_to(one.mean(axis=0), one.shape), True


def sociable(config, rate, decay):
    return optax.chain(sgd(rate, decay), stateless(mixed))


OPTIMIZERS = [
    (halves, "steps_have_the_form_of_parameters"),
    (uphill, "it_descends"),
    (restless, "without_a_gradient_nothing_moves"),
    (unruly, "the_learning_rate_is_heeded"),
    (greedy, "a_weight_decay_that_is_traced_shrinks_parameters"),
    (choosy, "a_weight_decay_that_is_traced_shrinks_parameters"),
    (sociable, "members_side_by_side_move_as_each_alone"),
    (worn_out, "it_takes_the_same_steps_again"),
]


@pytest.mark.parametrize(("broken", "name"), OPTIMIZERS)
def test_a_broken_optimizer_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.OPTIMIZERS.registered, "broken", OptimizerEntry(broken))
    case = optimizers.OptimizerCase("broken")
    with pytest.raises(testing.BrokenPromise, match=told("optimizer", name)):
        keep(optimizers.PROMISES, name, case)


@pytest.mark.check
def test_check_optimizer_takes_one_that_keeps_its_promises(monkeypatch):
    def lion(config, rate, decay):
        return optax.lion(rate, weight_decay=decay)

    monkeypatch.setitem(registry.OPTIMIZERS.registered, "lion", OptimizerEntry(lion))
    testing.check_optimizer("lion")
    testing.check_optimizer("sgd", 0.1, momentum=0.5)
    monkeypatch.setitem(registry.OPTIMIZERS.registered, "broken", OptimizerEntry(uphill))
    with pytest.raises(testing.BrokenPromise, match="breaks it_descends"):
        testing.check_optimizer("broken")
    with pytest.raises(UserError, match="there is no optimizer 'nobodys'"):
        testing.check_optimizer("nobodys")


def negative(config, num_steps):
    return lambda step: config.learning_rate * (1 - 2 * step / num_steps)


def divided(config, num_steps):
    return lambda step: config.learning_rate * jnp.minimum(1, step / jnp.float32(num_steps // 10))


def fixed(config, num_steps):
    return optax.constant_schedule(0.01)


def by_type(config, num_steps):
    return lambda step: config.learning_rate * (1 if isinstance(step, int) else 0.5)


def by_branch(config, num_steps):
    return lambda step: config.learning_rate if step < num_steps else 0.0


_SCHEDULES = itertools.count()


def tired(config, num_steps):
    return optax.constant_schedule(config.learning_rate * 0.999 ** next(_SCHEDULES))


SCHEDULES = [
    (negative, "rates_are_finite_and_not_negative"),
    (divided, "rates_are_finite_and_not_negative"),
    (fixed, "the_highest_rate_is_that_of_the_configuration"),
    (by_type, "a_traced_step_has_the_same_rate"),
    (by_branch, "a_traced_step_has_the_same_rate"),
    (tired, "it_has_the_same_rates_again"),
]


@pytest.mark.parametrize(("broken", "name"), SCHEDULES)
def test_a_broken_schedule_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.SCHEDULES.registered, "broken", ScheduleEntry(broken))
    case = schedules.ScheduleCase("broken")
    with pytest.raises(testing.BrokenPromise, match=told("schedule", name)):
        keep(schedules.PROMISES, name, case)


def test_check_schedule_takes_one_that_keeps_its_promises(monkeypatch):
    testing.check_schedule("warmup_cosine", warmup_fraction=0.3)
    monkeypatch.setitem(registry.SCHEDULES.registered, "broken", ScheduleEntry(by_branch))
    with pytest.raises(testing.BrokenPromise, match="breaks a_traced_step_has_the_same_rate"):
        testing.check_schedule("broken", learning_rate=0.1)
    with pytest.raises(UserError, match="there is no schedule 'nobodys'"):
        testing.check_schedule("nobodys")


def flattened(rng_key, inputs):
    return inputs.reshape(1, -1)


def branching(rng_key, inputs):
    return inputs if inputs.mean() > 0 else -inputs


def standardised(rng_key, inputs):
    inputs = inputs.astype(jnp.float32)
    return (inputs - inputs.mean()) / inputs.std()


def by_numpy(rng_key, inputs):
    return inputs + np.float32(np.random.default_rng().normal())


AUGMENTATIONS = [
    (flattened, "an_example_keeps_its_form"),
    (branching, "an_example_keeps_its_form"),
    (standardised, "values_are_finite"),
    (by_numpy, "a_key_gives_the_same_again"),
]


@pytest.mark.parametrize(("broken", "name"), AUGMENTATIONS)
def test_a_broken_augmentation_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.AUGMENTATIONS.registered, "broken", AugmentationEntry(broken))
    with pytest.raises(testing.BrokenPromise, match=told("augmentation", name)):
        testing.check_augmentation("broken")


class Rows:
    """A writer that keeps rows in a file, whose faults are in classes of its own."""

    file = "rows.txt"

    def __init__(self, config, workdir, step):
        self._place, self._rows = workdir and pathlib.Path(workdir, self.file), []

    def __call__(self, step, metrics):
        self._rows.append(f"{step} {metrics}")

    def close(self):
        if self._place:
            self._place.write_text("\n".join(self._rows))


class Whole(Rows):
    def __call__(self, step, metrics):
        super().__call__(step, {name: int(value) for name, value in metrics.items()})


class Late(Rows):
    def __init__(self, config, workdir, step):
        self._arguments = config, workdir, step

    def __call__(self, step, metrics):
        if not hasattr(self, "_rows"):
            super().__init__(*self._arguments)
        super().__call__(step, metrics)


class Afresh(Rows):
    def __init__(self, config, workdir, step):
        if workdir:
            pathlib.Path(workdir, self.file).touch(exist_ok=False)
        super().__init__(config, workdir, step)


class Homeless(Rows):
    def __init__(self, config, workdir, step):
        super().__init__(config, str(pathlib.Path(workdir)), step)


class Rude(Rows):
    file = "metrics.jsonl"


WRITERS = [
    (lambda *_: 5, "it_takes_the_metrics_of_a_run"),
    (Whole, "it_takes_the_metrics_of_a_run"),
    (Late, "it_is_closed_before_anything_came"),
    (Afresh, "a_run_that_goes_on_opens_it_again"),
    (Homeless, "without_a_workdir_it_works_or_says_so"),
    (Rude, "files_of_the_run_stay_as_they_are"),
]


@pytest.mark.parametrize(("broken", "name"), WRITERS)
def test_a_broken_writer_is_told_by_its_rule(broken, name, monkeypatch):
    monkeypatch.setitem(registry.WRITERS.registered, "broken", WriterEntry(broken))
    with pytest.raises(testing.BrokenPromise, match=told("writer", name)):
        testing.check_writer("broken")


def test_check_writer_takes_those_that_keep_their_promises(monkeypatch):
    def with_workdir(config, workdir, step):
        if workdir is None:
            raise UserError("the writer 'rows' needs a workdir; give one")
        return Rows(config, workdir, step)

    for factory in (Rows, with_workdir, lambda *_: lambda step, metrics: None):
        monkeypatch.setitem(registry.WRITERS.registered, "mine", WriterEntry(factory))
        testing.check_writer("mine")


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (OPTIMIZERS, optimizers),
        (SCHEDULES, schedules),
        (AUGMENTATIONS, augmentations),
        (WRITERS, writers),
    ],
)
def test_every_rule_of_what_a_run_is_made_of_has_a_broken_one(broken, kind):
    assert {name for _, name in broken} == {one.name for one in kind.PROMISES}
