"""The method `sgd`: the same members on any devices, failures, early stopping."""

import collections
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from run_parts import validated

from ensemble import UserError, networks, notes
from ensemble.method import Status
from ensemble.methods.members import batching as batching_module
from ensemble.methods.members import engine as engine_module
from ensemble.methods.members.sgd import SGD
from ensemble.priors import parse_prior
from ensemble.sharding.placement import Placement
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

KEY = jax.random.key(0)
PAIRS = [*itertools.permutations([1, 2, 8], 2)]


def make_method(blobs, model="tiny", **overrides):
    config = validated(small_config(model=model, **overrides))
    dataset = dataset_from_arrays(blobs, hold_out=config.hold_out)
    task = classification(
        dataset, networks.create(config.model, len(dataset.class_names)), parse_prior(config.prior)
    )
    return SGD(config, task)


def run(method, state=None):
    state = method.init(KEY) if state is None else state
    infos = []
    while not method.finished(state):
        state, info = method.advance(state)
        infos.append(info)
    return state, infos


def scored(method, state):
    return method.predict_split(state, "test").arrays["log_probs"]


def slow(*values):
    """Parameters of which `make check` tests more."""
    return pytest.param(*values, marks=pytest.mark.check)


@pytest.mark.parametrize(
    ("ensemble_size", "devices"),
    # Three members of one device, on two, which do not divide them, and on eight, which they share:
    # `test_placement.py` has all other numbers, and `make check` trains some of them.
    [
        (3, (1, 2, 8)),
        slow(1, (1, 2, 4, 8)),
        pytest.param(8, (1, 2, 4, 8), marks=pytest.mark.soak),
    ],
)
def test_the_number_of_devices_changes_nothing(blobs, ensemble_size, devices):
    results = {}
    for num_devices in devices:
        method = make_method(
            blobs,
            ensemble_size=ensemble_size,
            num_devices=num_devices,
            num_epochs=None,
            num_steps=10,
            class_weights="1,2,0.5",
        )
        state, infos = run(method)
        results[num_devices] = scored(method, state), method.scalars(infos[-1])
    reference, scalars = results.pop(1)
    assert reference.shape[0] == ensemble_size
    for log_probs, others in results.values():
        np.testing.assert_allclose(log_probs, reference, atol=1e-4)
        assert others.keys() == scalars.keys()
        for name, value in others.items():
            np.testing.assert_allclose(value, scalars[name], rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("ensemble_size", [slow(2), 3])
def test_independent_batches_depend_on_the_member_alone(blobs, ensemble_size):
    results = [
        scored(method, run(method)[0])
        for method in (
            make_method(blobs, ensemble_size=size, num_devices=devices, batching="independent")
            for size, devices in [(ensemble_size, 1), (ensemble_size, 8), (5, 2)]
        )
    ]
    np.testing.assert_allclose(results[0], results[1], atol=1e-3)
    np.testing.assert_allclose(results[0], results[2][:ensemble_size], atol=1e-3)


@pytest.mark.check
def test_shared_and_independent_batches_differ(blobs):
    shared, independent = (
        scored(method, run(method)[0])
        for method in (make_method(blobs, batching=b) for b in ("shared", "independent"))
    )
    assert np.abs(shared - independent).max() > 1e-3


@pytest.mark.check
def test_a_member_does_not_depend_on_the_size_of_its_ensemble(blobs):
    small, large = (make_method(blobs, ensemble_size=size) for size in (2, 5))
    np.testing.assert_allclose(
        scored(small, run(small)[0]), scored(large, run(large)[0])[:2], atol=1e-4
    )


def test_one_member_is_the_plain_single_model(blobs):
    """Against a loop of flax and optax alone, without any of our code but the batch order."""
    import optax

    from ensemble.sources.batches import epoch_batches, normalise

    method = make_method(blobs, ensemble_size=1, num_devices=1)
    dataset = method.task.dataset
    train = dataset.splits["train"]
    model = networks.create("tiny", 3).module
    params = jax.jit(model.init)(jax.random.fold_in(KEY, 0), jnp.ones((1, 6)))["params"]
    optimizer = optax.sgd(0.1, momentum=0.9)
    opt_state = optimizer.init(params)

    @jax.jit
    def step(params, opt_state, inputs, labels):
        updates, opt_state = optimizer.update(
            jax.grad(loss_fn)(params, inputs, labels), opt_state, params
        )
        return optax.apply_updates(params, updates), opt_state

    def loss_fn(params, inputs, labels):
        logits = model.apply({"params": params}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    for epoch in range(3):
        for index, mask in zip(*epoch_batches(len(train.targets), 29, 0, epoch), strict=True):
            index = index[mask > 0]
            inputs = normalise(train.inputs[index], dataset.shift, dataset.scale)
            params, opt_state = step(params, opt_state, inputs, train.targets[index])
    test = normalise(dataset.splits["test"].inputs, dataset.shift, dataset.scale)
    expected = jax.nn.log_softmax(model.apply({"params": params}, test))
    np.testing.assert_allclose(scored(method, run(method)[0])[0], expected, atol=1e-4)


def test_the_step_is_traced_once(blobs):
    """Not per step, not for the last, shorter batch, not for the first chunk, not on resume."""
    traces = collections.Counter()

    class Counting(nn.Module):
        num_classes: int

        @nn.compact
        def __call__(self, x):
            traces[x.shape[0]] += 1
            return nn.Dense(self.num_classes)(x)

    networks.register("counting", Counting)
    method = make_method(blobs, "counting", num_devices=8, ensemble_size=8)
    state, _ = method.advance(method.init(KEY))
    counted = dict(traces)
    state, _ = run(method, state)
    assert dict(traces) == counted
    assert counted[29] == 1
    assert state.step == method.num_steps


@pytest.fixture
def poisoned(monkeypatch):
    """Makes member 1's parameters explode after a few steps."""
    from ensemble.methods.members import member_programs

    original = member_programs.update_member

    def update(state, gradients, loss, model_state):
        key = jax.random.key_data(jax.random.fold_in(KEY, 1))
        is_one = jnp.all(jax.random.key_data(state.rng_key) == key)
        factor = jnp.where(is_one & (state.step >= 3), jnp.inf, 1.0)
        gradients = jax.tree.map(lambda g: g * factor, gradients)
        return original(state, gradients, loss, model_state)

    monkeypatch.setattr(member_programs, "update_member", update)


@pytest.mark.parametrize("num_devices", [slow(1), slow(4), 8])
def test_a_failing_member_is_frozen_and_poisons_nobody(blobs, poisoned, num_devices, monkeypatch):
    method = make_method(blobs, ensemble_size=4, num_devices=num_devices)
    state, infos = run(method)
    assert method.status(state) == {
        0: Status.ACTIVE,
        1: Status.NON_FINITE,
        2: Status.ACTIVE,
        3: Status.ACTIVE,
    }
    log_probs = scored(method, state)
    assert np.isfinite(log_probs).all()
    for info in infos:  # Also of the chunk in which it failed.
        assert np.isfinite(method.scalars(info)["train/ensemble/nll"])
    monkeypatch.undo()
    healthy = make_method(blobs, ensemble_size=4, num_devices=num_devices)
    expected = scored(healthy, run(healthy)[0])
    np.testing.assert_allclose(log_probs[[0, 2, 3]], expected[[0, 2, 3]], atol=1e-4)


@pytest.mark.check
def test_the_train_metrics_of_the_ensemble_are_of_the_mean_of_softmax(blobs):
    """The first chunk is one step, on the initial parameters: recomputed here on the host."""
    from ensemble import metrics

    method = make_method(blobs, ensemble_size=5, num_devices=4)
    state = method.init(KEY)
    examples, mask = method.engine.batches._epoch(0, method.indices)
    train = method.task.dataset.splits["train"]
    log_probs = method.predict_split(state, "train").arrays["log_probs"][:, examples[0]]
    labels = train.targets[examples[0]]
    _, info = method.advance(state)
    scalars = method.scalars(info)
    assert mask[0].all()
    mean = metrics.ensemble_log_probs(log_probs)
    np.testing.assert_allclose(scalars["train/ensemble/nll"], metrics.nll(mean, labels), rtol=1e-5)
    np.testing.assert_allclose(
        scalars["train/ensemble/accuracy"], metrics.accuracy(mean, labels), rtol=1e-5
    )
    for k in range(5):
        np.testing.assert_allclose(
            scalars[f"train/member_{k:02d}/loss"], metrics.nll(log_probs[k], labels), rtol=1e-5
        )


@pytest.mark.check
def test_early_stopping_keeps_the_best_parameters(blobs):
    method = make_method(
        blobs, num_epochs=40, early_stopping_epochs=2, learning_rate=0.8, ensemble_size=3
    )
    validation = method.task.dataset.splits["validation"]
    state = method.init(KEY)
    history = []
    while not method.finished(state):
        state, _ = method.advance(state)
        if state.step % method.steps_per_epoch == 0:
            from ensemble import metrics

            programs = method.engine.programs
            log_probs = programs.predict(state.members.variables, validation.inputs)["log_probs"]
            history.append([metrics.nll(p, validation.targets) for p in log_probs])
    assert set(method.status(state).values()) == {Status.STOPPED_EARLY}
    best = [
        metrics.nll(p, validation.targets)
        for p in method.predict_split(state, "validation").arrays["log_probs"]
    ]
    np.testing.assert_allclose(best, np.min(history, axis=0), rtol=1e-5)
    assert (np.array(history)[-1] > best).any()


def test_early_stopping_needs_a_validation_split_whoever_made_it(blobs):
    with pytest.raises(UserError, match=r"early_stopping_epochs=2 needs a validation split: give"):
        make_method(blobs, early_stopping_epochs=2, hold_out=False)


@pytest.mark.check
def test_the_prior_pulls_parameters_towards_zero(blobs):
    def norm(**overrides):
        method = make_method(blobs, **overrides)
        state, _ = run(method)
        params = method.fitted(state, method.indices, None).sets["params"]
        return sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves(params))

    assert norm(prior="normal(0.05)") < 0.5 * norm()


@pytest.mark.check
def test_the_prior_is_added_once_whatever_the_devices(blobs):
    results = [
        scored(method, run(method)[0])
        for method in (
            make_method(blobs, ensemble_size=1, num_devices=d, prior="normal(0.2)") for d in (1, 8)
        )
    ]
    np.testing.assert_allclose(*results, atol=1e-4)


def grown(before, after, state):
    """A state of `before` with the members that it lacks to those of `after`, level or stopped."""
    arrays, counters = before.to_host(state)
    new_members = after.new_members(counters)
    joined = after.joined(arrays, counters, new_members.to_host(run(new_members)[0])[0])
    return after.from_host(KEY, *joined)


@pytest.mark.check
def test_growth_gives_the_members_of_a_fresh_run(blobs):
    small, large = (make_method(blobs, ensemble_size=size) for size in (3, 5))
    first, _ = run(small)
    new_members = large.new_members(small.to_host(first)[1])
    assert new_members.indices == (3, 4)
    assert new_members.num_steps == first.step
    _, infos = run(new_members)
    assert not any("member_00" in tag for tag in new_members.scalars(infos[-1]))
    arrays, counters = small.to_host(first)
    assert large.joined(arrays, counters, arrays)[1] == {**counters, "num_members": 6}
    state = grown(small, large, first)
    assert large.finished(state)
    fresh = make_method(blobs, ensemble_size=5)
    np.testing.assert_allclose(scored(large, state), scored(fresh, run(fresh)[0]), atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_new_members_follow_the_schedule_of_the_whole_run(blobs, schedule):
    """The others are half way; after the new members have joined, all go on to the goal."""
    small, large = (make_method(blobs, ensemble_size=s, schedule=schedule) for s in (2, 3))
    state = small.init(KEY)
    while state.step < small.num_steps // 2:
        state, _ = small.advance(state)
    state, _ = run(large, grown(small, large, state))
    fresh = make_method(blobs, ensemble_size=3, schedule=schedule)
    np.testing.assert_allclose(scored(large, state), scored(fresh, run(fresh)[0]), atol=1e-4)


@pytest.mark.check
@pytest.mark.parametrize(
    "devices", [(8, 2), *map(slow, [pair for pair in PAIRS if pair != (8, 2)])]
)
def test_a_state_moves_between_devices(blobs, devices):
    before, after = (make_method(blobs, ensemble_size=4, num_devices=d) for d in devices)
    state = before.init(KEY)
    for _ in range(4):
        state, _ = before.advance(state)
    moved, _ = run(after, after.from_host(KEY, *before.to_host(state)))
    stayed, _ = run(before, state)
    np.testing.assert_allclose(scored(after, moved), scored(before, stayed), atol=1e-4)


@pytest.mark.check
def test_a_round_trip_through_the_host_changes_no_bit(blobs):
    method = make_method(blobs, early_stopping_epochs=2, optimizer="adam", num_epochs=4)
    state = method.init(KEY)
    for _ in range(5):
        state, _ = method.advance(state)
    arrays, counters = method.to_host(state)
    straight, _ = run(method, state)
    resumed, _ = run(method, method.from_host(KEY, arrays, counters))
    jax.tree.map(
        np.testing.assert_array_equal, method.to_host(straight)[0], method.to_host(resumed)[0]
    )


@pytest.mark.check
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        ("sgd", "constant"),
        ("sgd", "cosine"),
        ("sgd", "warmup_cosine"),
        ("adam", "cosine"),
        ("adamw", "warmup_cosine"),
    ],
)
def test_every_optimiser_and_schedule_learns(blobs, optimizer, schedule):
    rate = 0.1 if optimizer == "sgd" else 0.02
    method = make_method(
        blobs,
        optimizer=optimizer,
        schedule=schedule,
        learning_rate=rate,
        weight_decay=1e-3,
        num_epochs=8,
    )
    _, infos = run(method)
    first, last = (method.scalars(info)["train/member_00/loss"] for info in (infos[0], infos[-1]))
    assert last < 0.7 * first


