"""Tenants of all kinds join: by a call, or by the entry points of a package."""

import subprocess
import sys

import pytest
from installed_packages import forget, install

import ensemble
from ensemble import UserError, registry, tenants
from ensemble.config import all_keys, built_in_keys, default_config, flatten
from ensemble.config_rules import validate
from ensemble.keys import POSITIVE, Block, Key

ENTRY = """
    from ensemble.entries import MethodEntry

    SLOW = MethodEntry(
        "ensemble.methods.members.sgd:SGD", "{block}", ("supervised",),
        fitted="ensemble.methods.members.member:fitted",
    )
"""
BLOCK = """
    from ensemble.keys import POSITIVE, Block, Key
    from ensemble.methods.members.sgd_keys import BLOCK as SGD

    KEYS = Block({{**SGD.keys, "{key}": Key(1.0, "how slow it is", POSITIVE)}}, SGD.conflicts)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    forget(monkeypatch)
    yield tmp_path
    tenants.entry_points.cache_clear()


@pytest.fixture
def slow(folder):
    """An installed method with a key of its own."""
    install(
        folder,
        "slowness",
        entry_points={"method": {"slow": "slowness_entries:SLOW"}},
        slowness_entries=ENTRY.format(block="slowness_keys:KEYS"),
        slowness_keys=BLOCK.format(key="slow.factor"),
    )
    yield
    for name in ("slowness_entries", "slowness_keys"):
        sys.modules.pop(name, None)


def test_names_are_of_entry_points_and_nothing_is_imported_for_them(slow):
    assert "slow" not in ensemble.registry.names("method")
    assert "slow" in registry.names("method", installed=True)
    assert "slowness_entries" not in sys.modules
    assert str(registry.METHODS.installed()["slow"][0]) == "slowness 1.0"


def test_what_is_asked_for_by_name_joins_with_its_keys(slow):
    assert registry.find("method", "slow").tasks == ("supervised",)
    assert "slow" in registry.names("method")
    assert "slowness_keys" not in sys.modules
    assert all_keys()["slow.factor"].default == 1.0
    assert "slow.factor" not in built_in_keys()
    assert "slow" not in default_config()


def test_a_configuration_that_names_it_is_complete(slow):
    config = validate({"method": "slow", "num_epochs": 1})
    assert config.slow.factor == 1.0
    with pytest.raises(UserError, match=r"config.slow.factor=-1.0 must be positive"):
        validate({"method": "slow", "num_epochs": 1, "slow": {"factor": -1.0}})
    with pytest.raises(UserError, match=r"config.slow.factor=2.0 is for config.method='slow'"):
        validate({"method": "sgd", "num_epochs": 1, "slow": {"factor": 2.0}})


def test_a_configuration_with_every_built_in_key_is_whole(slow):
    """What it sets for other methods is left out, although it lacks the stranger's keys."""
    config = default_config()
    config.method, config.num_epochs, config.sampler.num_samples = "slow", 1, 7
    said = flatten(config)
    assert validate(said).slow.factor == 1.0


def test_reading_an_entry_imports_no_jax(slow, folder):
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from ensemble import config, registry\n"
        "config.ask_for({'method': 'slow', 'slow.factor': 2.0, 'model': 'mlp'})\n"
        "assert 'slow.factor' in config.all_keys() and registry.METHODS['slow']\n"
        "assert not {'jax', 'flax', 'numpyro'} & set(sys.modules), 'an entry is data only'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_registration_wins_over_an_entry_point(slow):
    mine = registry.MethodEntry("mine:Mine", "mine:BLOCK", ("supervised",))
    ensemble.register("method", "slow", mine)
    assert registry.METHODS["slow"] is mine
    assert "slowness_entries" not in sys.modules
    assert registry.METHODS.package("slow") is None


def test_code_that_is_there_already_needs_no_place(folder):
    block = Block({"own.width": Key(3, "its width", POSITIVE)})
    factory = ensemble.networks.create  # Any function.
    ensemble.register("network", "own", registry.NetworkEntry(factory, block))
    assert registry.load(registry.find("network", "own").factory) is factory
    assert all_keys()["own.width"].default == 3


@pytest.mark.parametrize(
    ("kind", "name", "entry", "says"),
    [
        ("method", "sgd", registry.METHODS["hmc"], "the method 'sgd' is built in"),
        ("network", "mlp", registry.NETWORKS["cnn"], "the network 'mlp' is built in"),
        ("methode", "mine", registry.METHODS["hmc"], "'methode' is no kind of tenant; use one of"),
        ("source", "mine", registry.METHODS["hmc"], "must be an ensemble.entries.SourceEntry"),
        ("prior", "", registry.PRIORS["normal"], "'' is no name by which priors are registered"),
    ],
)
def test_what_cannot_join_is_one_line(folder, kind, name, entry, says):
    with pytest.raises(UserError) as error:
        ensemble.register(kind, name, entry)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_that_nobody_has_lists_those_that_are_installed(slow):
    with pytest.raises(UserError, match=r"there is no method 'fast'; there are sgd, .*, slow$"):
        registry.find("method", "fast")
    with pytest.raises(UserError, match=r"config.method='fast' must be one of sgd, .*, slow$"):
        validate({"method": "fast"})


