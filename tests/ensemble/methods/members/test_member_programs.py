"""Members that several devices hold together: the same members as on one, of fewer bytes each."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest
from conftest import make_blobs, small_config
from run_parts import validated

from ensemble import UserError, networks
from ensemble.method import Status
from ensemble.methods.members import member_programs
from ensemble.methods.members.member_programs import zero_metrics
from ensemble.methods.members.sgd import SGD
from ensemble.notes import collected
from ensemble.sharding.member_parts import bytes_per_device
from ensemble.sharding.placement import Placement
from ensemble.sources import dataset_from_arrays
from ensemble.tasks.supervised import classification

KEY = jax.random.key(0)
KERNEL = (128, 256)


@networks.register("wide_member")
class Wide(nn.Module):
    """Batch statistics and dropout, and a kernel that is large enough to be split."""

    num_outputs: int

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(KERNEL[0])(x))
        x = nn.relu(nn.Dense(KERNEL[1])(x))
        x = nn.Dropout(0.3, deterministic=not train)(x)
        return nn.Dense(self.num_outputs)(x)


def make_method(ensemble_size, num_devices, member_devices, **overrides):
    config = validated(
        small_config(
            **{
                "model": "wide_member",
                "ensemble_size": ensemble_size,
                "num_devices": num_devices,
                "member_devices": member_devices,
                "num_epochs": None,
                "num_steps": 4,
                "batch_size": 28,
                **overrides,
            }
        )
    )
    dataset = dataset_from_arrays(make_blobs(), hold_out=config.hold_out)
    network = networks.create(config.model, len(dataset.class_names))
    return SGD(config, classification(dataset, network))


def run(method, state=None):
    state = method.init(KEY) if state is None else state
    while not method.finished(state):
        state, info = method.advance(state)
    return state, info


def params_of(method, state):
    return jax.tree.leaves(method.to_host(state)[0]["params"])


@functools.cache
def on_one_device(ensemble_size, **overrides):
    method = make_method(ensemble_size, 1, 1, **overrides)
    state, info = run(method)
    scores = method.predict_split(state, "test").arrays["log_probs"]
    return params_of(method, state), scores, method.scalars(info)


def largest_difference(found, expected):
    return max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True))


def slow(*values):
    """Parameters of which `make check` tests more."""
    return pytest.param(*values, marks=pytest.mark.check)


@pytest.mark.parametrize(
    ("ensemble_size", "num_devices", "member_devices", "mesh"),
    [
        (2, 8, 2, (2, 2, 2)),
        slow(2, 8, 4, (2, 1, 4)),
        slow(3, 4, 2, (2, 1, 2)),  # One place holds padding.
        slow(1, 4, 4, (1, 1, 4)),
        slow(2, 4, 4, (1, 1, 4)),
    ],
)
def test_members_over_devices_are_those_of_one_device(
    ensemble_size, num_devices, member_devices, mesh
):
    params, scores, scalars = on_one_device(ensemble_size)
    method = make_method(ensemble_size, num_devices, member_devices)
    state, info = run(method)
    placement = method.engine.programs.placement
    assert tuple(placement.mesh.shape.values()) == mesh
    assert largest_difference(params_of(method, state), params) < 2e-6
    found = method.predict_split(state, "test").arrays["log_probs"]
    np.testing.assert_allclose(found, scores, atol=2e-5)
    for name, value in method.scalars(info).items():
        np.testing.assert_allclose(value, scalars[name], rtol=1e-4, err_msg=name)
    members = jax.tree.leaves(state.members)
    shapes = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in members]
    there = sum(leaf.addressable_shards[0].data.nbytes for leaf in members)
    by_rule = bytes_per_device(shapes, placement.mesh.shape)
    assert there == placement.slots * by_rule
    parts = mesh[1] * mesh[2]
    for tree in (state.members.params, state.members.opt_state[1][0].trace):
        kernel = tree["Dense_1"]["kernel"]
        assert kernel.addressable_shards[0].data.size == placement.slots * np.prod(KERNEL) / parts


@pytest.mark.check
def test_batches_of_any_size_are_whole_to_a_member():
    """Batch statistics would otherwise see what pads; 29 examples go to no two devices alike."""
    params, _, _ = on_one_device(2, batch_size=29)
    method = make_method(2, 8, 2, batch_size=29)
    assert largest_difference(params_of(method, run(method)[0]), params) < 2e-6


@pytest.mark.check
@pytest.mark.parametrize("batching", ["independent"])
def test_members_with_batches_of_their_own_are_those_of_one_device(batching):
    params, _, _ = on_one_device(2, batching=batching)
    method = make_method(2, 4, 2, batching=batching)
    assert largest_difference(params_of(method, run(method)[0]), params) < 2e-6


@pytest.mark.parametrize(("num_devices", "member_devices"), [(4, 2), slow(4, 4), slow(1, 1)])
def test_a_state_moves_from_eight_devices_to_fewer(num_devices, member_devices):
    params, _, _ = on_one_device(2)
    first = make_method(2, 8, 2)
    state, _ = first.advance(first.init(KEY))
    arrays, counters = first.to_host(state)
    assert counters["member_devices"] == 2
    second = make_method(2, num_devices, member_devices)
    moved = second.from_host(KEY, arrays, counters)
    back, _ = second.to_host(moved)
    for one, other in zip(jax.tree.leaves(arrays), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(one, other)
    assert largest_difference(params_of(second, run(second, moved)[0]), params) < 2e-6


@pytest.mark.check
def test_resumption_on_the_same_devices_changes_no_bit():
    method = make_method(2, 8, 2)
    straight, _ = run(method)
    state, _ = method.advance(method.init(KEY))
    other = make_method(2, 8, 2)
    resumed, _ = run(other, other.from_host(KEY, *method.to_host(state)))
    assert largest_difference(params_of(other, resumed), params_of(method, straight)) == 0


WITHOUT_GRADIENT = "['Dense_0']['bias']"
"""Batch statistics subtract it again: its exact gradient is zero, what is computed is rounding."""


def adam_state(method, state):
    """The parameters and both moments of Adam, by name."""
    arrays = method.to_host(state)[0]
    adam = arrays["opt_state"]["1"]["0"]
    trees = {"params": arrays["params"], "mu": adam["mu"], "nu": adam["nu"]}
    leaves, _ = jax.tree_util.tree_flatten_with_path(trees)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


@pytest.mark.check
def test_adam_over_devices_is_that_of_one_device_where_there_is_a_gradient():
    """Adam's steps do not depend on the size of a gradient; its moments do."""
    adam = {"optimizer": "adam", "learning_rate": 1e-3}
    one = make_method(2, 1, 1, **adam)
    expected_state, _ = run(one)
    method = make_method(2, 8, 2, **adam)
    state, _ = run(method)
    expected, found = adam_state(one, expected_state), adam_state(method, state)
    way = method.num_steps * 1e-3  # Further no parameter can go.
    loose = [name for name in expected if name.endswith(WITHOUT_GRADIENT)]
    assert len(loose) == 3  # The parameter and its moments.
    for name, value in expected.items():
        difference = np.abs(found[name] - value).max()
        is_parameter = name.startswith("['params']")
        if name in loose and is_parameter:
            assert difference < 2 * way  # Rounding alone moves it, as far as any.
        elif name in loose:
            assert max(np.abs(value).max(), np.abs(found[name]).max()) < 1e-7, name
        elif is_parameter:
            assert difference < 1e-3 * way, name
        else:
            assert difference < 1e-5 * np.abs(value).max(), name
    scores = one.predict_split(expected_state, "test").arrays["log_probs"]
    np.testing.assert_allclose(
        method.predict_split(state, "test").arrays["log_probs"], scores, atol=1e-2
    )