class WithStatistics(nn.Module):
    """Batch statistics and dropout, as a user's own module may have."""

    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(16)(x))
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(x))
        return nn.Dense(self.num_classes)(x)


@pytest.mark.check
def test_batch_statistics_and_dropout_are_each_member_s_own(blobs):
    networks.register("statistics", WithStatistics)
    results = []
    for num_devices in (1, 8):
        method = make_method(blobs, "statistics", ensemble_size=2, num_devices=num_devices)
        state, _ = run(method)
        results.append(scored(method, state))
        variables = method.fitted(state, method.indices, None).sets
        means = variables["batch_stats"]["BatchNorm_0"]["mean"]
        assert not np.allclose(means[0], means[1])
    np.testing.assert_allclose(*results, atol=1e-4)


class WithStreams(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, train: bool):
        if train:
            x = x + 0.1 * jax.random.normal(self.make_rng("augment"), x.shape)
            x = x * jax.random.uniform(self.make_rng("scales"), (len(x), 1), minval=0.9)
        x = nn.Dropout(0.2, deterministic=not train)(nn.relu(nn.Dense(16)(x)))
        return nn.Dense(self.num_classes)(x)


@pytest.mark.check
def test_streams_of_a_module_are_each_member_s_own_on_any_devices(blobs):
    networks.register("streams", WithStreams)
    results = []
    for num_devices in (1, 8):
        method = make_method(blobs, "streams", ensemble_size=2, num_devices=num_devices)
        assert method.task.traits.is_random
        results.append(scored(method, run(method)[0]))
    np.testing.assert_allclose(*results, atol=1e-4)
    assert not np.allclose(*results[0])


