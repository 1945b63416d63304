"""NNX modules by a factory: as modules by hand and as Linen modules, through a whole run."""

import json
import shutil

import arviz
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_config
from flax import nnx
from programs import run_here
from run_parts import checkpoints_of

import ensemble
from ensemble import UserError, networks, registry
from ensemble.export import export
from ensemble.network import Traits, traits

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(7), (5, 6))


class Calls(nnx.Variable):
    """A user's own kind of Variable."""


class Plain(nnx.Module):
    """Two layers in a list; a function of its inputs alone, though it keeps its rngs."""

    def __init__(self, num_outputs, *, rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, num_outputs, rngs=rngs)])
        self.rngs = rngs
        self.off = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x):
        return self.layers[1](self.off(nnx.tanh(self.layers[0](x))))


class Everything(nnx.Module):
    """A layer used twice, batch statistics, two dropouts, own Variables, a constant."""

    def __init__(self, num_outputs, *, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs)] * 2)
        self.dropouts = nnx.List([nnx.Dropout(0.2, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)])
        self.last = nnx.Linear(8, num_outputs, rngs=rngs)
        self.calls = Calls(jnp.zeros((), jnp.int32))
        self.largest = Calls({"input": jnp.zeros(6)})
        self.noted = nnx.Intermediate(jnp.zeros(3))
        self.shift = np.arange(8) / 80

    def __call__(self, x):
        if not self.norm.use_running_average:
            self.calls[...] += 1
            self.largest.set_value({"input": jnp.abs(x).max(axis=0)})
        x = nnx.tanh(self.norm(self.first(x)) + self.shift)
        for block, dropout in zip(self.blocks, self.dropouts, strict=True):
            x = dropout(block(x))
        self.mean = nnx.Intermediate(x.mean())
        return self.last(x)


class Noise(nnx.Module):
    """The noise of two dropouts of one rate, which were built from the same rngs or without."""

    def __init__(self, rngs=None):
        second = nnx.Dropout(0.5, deterministic=True, rngs=rngs)  # Until it is trained.
        self.dropouts = nnx.List([nnx.Dropout(0.5, rngs=rngs), second])

    def __call__(self, x):
        return jnp.concatenate([dropout(jnp.ones_like(x)) for dropout in self.dropouts])


class GivenNoise(Noise):
    """The same, with the rngs given to the call, as in NNX's tutorials."""

    def __init__(self, rngs):
        super().__init__()

    def __call__(self, x, rngs=None):
        return jnp.concatenate([one(jnp.ones_like(x), rngs=rngs) for one in self.dropouts])


class Restless(nnx.Module):
    """Draws noise in predictions too."""

    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x + jax.random.normal(self.rngs.noise(), x.shape)


class Sampled(nnx.Module):
    """An attention that could have dropout, and layers made by vmap."""

    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 6, decode=False, rngs=rngs)
        make = nnx.vmap(lambda rngs: (nnx.Linear(6, 6, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)))
        self.linear, self.dropout = make(rngs.split(3))

    def __call__(self, x):
        def step(x, layer):
            linear, dropout = layer
            return dropout(linear(x)), None

        x = self.attention(x[:, None])[:, 0]
        return nnx.scan(step)(x, (self.linear, self.dropout))[0]


def network_of(kind):
    return networks.from_nnx(lambda rngs: kind(3, rngs=rngs))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry.NETWORKS, "registered", dict(registry.NETWORKS.registered))
    networks.register("plain", lambda k: networks.from_nnx(lambda rngs: Plain(k, rngs=rngs)))
    networks.register("rich", lambda k: networks.from_nnx(lambda rngs: Everything(k, rngs=rngs)))


