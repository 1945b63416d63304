"""Parts of a workdir belong to its run, or are named; changes are noticed."""

import json
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import ROOT, small_config
from run_parts import checkpoints_of, identity_of, report_of, subject_of

import ensemble
from ensemble import UserError
from ensemble.storage import identity

CONFIG = {"seed": 3, "learning_rate": 0.1, "num_epochs": 5}


@pytest.fixture(scope="module")
def other_run(blobs, tmp_path_factory):
    """A run like `blobs_run`, of another seed."""
    path = tmp_path_factory.mktemp("other") / "run"
    ensemble.train(small_config(seed=7), data=blobs, workdir=str(path), show_progress=False)
    return path


@pytest.fixture
def run(blobs_run, tmp_path):
    """A copy of `blobs_run`, to be changed."""
    return shutil.copytree(blobs_run, tmp_path / "run")


def exchange(run, other, part):
    """Puts another run's part in the place of a run's."""
    if (run / part).is_dir():
        shutil.rmtree(run / part)
        shutil.copytree(other / part, run / part)
    else:
        shutil.copy(other / part, run / part)


@pytest.mark.check
def test_a_workdir_that_is_copied_stays_whole(run, blobs):
    assert ensemble.load(run).description == "4 members"
    longer = small_config()
    longer["num_epochs"] += 1
    ensemble.train(longer, data=blobs, workdir=str(run), show_progress=False)
    assert len(set(identities(run))) == 1
    assert ensemble.load(run).identity == identity_of(run)


def identities(run):
    """Of all parts."""
    yield identity_of(run)
    yield json.loads((run / "report.json").read_text())["identity"]
    for path in (run / "predictions").iterdir():
        with np.load(path) as arrays:
            assert str(arrays["split"]) == path.stem
            yield str(arrays["identity"])
    checkpointer = checkpoints_of(run)
    yield checkpointer.restore_latest()[1]["identity"]
    checkpointer.close()


@pytest.mark.check
@pytest.mark.parametrize(
    ("part", "use"),
    [
        ("checkpoints", ensemble.load),
        ("config.json", ensemble.load),
        ("report.json", ensemble.load),
        ("report.json", lambda run: subject_of(run)),
        ("predictions/test.npz", lambda run: subject_of(run).test),
    ],
)
def test_a_part_of_another_run_is_named_and_not_used(run, other_run, part, use):
    exchange(run, other_run, part)
    theirs = identity_of(other_run)[:8]
    with pytest.raises(UserError, match=r"run \w{8}, .*config\.json") as told:
        use(run)
    assert theirs in str(told.value)
    assert "damaged" not in str(told.value)


@pytest.mark.check
def test_training_goes_on_from_no_other_run_s_checkpoint(run, other_run, blobs):
    exchange(run, other_run, "checkpoints")
    with pytest.raises(UserError, match=r"checkpoints.* run \w{8}"):
        ensemble.train(small_config(), data=blobs, workdir=str(run), show_progress=False)


def test_predictions_of_another_split_are_not_those_of_the_test_split(run):
    shutil.copy(run / "predictions/validation.npz", run / "predictions/test.npz")
    with pytest.raises(UserError, match=r"split validation.* test"):
        _ = subject_of(run).test


def test_predictions_that_do_not_say_whose_they_are_belong_to_no_run_with_an_identity(run):
    path = run / "predictions/test.npz"
    with np.load(path) as arrays:
        kept = dict(arrays.items())
    for name in ("identity", "split", "fingerprint"):
        del kept[name]
    np.savez_compressed(path, **kept)
    with pytest.raises(UserError, match=r"test\.npz .*no known run"):
        _ = subject_of(run).test


def test_a_changed_configuration_is_noticed(run, blobs):
    content = json.loads((run / "config.json").read_text())
    content["config"]["learning_rate"] *= 2
    (run / "config.json").write_text(json.dumps(content))
    (run / "report.json").unlink()
    changed = small_config(learning_rate=content["config"]["learning_rate"], num_epochs=50)
    for use in (
        lambda: ensemble.load(run),
        lambda: ensemble.train(changed, data=blobs, workdir=str(run), show_progress=False),
    ):
        with pytest.raises(UserError, match=r"config\.json .*changed"):
            use()


def test_a_changed_report_is_noticed(run):
    text = (run / "report.json").read_text()
    (run / "report.json").write_text(text.replace('"value": 0.', '"value": 1.', 1))
    with pytest.raises(UserError, match=r"report\.json.*checksum"):
        report_of(run)


@pytest.mark.parametrize("key", ["step", "learning_rate", "run"])
def test_what_a_checkpoint_says_is_under_its_checksum(run, key, caplog):
    metas = list((run / "checkpoints").glob("*/meta/metadata"))
    for path in metas:
        content = path.read_bytes()
        where = content.index(b'"identity": "' if key == "run" else f'"{key}": '.encode())
        where = content.index(b": ", where) + (3 if key == "run" else 2)
        changed = b"1" if content[where : where + 1] != b"1" else b"2"
        path.write_bytes(content[:where] + changed + content[where + 1 :])
    with pytest.raises(UserError, match=f"none of the {len(metas)} "):
        ensemble.load(run)
    assert "checksum" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"), [("jax_enable_x64", True), ("jax_default_prng_impl", "rbg")]
)
def test_a_run_goes_on_only_where_jax_computes_the_same(run, blobs, name, value, monkeypatch):
    monkeypatch.setattr(identity, "flags", lambda: {**FLAGS, name: value})
    with pytest.raises(UserError, match=rf"began with {name.upper()}=.* \(now {value}\)"):
        ensemble.train(small_config(), data=blobs, workdir=str(run), show_progress=False)
    assert ensemble.load(run).description == "4 members"  # Which draws no number.