@pytest.mark.check
def test_early_stopping_looks_at_the_last_steps_of_a_run_too(blobs):
    """Fewer steps than an epoch: the best variables must not be the initial ones."""
    stopping = make_method(blobs, num_epochs=None, num_steps=3, early_stopping_epochs=2)
    plain = make_method(blobs, num_epochs=None, num_steps=3)
    np.testing.assert_array_equal(scored(stopping, run(stopping)[0]), scored(plain, run(plain)[0]))


@pytest.mark.check
def test_no_key_serves_two_purposes(blobs):
    """Members, shared augmentation, a member's dropout and its augmentation: all apart."""
    from ensemble.methods.members.member import Stream

    method = make_method(blobs, ensemble_size=8)
    members = method.init(KEY).members
    keys = [jax.random.fold_in(KEY, k) for k in range(8)]
    keys.append(jax.random.fold_in(KEY, 2**32 - 1))
    first = jax.tree.map(lambda leaf: leaf[0], members)
    keys += [first.step_key(stream, step) for stream in Stream for step in range(5)]
    data = {tuple(np.asarray(jax.random.key_data(key))) for key in keys}
    assert len(data) == len(keys)


@pytest.mark.check
@pytest.mark.parametrize("batching", ["shared", "independent"])
def test_steps_of_one_program_are_those_of_many(blobs, batching, monkeypatch):
    """Also where they are of several epochs, and where a chunk ends within a program."""
    methods, sizes = [], []
    for most in (64, 1):
        monkeypatch.setattr(batching_module, "_MAX_AT_ONCE", most)
        overrides = {"batching": batching, "num_epochs": 4, "num_devices": 1}
        every = {"eval_every_epochs": 3, "checkpoint_every_epochs": 3, "log_every_steps": 7}
        methods.append(make_method(blobs, **overrides, **every))
        sizes.append(methods[-1].engine.steps_at_once)
    together, apart = methods
    states, infos = zip(*(run(method) for method in methods), strict=True)
    assert sizes == [7, 1]
    assert [info.step for info in infos[0]] == [info.step for info in infos[1]]
    for ours, theirs in zip(*infos, strict=True):
        expected = apart.scalars(theirs)
        for name, value in together.scalars(ours).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(scored(together, states[0]), scored(apart, states[1]), atol=1e-4)