def test_a_member_is_the_module_that_its_key_gives():
    network, module = network_of(Plain), Plain(3, rngs=nnx.Rngs(KEY))
    variables = network.init(KEY, INPUTS[:1])
    outputs, state = network.apply(variables, INPUTS)
    np.testing.assert_array_equal(outputs, module(INPUTS))
    assert state == {}
    assert variables.keys() == {"params"}
    kernel = variables["params"]["layers"]["1"]["kernel"]
    np.testing.assert_array_equal(kernel, module.layers[1].kernel[...])
    raw, _ = network.apply(network.init(jax.random.key_data(KEY), INPUTS), INPUTS)
    np.testing.assert_array_equal(raw, outputs)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (lambda: network_of(Plain), Traits(has_state=False, is_random=False)),
        (lambda: network_of(Everything), Traits(has_state=True, is_random=True)),
        (lambda: networks.from_nnx(Noise), Traits(has_state=False, is_random=True)),
        (lambda: networks.from_nnx(GivenNoise), Traits(has_state=False, is_random=True)),
    ],
)
def test_a_key_that_no_layer_uses_is_no_noise(network, expected):
    assert traits(network(), (6,)) == expected


@pytest.mark.check
def test_the_collections_and_what_moves():
    network = network_of(Everything)
    variables = network.init(KEY, INPUTS)
    assert variables.keys() == {"params", "batch_stats", "Calls"}
    assert variables["params"].keys() == {"first", "norm", "blocks", "last"}
    assert variables["params"]["blocks"].keys() == {"0"}  # The second is the first.
    calm, kept = network.apply(variables, INPUTS)
    assert kept.keys() == {"batch_stats", "Calls"}
    assert all(kept[name] is variables[name] for name in kept)
    noisy, moved = network.apply(variables, INPUTS, True, jax.random.key(1))
    assert (calm != noisy).any()
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, kept)
    assert moved["Calls"]["calls"] == 1
    np.testing.assert_array_equal(moved["Calls"]["largest"]["input"], abs(INPUTS).max(axis=0))
    by_hand = Everything(3, rngs=nnx.Rngs(KEY))
    by_hand.train()
    by_hand(INPUTS)
    mean = moved["batch_stats"]["norm"]["mean"]
    np.testing.assert_allclose(mean, by_hand.norm.mean[...], atol=1e-6)
    again, _ = network.apply({**variables, **moved}, INPUTS)
    by_hand.eval()
    np.testing.assert_allclose(again, by_hand(INPUTS), atol=1e-6)


@pytest.mark.parametrize("kind", [Noise, GivenNoise])
def test_every_dropout_has_a_mask_of_its_own(kind):
    network = networks.from_nnx(kind)
    inputs = jnp.ones((20, 6))

    @jax.jit
    def masks(key):
        return jnp.split(network.apply(network.init(KEY, inputs), inputs, True, key)[0] > 0, 2)

    first, second = masks(jax.random.key(1))
    other, _ = masks(jax.random.key(2))
    for mask in (first, second, other):
        assert 0.3 < mask.mean() < 0.7
    assert (first != second).any()
    assert (first != other).any()
    np.testing.assert_array_equal(masks(jax.random.key(1))[0], first)
    outputs, _ = network.apply(network.init(KEY, inputs), inputs)
    np.testing.assert_array_equal(outputs, 1)


@pytest.mark.check
def test_streams_of_many_keys():
    network = networks.from_nnx(Sampled)
    variables = network.init(KEY, INPUTS)
    assert variables["params"]["linear"]["kernel"].shape == (3, 6, 6)
    calm, _ = jax.jit(network.apply)(variables, INPUTS)
    noisy, _ = network.apply(variables, INPUTS, True, jax.random.key(1))
    assert (noisy == 0).any()
    assert not (calm == 0).any()


def test_it_equals_the_linen_module_that_has_its_weights():
    class Linen(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.tanh(flax.linen.Dense(8, name="0")(x))
            return flax.linen.Dense(3, name="1")(x)

    network, linen = network_of(Plain), networks.as_network(Linen(), "linen")
    params = network.init(KEY, INPUTS)["params"]

    def loss(apply, params):
        return jnp.sum(jax.nn.log_softmax(apply({"params": params}, INPUTS, True, KEY)[0])[:, 0])

    found = jax.value_and_grad(lambda params: loss(network.apply, params))(params)
    expected = jax.value_and_grad(lambda params: loss(linen.apply, params))(params["layers"])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found[1]["layers"], expected[1]
    )


