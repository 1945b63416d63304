"""config.json says which installed packages a run has tenants of, and another process reads it."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from installed_packages import forget, install, uninstall
from small_runs import make_blobs

import ensemble
from ensemble import UserError, registry, tenants
from ensemble.storage.workdir import Workdir

MODULES = {
    "odd_entries": """
        from ensemble.keys import POSITIVE, Block, Key
        from ensemble.registry import METHODS, MethodEntry, NetworkEntry, PriorEntry, SourceEntry

        SGD = METHODS["sgd"]
        METHOD = MethodEntry(SGD.factory, SGD.block, SGD.tasks, fitted=SGD.fitted)
        NETWORK = NetworkEntry("odd_network:factory", "odd_keys:BLOCK")
        PRIOR = PriorEntry("ensemble.priors.normal_prior:Normal")
    """,
    "odd_keys": """
        from ensemble.keys import POSITIVE, Block, Key

        BLOCK = Block({"odd_net.width": Key(3, "its width", POSITIVE)})
    """,
    "odd_network": """
        import flax.linen as nn

        def factory(num_outputs, width=3):
            return nn.Sequential([nn.Dense(width), nn.tanh, nn.Dense(num_outputs)])
    """,
}
POINTS = {
    "method": {"odd_way": "odd_entries:METHOD"},
    "network": {"odd_net": "odd_entries:NETWORK"},
    "prior": {"odd_prior": "odd_entries:PRIOR"},
}
CONFIG = {
    "method": "odd_way",
    "model": "odd_net",
    "prior": "*bias=odd_prior(1), *=normal(1)",
    "odd_net": {"width": 5},
    "num_epochs": 1,
    "ensemble_size": 2,
    "num_devices": 1,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of installed packages."""
    found = tmp_path / "site"
    found.mkdir()
    monkeypatch.syspath_prepend(found)
    forget(monkeypatch)
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)
    tenants.entry_points.cache_clear()


@pytest.fixture
def work(folder, tmp_path):
    install(folder, "odd", "1.0", POINTS, **MODULES)
    workdir = tmp_path / "run"
    ensemble.train(CONFIG, make_blobs(), workdir, show_progress=False)
    return workdir


def again(folder, monkeypatch, version=None):
    """As in another process, where another version is installed, or none."""
    uninstall(folder, "odd")
    if version is not None:
        install(folder, "odd", version, POINTS)
    forget(monkeypatch)


@pytest.mark.check
def test_the_packages_of_a_run_stand_beside_its_identity(work):
    content = json.loads((work / "config.json").read_text())
    found = {
        (one["kind"], one["name"]): (one["package"], one["version"]) for one in content["packages"]
    }
    assert found == dict.fromkeys(
        [("method", "odd_way"), ("network", "odd_net"), ("prior", "odd_prior")], ("odd", "1.0")
    )
    identity = Workdir(work).identity()
    content["packages"][0]["version"] = "1.1"
    (work / "config.json").write_text(json.dumps(content))
    assert Workdir(work).identity() == identity


@pytest.mark.check
def test_a_run_of_built_in_tenants_names_no_packages(folder, tmp_path):
    config = {"num_epochs": 1, "model": "mlp", "num_devices": 1}
    ensemble.train(config, make_blobs(), tmp_path / "run", show_progress=False)
    assert "packages" not in json.loads((tmp_path / "run" / "config.json").read_text())


@pytest.mark.check
def test_augmentations_change_numbers_and_are_recorded_and_writers_are_not(folder, tmp_path):
    text = """
        from ensemble.registry import AugmentationEntry, WriterEntry

        NOISE = AugmentationEntry("odd_noise:noise")
        QUIET = WriterEntry("odd_noise:quiet")
    """
    code = """
        def noise(rng_key, inputs):
            return 2 * inputs

        def quiet(config, workdir, step):
            return lambda step, metrics: None
    """
    points = {"augmentation": {"odd": "odd_pieces:NOISE"}, "writer": {"odd": "odd_pieces:QUIET"}}
    install(folder, "odd", "1.0", points, odd_pieces=text, odd_noise=code)
    config = {"model": "mlp", "num_epochs": 1, "num_devices": 1}
    config |= {"augment.name": "odd", "writers": "odd"}
    ensemble.train(config, make_blobs(), tmp_path / "run", show_progress=False)
    (found,) = json.loads((tmp_path / "run" / "config.json").read_text())["packages"]
    assert found == {"kind": "augmentation", "name": "odd", "package": "odd", "version": "1.0"}