class Convolving(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(2, (3,))(x[..., None]))
        return nn.Dense(self.num_classes)(x.reshape(len(x), -1))


@pytest.mark.parametrize(
    ("batching", "ensemble_size"), [("shared", 3), slow("shared", 2), ("independent", 3)]
)
def test_rows_on_accelerators_give_the_members_of_batches_that_are_sent(
    blobs, batching, ensemble_size, monkeypatch
):
    """Convolutions too take several steps at once there; on two devices, which share members."""
    monkeypatch.setattr(Placement, "platform", "tpu")
    networks.register("convolving", Convolving)
    overrides = {"model": "convolving", "batching": batching, "ensemble_size": ensemble_size}
    overrides |= {"num_epochs": 2, "num_devices": 4 if ensemble_size == 2 else 2}
    overrides |= {"class_weights": "1,2,0.5", "log_every_steps": 3}
    with notes.collected() as said:
        ours = make_method(blobs, **overrides)
        state, infos = run(ours)
    assert ours.engine.rows is not None
    assert ours.engine.steps_at_once == 3
    assert not said
    monkeypatch.setattr(engine_module, "_ROWS_SHARE", 0)
    with notes.collected() as said:
        sent = make_method(blobs, **overrides)
        expected, their_infos = run(sent)
    assert sent.engine.rows is None
    assert sent.engine.steps_at_once == 1
    assert ["their batches are sent from the host" in line for line in said] == [True]
    np.testing.assert_allclose(scored(ours, state), scored(sent, expected), atol=1e-5)
    scalars = sent.scalars(their_infos[-1])
    for name, value in ours.scalars(infos[-1]).items():
        np.testing.assert_allclose(value, scalars[name], rtol=1e-5, err_msg=name)


def test_rows_stay_with_the_host_of_cpus(blobs):
    assert make_method(blobs).engine.rows is None


@pytest.mark.check
def test_chunks_end_where_something_is_due(blobs):
    due = {"eval_every_epochs": 2, "checkpoint_every_epochs": 3, "log_every_steps": 10**6}
    method = make_method(blobs, num_epochs=4, **due)
    epoch = method.steps_per_epoch
    assert [info.step for info in run(method)[1]] == [1, 2 * epoch, 3 * epoch, 4 * epoch]
    method = make_method(blobs, num_epochs=2, early_stopping_epochs=1, **due)
    assert epoch in [info.step for info in run(method)[1]]


@pytest.mark.parametrize(("num_devices", "waits"), [(1, 0), (2, 2)])
def test_steps_that_could_stall_are_waited_for(blobs, num_devices, waits, monkeypatch):
    monkeypatch.setattr(batching_module, "_MAX_AT_ONCE", 1)
    method = make_method(blobs, num_devices=num_devices, num_epochs=0, num_steps=12)
    seen = []
    monkeypatch.setattr(jax, "block_until_ready", lambda value: seen.append(value))
    run(method)
    assert len(seen) == waits  # After the steps 0 and 8.