@pytest.mark.check
def test_a_member_that_fails_over_devices_poisons_nobody():
    method = make_method(2, 8, 2, learning_rate=1e14, num_steps=6)
    state, info = run(method)
    assert set(method.status(info).values()) == {Status.NON_FINITE}
    assert all(np.isfinite(leaf).all() for leaf in params_of(method, state))


def test_devices_of_a_member_that_do_not_divide_all_are_refused():
    with pytest.raises(UserError, match=r"member_devices=3 must divide the 8 devices; use 1, 2, 4"):
        make_method(2, 8, 3).init(KEY)


@pytest.mark.check
def test_the_state_is_donated():
    method = make_method(2, 4, 2)
    state, _ = method.advance(method.init(KEY))
    kernel = state.members.params["Dense_1"]["kernel"]
    method.advance(state)
    assert kernel.is_deleted()


@networks.register("deep")
class Deep(nn.Module):
    """Whose examples are independent, and whose activations take more than its parameters."""

    num_outputs: int

    @nn.compact
    def __call__(self, x):
        for _ in range(3):
            x = nn.Dense(8)(nn.relu(nn.Dense(KERNEL[1])(x)))
        return nn.Dense(self.num_outputs)(x)


def temp_bytes(method):
    """What a step takes beside its arguments and results, and the members after some steps."""
    state = method.init(KEY)
    programs = method.engine.programs
    batches = method.engine.batches.place(programs.placement, method.indices, 0, 1, 1)
    totals = zero_metrics(programs.placement, method.task.likelihood)
    step = programs.train_steps.lower(
        state.members, *totals, None, batches, np.int32(0), np.int32(1)
    )
    return step.compile().memory_analysis().temp_size_in_bytes