@pytest.mark.check
def test_a_package_that_is_missing_is_named(work, folder, monkeypatch):
    again(folder, monkeypatch)
    had = (
        "the run had the method 'odd_way', the network 'odd_net' and the prior 'odd_prior' of the "
        "package odd 1.0, and nothing here is called so: install that package if you trust it"
    )
    for use in (ensemble.load, ensemble.evaluate):
        with pytest.raises(UserError) as error:
            use(work)
        assert str(error.value) == f"{work}/report.json: {had}"
    with pytest.raises(
        UserError, match=r"config.odd_net.width is not a key.*; the run had .* odd 1.0"
    ):
        ensemble.train(CONFIG, make_blobs(), work, show_progress=False)


@pytest.mark.check
def test_what_only_predicting_needs_is_not_missed_before(folder, tmp_path, monkeypatch):
    """An evaluation reads stored predictions, for which no network is needed."""
    without = {**MODULES, "odd_keys": "from ensemble.keys import Block\nBLOCK = Block({})\n"}
    install(folder, "odd", "1.0", POINTS, **without)
    config = {"model": "odd_net", "num_epochs": 1, "num_devices": 1}
    ensemble.train(config, make_blobs(), tmp_path / "run", show_progress=False)
    again(folder, monkeypatch)
    assert ensemble.evaluate(tmp_path / "run")["test"]["scores"]
    with pytest.raises(UserError, match=r"had the network 'odd_net' of the package odd 1.0"):
        ensemble.load(tmp_path / "run")


@pytest.mark.check
@pytest.mark.parametrize("version", ["1.1", "0.9"])
def test_another_version_is_one_line(work, folder, monkeypatch, version, caplog):
    again(folder, monkeypatch, version)
    line = f"{work}: the run began with the package odd 1.0, and {version} is installed here: its"
    for _ in range(2):
        ensemble.load(work)
    assert [one.getMessage().startswith(line) for one in caplog.records].count(True) == 1


@pytest.mark.check
def test_what_is_registered_serves_a_run_that_had_a_package(work, folder, monkeypatch, caplog):
    entries = {kind: registry.find(kind, name) for kind in POINTS for name in POINTS[kind]}
    again(folder, monkeypatch)
    for kind, points in POINTS.items():
        registry.register(kind, next(iter(points)), entries[kind])
    ensemble.load(work)
    assert "package" not in caplog.text


def test_a_package_that_is_broken_damages_no_workdir(work, folder, monkeypatch):
    (folder / "odd_entries.py").write_text("import not_there_at_all\n")
    sys.modules.pop("odd_entries")
    forget(monkeypatch)
    with pytest.raises(UserError, match=r"odd 1.0 cannot be loaded: .*not_there_at_all") as error:
        ensemble.load(work)
    assert "damaged" not in str(error.value)


@pytest.mark.parametrize(
    "packages",
    [
        {"odd": "1.0"},
        [{"kind": "method", "name": "odd_way", "package": "odd"}],
        [{"kind": "method", "name": "odd_way", "package": "odd", "version": 1}],
        [{"kind": "method", "name": "odd_way", "package": "odd; rm -r /", "version": "1.0"}],
        [{"kind": "folder", "name": "odd_way", "package": "odd", "version": "1.0"}],
        [{"kind": "method", "name": "\x1b[2J", "package": "odd", "version": "1.0"}],
    ],
)
def test_forged_packages_are_refused(work, packages):
    content = json.loads((work / "config.json").read_text())
    (work / "config.json").write_text(json.dumps({**content, "packages": packages}))
    with pytest.raises(UserError, match=r"config.json is not a file of this program, or damaged"):
        ensemble.load(work)


@pytest.mark.check
def test_another_process_loads_it_by_its_installed_package_alone(work, folder):
    code = f"import ensemble; print(ensemble.load({str(work)!r}).members)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "(0, 1)", done.stderr