@pytest.mark.soak
@pytest.mark.parametrize("model", ["plain", "rich"])
def test_the_number_of_devices_changes_nothing(blobs, model):
    one, two, eight = (
        ensemble.train(
            small_config(model=model, ensemble_size=3, num_devices=num_devices), data=blobs
        ).predictor(blobs["inputs"])
        for num_devices in (1, 2, 8)
    )
    np.testing.assert_allclose(two.member_log_probs, one.member_log_probs, atol=1e-4)
    np.testing.assert_allclose(eight.member_log_probs, one.member_log_probs, atol=1e-4)


def arrays_of(workdir):
    return checkpoints_of(workdir).restore_latest(read_only=True)[0]


@pytest.mark.check
def test_a_run_resumes_to_the_same_bits_is_loaded_and_exported(blobs, tmp_path):
    config = small_config(model="rich", ensemble_size=2)
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path / "run"))
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.5
    arrays = arrays_of(tmp_path / "run")
    leaves = jax.tree.leaves(arrays)
    assert not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves)
    assert arrays["model_state"].keys() == {"batch_stats", "Calls"}
    assert (arrays["model_state"]["Calls"]["calls"] > 5).all()

    shutil.copytree(tmp_path / "run", tmp_path / "resumed")
    newest = max((tmp_path / "resumed" / "checkpoints").iterdir(), key=lambda one: int(one.name))
    shutil.rmtree(newest)
    ensemble.train(config, data=blobs, workdir=str(tmp_path / "resumed"))
    jax.tree.map(np.testing.assert_array_equal, arrays_of(tmp_path / "resumed"), arrays)

    inputs = blobs["inputs"][:9]
    expected = result.predictor(inputs)
    loaded = ensemble.load(str(tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, loaded.fitted.sets, result.predictor.fitted.sets)
    # XLA compiles the program twice and promises no equal rounding: 2e-6 apart by jaxlib 0.12.
    np.testing.assert_allclose(
        loaded(inputs).member_log_probs, expected.member_log_probs, rtol=1e-5
    )
    exported = jax.export.deserialize(bytearray(export(loaded))).call(inputs)
    np.testing.assert_allclose(exported["probs"], expected.probs, atol=1e-5)


@pytest.mark.soak
def test_it_is_sampled_under_a_prior_by_its_paths(blobs, tmp_path):
    config = {
        "model": "plain",
        "method": "hmc",
        "prior": "layers/0/*=normal(0.1), *kernel=normal(2), *bias=laplace(1)",
        "num_chains": 2,
        "num_devices": 2,
        "log_every_steps": 20,
        "sampler": {
            "step_size": 0.02,
            "num_leapfrog_steps": 5,
            "num_warmup": 20,
            "num_samples": 20,
        },
    }
    result = ensemble.train(config, data=blobs, workdir=str(tmp_path))
    assert result.report["test"]["scores"]["accuracy"]["value"] > 0.5
    kernel = arviz.from_netcdf(tmp_path / "posterior.nc").params["layers.0.kernel"]
    assert kernel.shape == (2, 2, 6, 8)  # Every tenth draw is kept.
    assert ensemble.load(str(tmp_path))(blobs["inputs"][:4]).probs.shape == (4, 3)


def test_one_with_dropout_is_not_sampled(blobs):
    with pytest.raises(UserError, match="dropout"):
        ensemble.train({"model": "rich", "method": "hmc", "prior": "normal(1)"}, data=blobs)


CONFIG = """
import ensemble
from flax import nnx


class Mine(nnx.Module):
    def __init__(self, num_outputs, *, rngs):
        self.linear = nnx.Linear(6, num_outputs, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


ensemble.networks.register(
    "mine",
    lambda num_outputs: ensemble.networks.from_nnx(lambda rngs: Mine(num_outputs, rngs=rngs)),
)


def get_config():
    config = ensemble.default_config()
    config.update(dataset="npz:{npz}", model="mine", num_epochs=1, ensemble_size=2)
    return config
"""


@pytest.mark.soak
def test_the_programs_find_it_by_the_config_file(blobs, tmp_path):
    np.savez(tmp_path / "blobs.npz", **blobs)
    np.savez(tmp_path / "new.npz", inputs=blobs["inputs"][:3])
    config, run = tmp_path / "mine.py", tmp_path / "run"
    config.write_text(CONFIG.format(npz=tmp_path / "blobs.npz"))
    done = run_here("train.py", f"--config={config}", f"--workdir={run}")
    assert done.returncode == 0, done.stderr
    arguments = ["predict.py", f"--workdir={run}", str(tmp_path / "new.npz"), "--json"]
    assert run_here(*arguments).returncode == 2
    done = run_here(*arguments, f"--config={config}")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["predictions"]) == 3
    done = run_here(
        "evaluate.py", f"--workdir={run}", f"--out={tmp_path}/out", f"--config={config}"
    )
    assert done.returncode == 0, done.stderr
    assert "The ensemble of 2 is right on " in done.stdout