DEEP = {"model": "deep", "batch_size": 120, "num_steps": 3}


@pytest.mark.check
@pytest.mark.parametrize(
    "saving",
    [{"gradient_accumulation": 4}, {"rematerialise": True}],
)
@pytest.mark.parametrize(("num_devices", "member_devices"), [(1, 1), (4, 2), (4, 1)])
def test_less_memory_gives_the_same_members(saving, num_devices, member_devices):
    params, scores, scalars = on_one_device(2, **DEEP)
    method = make_method(2, num_devices, member_devices, **DEEP, **saving)
    state, info = run(method)
    assert largest_difference(params_of(method, state), params) < 2e-6
    found = method.predict_split(state, "test").arrays["log_probs"]
    np.testing.assert_allclose(found, scores, atol=2e-5)
    for name, value in method.scalars(info).items():
        np.testing.assert_allclose(value, scalars[name], rtol=1e-4, err_msg=name)
    other = make_method(2, num_devices, member_devices, **DEEP)
    assert temp_bytes(method) < 0.8 * temp_bytes(other)


@pytest.mark.check
def test_parts_of_a_batch_that_do_not_divide_it_are_the_batch():
    params, _, _ = on_one_device(2, **DEEP)
    method = make_method(2, 1, 1, **DEEP, gradient_accumulation=7)
    assert largest_difference(params_of(method, run(method)[0]), params) < 2e-6


def test_batch_statistics_of_parts_are_refused():
    with pytest.raises(UserError, match="statistics of a part for those of a batch"):
        make_method(2, 1, 1, gradient_accumulation=2).init(KEY)


def over_model(*names):
    return nn.with_partitioning(nn.initializers.lecun_normal(), names)


@networks.register("test_annotated")
class Annotated(nn.Module):
    """A Linen module that says how two of its kernels are split, and nothing of a third."""

    num_outputs: int
    axis: str = "model"

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(128, kernel_init=over_model(None, self.axis))(x))
        x = nn.relu(nn.Dense(64, kernel_init=over_model(self.axis, None))(x))
        return nn.Dense(self.num_outputs)(nn.relu(nn.Dense(256)(x)))