FLAGS = identity.flags()

RESUME = """
import sys
import small_runs, ensemble
print(ensemble.load(sys.argv[1]).description)
try:
    ensemble.train(small_runs.small_config(num_epochs=50), small_runs.make_blobs(), sys.argv[1])
except ensemble.UserError as error:
    print(error)
"""


@pytest.mark.check
@pytest.mark.parametrize(
    ("variable", "is_old", "line"),
    [
        ("JAX_ENABLE_X64=1", False, "jax_enable_x64=True must be False"),
        ("JAX_DEFAULT_PRNG_IMPL=rbg", False, "JAX_DEFAULT_PRNG_IMPL=threefry2x32 (now rbg)"),
        pytest.param(
            "JAX_THREEFRY_PARTITIONABLE=0",
            False,
            "JAX_THREEFRY_PARTITIONABLE=True (now False)",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "JAX_RANDOM_SEED_OFFSET=3",
            False,
            "JAX_RANDOM_SEED_OFFSET=0 (now 3)",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "JAX_DEFAULT_MATMUL_PRECISION=bfloat16",
            False,
            "PRECISION=None (now bfloat16)",
            marks=pytest.mark.soak,
        ),
        (
            "JAX_DEFAULT_PRNG_IMPL=rbg",
            True,
            "checkpoints cannot be used with JAX_DEFAULT_PRNG_IMPL=rbg",
        ),
    ],
)
def test_jax_s_own_variables_are_heeded(run, variable, is_old, line):
    if is_old:
        make_old(run)
    name, value = variable.split("=")
    paths = f"{ROOT}:{ROOT / 'tests'}"
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(run)],
        env={**os.environ, "PYTHONPATH": paths, name: value, "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 members\n")  # Predicting draws no numbers.
    assert line in done.stdout
    assert "damaged" not in done.stdout


def make_old(run):
    """Makes a run of an earlier version of it, of which no part has an identity."""
    content = json.loads((run / "config.json").read_text())
    del content["identity"]
    (run / "config.json").write_text(json.dumps(content))
    report = json.loads((run / "report.json").read_text())
    del report["identity"], report["checksum"]
    (run / "report.json").write_text(json.dumps(report))
    checkpointer = checkpoints_of(run)
    arrays, meta = checkpointer.restore_latest()
    checkpointer.close()
    shutil.rmtree(run / "checkpoints")
    del meta["identity"]
    checkpointer = checkpoints_of(run)
    checkpointer.save(meta["counters"]["step"], arrays, meta)
    checkpointer.close()


def test_the_digest_is_of_what_may_not_change():
    entry = identity.create({**CONFIG, "keep_checkpoints": 3}, "data")
    read = identity.read(entry, {**CONFIG, "num_epochs": 9, "keep_checkpoints": 1})
    assert read == identity.read(entry, {**CONFIG, "a_newer_key": 0})
    assert identity.read(json.loads(json.dumps(entry)), CONFIG) == read
    with pytest.raises(ValueError, match="changed"):
        identity.read(entry, {**CONFIG, "seed": 4})
    with pytest.raises(ValueError, match="changed"):
        identity.read({**entry, "fingerprint": "others"}, CONFIG)
    assert identity.create(CONFIG, "data")["run"] != entry["run"]


def test_a_run_of_an_earlier_version_has_none_and_says_so(run, caplog):
    content = json.loads((run / "config.json").read_text())
    del content["identity"]
    (run / "config.json").write_text(json.dumps(content))
    assert identity_of(run) == identity.UNKNOWN
    assert "of an earlier version" in caplog.text
    with pytest.raises(UserError, match=r" run \w{8}.* no known run"):
        ensemble.load(run)


@pytest.mark.check
def test_members_that_were_to_join_another_run_are_refused(run, other_run, blobs):
    shutil.copytree(other_run, run / "newcomers")
    larger = small_config(ensemble_size=5)
    with pytest.raises(UserError, match=r"newcomers.* run \w{8}"):
        ensemble.train(larger, data=blobs, workdir=str(run), show_progress=False)


@pytest.fixture(scope="module")
def chains(blobs, tmp_path_factory):
    """Two sampled runs that differ by their seeds."""
    config = {"method": "hmc", "model": "tiny", "num_chains": 2, "num_devices": 2}
    config |= {
        "sampler.num_warmup": 2,
        "sampler.num_samples": 4,
        "sampler.thin": 2,
        "log_every_steps": 3,
    }
    config |= {"sampler.num_leapfrog_steps": 2}
    root = tmp_path_factory.mktemp("chains")
    for seed in (0, 1):
        run = {**config, "seed": seed}
        ensemble.train(run, data=blobs, workdir=str(root / str(seed)), show_progress=False)
    return root, config


@pytest.mark.check
def test_draws_of_another_run_predict_nothing_and_mix_with_none(chains, blobs, tmp_path):
    root, config = chains
    run = shutil.copytree(root / "0", tmp_path / "run")
    exchange(run, root / "1", "draws")
    with pytest.raises(UserError, match=r"draws.*npz.* run \w{8}"):
        ensemble.load(run)
    more = {**config, "seed": 0, "sampler.num_samples": 8}
    with pytest.raises(UserError, match=r"draws.*npz.* run \w{8}"):
        ensemble.train(more, data=blobs, workdir=str(run), show_progress=False)


def test_an_export_says_which_run_it_is_of(blobs_run):
    from ensemble.export import export

    model = jax.export.deserialize(bytearray(export(ensemble.load(blobs_run))))
    identity = identity_of(blobs_run)
    assert model.fun_name == f"run_{identity}_jax_{jax.__version__}"