def test_two_packages_of_one_name_are_one_line_for_those_who_ask(slow, folder):
    install(folder, "also_slow", "2.0", {"method": {"slow": "nowhere:SLOW"}})
    tenants.entry_points.cache_clear()
    assert "mlp" in registry.NETWORKS
    assert registry.names("method", installed=True).count("slow") == 1
    line = r"'slow' is of 2 installed packages, also_slow 2.0 and slowness 1.0: remove all but one"
    with pytest.raises(UserError, match=line):
        validate({"method": "slow"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("OTHER = 1", "AttributeError"),
        ("SLOW = 'sgd'", "is a str, and must be an ensemble.entries.MethodEntry"),
        ("SLOW =", "SyntaxError"),
    ],
)
def test_a_broken_package_is_one_line_for_those_who_ask_for_it(folder, text, says):
    install(folder, "broken", "0.3", {"method": {"slow": "broken_one:SLOW"}}, broken_one=text)
    sys.modules.pop("broken_one", None)
    assert validate({"method": "sgd", "num_epochs": 1}).method == "sgd"
    with pytest.raises(UserError) as error:
        validate({"method": "slow"})
    line = str(error.value)
    assert "the method 'slow' of the package broken 0.3" in line
    assert says in line
    assert "\n" not in line


def test_its_own_keys_begin_with_its_name(folder):
    install(
        folder,
        "unruly",
        entry_points={"method": {"slow": "unruly_entries:SLOW"}},
        unruly_entries=ENTRY.format(block="unruly_keys:KEYS"),
        unruly_keys=BLOCK.format(key="factor"),
    )
    with pytest.raises(UserError, match=r"has the key 'factor', which .* 'slow.factor'"):
        validate({"method": "slow"})


def test_a_tenant_that_lacks_a_member_is_one_line(folder, blobs):
    class Half:
        """A likelihood, as far as it goes."""

        takes_logits = True
        can_be_censored = False

        @classmethod
        def of_data(cls, targets, class_names):
            """As of `Likelihood`."""
            return cls()

    ensemble.register("likelihood", "half", registry.LikelihoodEntry(Half))
    config = {"likelihood": "half", "num_epochs": 1, "model": "mlp"}
    with pytest.raises(UserError, match=r"likelihood 'half' lacks described, .*, which every lik"):
        ensemble.train(config, blobs, show_progress=False)
    ensemble.register("prior", "half", registry.PriorEntry(type("Half", (), {"setting": None})))
    config = {"prior": "half(1)", "num_epochs": 1, "model": "mlp"}
    with pytest.raises(UserError, match=r"the prior 'half' lacks log_density, sample, standard_d"):
        ensemble.train(config, blobs, show_progress=False)


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ("nowhere:BLOCK", "the method 'broken' cannot be loaded"),
        ({}, "the method 'broken' has keys of the type dict, and must have an ensemble.keys.Block"),
    ],
)
def test_a_broken_method_disturbs_only_who_names_it(folder, monkeypatch, block, line):
    monkeypatch.setattr(registry.METHODS, "registered", {})
    entry = registry.MethodEntry("nowhere:METHOD", block, ("supervised",))
    ensemble.register("method", "broken", entry)
    assert all_keys() == built_in_keys()
    assert validate({"num_epochs": 1, "num_steps": 0}).method == "sgd"
    with pytest.raises(UserError, match=line):
        validate({"method": "broken"})


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_kind_joins_by_an_entry_point(folder, kind):
    form = registry.KINDS[kind].form.__name__
    built_in = registry.KINDS[kind].built_in
    arguments = repr(next(iter(built_in.values()))) if built_in else f"{form}('m:terms')"
    text = f"from ensemble.registry import *\nONE = {arguments}"
    install(folder, "kinds", "1.0", {kind: {"one": f"kinds_{kind}:ONE"}}, **{f"kinds_{kind}": text})
    assert isinstance(registry.find(kind, "one"), registry.KINDS[kind].form)
    assert registry.KINDS[kind].package("one") == ("kinds", "1.0")
    sys.modules.pop(f"kinds_{kind}", None)


def test_an_installed_task_is_found_by_its_model_or_its_key(folder):
    text = """
        from ensemble.registry import TASKS, TaskEntry

        KEYS = TASKS["supervised"].block
        ONE = TaskEntry("m:create", KEYS, models=("odd:FILE",), methods=("hmc",))
    """
    install(folder, "odd", "1.0", {"task": {"odd": "odd_entries:ONE"}}, odd_entries=text)
    assert registry.task_of({"method": "hmc", "model": "odd:mine.py"}) == "odd"
    assert registry.tasks_of("hmc")[-1] == "odd"
    assert registry.task_of({"method": "sgd", "model": "odd:mine.py"}) == "supervised"
    sys.modules.pop("odd_entries", None)