@networks.register("test_annotated_nnx")
def annotated_nnx(num_outputs):
    from flax import nnx  # It takes long to import.

    class Module(nnx.Module):
        def __init__(self, rngs):
            def init(*names):
                return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)

            self.layers = nnx.List(
                [
                    nnx.Linear(6, 128, rngs=rngs, kernel_init=init(None, "model")),
                    nnx.Linear(128, 64, rngs=rngs, kernel_init=init("model", None)),
                    nnx.Linear(64, 256, rngs=rngs),
                    nnx.Linear(256, num_outputs, rngs=rngs),
                ]
            )

        def __call__(self, x):
            for layer in self.layers[:-1]:
                x = nnx.relu(layer(x))
            return self.layers[-1](x)

    return networks.from_nnx(Module)


@pytest.mark.parametrize("model", ["test_annotated", slow("test_annotated_nnx")])
def test_what_a_network_says_of_its_parameters_is_honoured(model):
    params, scores, _ = on_one_device(2, model=model)
    method = make_method(2, 8, 2, model=model)
    state, _ = run(method)
    assert largest_difference(params_of(method, state), params) < 2e-6
    found = method.predict_split(state, "test").arrays["log_probs"]
    np.testing.assert_allclose(found, scores, atol=2e-5)
    for tree in (state.members.params, state.members.opt_state[1][0].trace):
        kernels = {leaf.shape[1:]: leaf for leaf in jax.tree.leaves(tree) if leaf.ndim == 3}
        assert kernels[6, 128].sharding.spec == jax.P("ensemble", None, "model")
        assert kernels[128, 64].sharding.spec == jax.P("ensemble", "model")
        assert kernels[64, 256].sharding.spec == jax.P("ensemble", None, ("data", "model"))
    assert method.engine.programs.placement.example_axes(28) == ("data",)


@pytest.mark.check
def test_axes_that_the_mesh_has_not_are_refused():
    networks.register("tensor", lambda num_outputs: Annotated(num_outputs, axis="tensor"))
    with pytest.raises(UserError, match="names the axis 'tensor'; a member is spread over 'data'"):
        make_method(2, 8, 2, model="tensor").init(KEY)
    make_method(2, 1, 1, model="tensor").init(KEY)


def test_as_few_devices_as_memory_allows_hold_a_member(monkeypatch):
    kernel = 4 * KERNEL[0] * KERNEL[1]
    monkeypatch.setattr(member_programs, "device_bytes", lambda devices: 4 * kernel)
    with collected() as notes:
        placement = make_method(1, 2, 0).engine.programs.placement
    assert placement.member_devices == 2
    assert [one.split(":")[0] for one in notes] == ["config.member_devices=0"]
    assert "2 of 2 devices hold each member" in notes[0]
    with pytest.raises(UserError, match=r"which have .* for parameters, gradients and"):
        make_method(3, 2, 0).init(KEY)
    monkeypatch.undo()
    assert make_method(2, 2, 0).engine.programs.placement.member_devices == 1


@pytest.mark.parametrize(
    ("ensemble_size", "member_devices", "num_idle", "better"),
    [(2, 1, 6, 2), (5, 1, 3, 8), (3, 2, 2, 8), (2, 2, 0, 0), (9, 1, 0, 0)],
)
def test_accelerators_that_compute_padding_are_said(
    monkeypatch, ensemble_size, member_devices, num_idle, better
):
    monkeypatch.setattr(Placement, "platform", "tpu")
    with collected() as notes:
        make_method(ensemble_size, 8, member_devices).engine.programs  # noqa: B018
    line = (
        f"{num_idle} of 8 devices compute padding, nothing of the {ensemble_size} members: use "
        f"config.ensemble_size=8; or config.member_devices={better}, where the method has it."
    )
    assert notes == ([line] if num_idle else [])


def test_cores_that_compute_padding_are_not_said():
    """XLA shares the work of one CPU device among them."""
    with collected() as notes:
        make_method(2, 8, 1).engine.programs  # noqa: B018
    assert notes == []