def fails(rngs):
    raise KeyError("the width is unknown")


class Broken(nnx.Module):
    """Keeps what is no Variable of one array, or returns it."""

    def __init__(self, rngs, *, kind):
        self.linear = nnx.Linear(6, 3, rngs=rngs)
        self.kind = kind
        if kind == "array":
            self.table = jnp.ones(3)
        if kind == "list":
            self.scales = nnx.Param([jnp.ones(3), jnp.ones(3)])

    def __call__(self, x):
        return (self.linear(x), x) if self.kind == "pair" else self.linear(x)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Plain(3, rngs=nnx.Rngs(0)), r"NNX module Plain"),
        (3, r"was given a int; it takes a function"),
        (lambda: lambda rngs: Plain, r"class Plain.*nnx.Module"),
        (lambda: lambda rngs: flax.linen.Dense(3), r"the Dense.*nnx"),
        (
            lambda: fails,
            r"test_nnx_modules.py:\d+ \(KeyError: 'the width is unknown'\)",
        ),
        (lambda: Plain, r"\(TypeError.*factory\(rngs\)"),
        (lambda: lambda rngs: Broken(rngs, kind="array"), r"Broken.table is an array outside of"),
        (lambda: lambda rngs: Broken(rngs, kind="list"), r"scales of a module of NNX holds a list"),
    ],
)
def test_what_is_no_factory_of_modules_is_refused(make, line):
    factory = make() if callable(make) else make
    with pytest.raises(UserError, match=line) as caught:
        networks.from_nnx(factory)
    assert "\n" not in str(caught.value)


def test_a_factory_that_always_returns_the_same_module_is_refused():
    module = Plain(3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="already holds the weights of one member"):
        networks.from_nnx(lambda rngs: module)


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (Plain, r"'mine'.*class Plain.*nnx.Rngs"),
        (lambda k: Plain, r"'mine' is the NNX class Plain"),
        (lambda k: Plain(k, rngs=nnx.Rngs(0)), r"'mine'.*module Plain"),
    ],
)
def test_what_is_registered_as_if_it_were_linen_is_told_what_to_write(factory, line):
    networks.register("mine", factory)
    with pytest.raises(UserError, match=line) as caught:
        networks.create("mine", 3)
    written = str(caught.value).split("write ")[1]
    exec(written, {"ensemble": ensemble, "Plain": Plain})
    assert networks.create("mine", 3).init(KEY, INPUTS)["params"].keys() == {"layers"}


@pytest.mark.parametrize(
    ("factory", "train", "line"),
    [
        (lambda rngs: Noise(), True, "Noise.*no rngs"),
        (Restless, False, "Restless draws noise"),
        (lambda rngs: Broken(rngs, kind="pair"), False, "returns a tuple; it must return one arr"),
    ],
)
def test_what_a_call_does_wrong_is_one_line(factory, train, line):
    network = networks.from_nnx(factory)
    with pytest.raises(UserError, match=line):
        network.apply(network.init(KEY, INPUTS), INPUTS, train, KEY if train else None)
