"""`train.py`: misused, interrupted, killed, on a full disk; `programs` says which in processes."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, fill, make_blobs, started
from kills import read_events
from programs import run_here
from run_parts import held

from ensemble.storage.checksum import checksum

CONFIG = """
import flax.linen as nn

import models
from ensemble import default_config


class Mine(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.tanh(nn.Dense(32)(x)))


models.register("mine", Mine)


def get_config():
    config = default_config()
    config.dataset = "npz:{npz}"
    config.model = "mine"
    config.ensemble_size = 3
    config.num_devices = 2
    config.num_epochs = 15
    config.batch_size = 16
    config.log_every_steps = 3
    config.plot_every_epochs = 15
    return config
"""


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """A user's own data, network and configuration, outside the clone."""
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "blobs.npz", **make_blobs())
    (folder / "config.py").write_text(CONFIG.format(npz=folder / "blobs.npz"))
    return folder / "config.py"


def command(config_file, workdir, *flags):
    return [
        sys.executable, str(ROOT / "train.py"), f"--config={config_file}", f"--workdir={workdir}",
        *flags,
    ]  # fmt: skip


def run(config_file, workdir, *flags):
    """Runs `train.py` in this process."""
    return run_here("train.py", *command(config_file, workdir, *flags)[2:])


def run_alone(config_file, workdir, *flags):
    """Runs `train.py` in a process of its own."""
    return subprocess.run(
        command(config_file, workdir, *flags), capture_output=True, text=True, timeout=300
    )


def the_one_line(done, status=2):
    """The one line that says what is wrong: the last on stderr."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("train.py: ")] == lines[-1:], done.stderr
    return lines[-1]


def run_expecting_one_line(*args):
    return the_one_line(run(*args))


def newest_checkpoint(workdir):
    """The arrays of the newest checkpoint that is whole, and what is beside them."""
    from etils import epath

    from ensemble.storage.checkpoint import Checkpointer

    checkpointer = Checkpointer(epath.Path(workdir) / "checkpoints")
    arrays, meta = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    return arrays, meta


def final_state(workdir):
    """The arrays of the newest checkpoint, and the metrics but for those of time."""
    arrays, _ = newest_checkpoint(workdir)
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    for record in records:  # But for what depends on the time.
        record.pop("train/member_examples_per_second", None)
    return checksum(arrays), arrays, records


@pytest.fixture(scope="module")
def unbroken(config_file, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("unbroken") / "run"
    done = run_alone(config_file, workdir)
    assert done.returncode == 0, done.stderr
    return workdir, done


@pytest.mark.check
def test_the_table_and_the_summary_are_printed(unbroken):
    workdir, done = unbroken
    assert re.search(r"member 2 +\d+\.\d\d%( +\d\.\d{4}){3}\n", done.stdout)
    assert "average member" in done.stdout
    assert "sd of members" in done.stdout
    assert "ensemble of 3 " in done.stdout
    assert f"tensorboard --logdir={workdir}" in done.stdout
    assert "Dense_0/kernel" in done.stderr  # The parameter overview.
    assert re.search(r"step 135/135, epoch 15.0: validation accuracy .* 0:00 left", done.stderr)
    assert "tensorflow" not in done.stderr.lower()


@pytest.mark.soak
def test_killed_it_ends_with_the_same_bits(unbroken, config_file, tmp_path):
    """Once, and anywhere; `test_killed.py` kills every method at every moment."""
    workdir = tmp_path / "killed"
    with started(command(config_file, workdir), stderr=subprocess.PIPE) as process:
        while process.poll() is None and len(list((workdir / "checkpoints").glob("[0-9]*"))) < 2:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = run_alone(config_file, workdir)
    assert done.returncode == 0, done.stderr
    assert "Resuming" in done.stderr
    total, arrays, records = final_state(workdir)
    expected_total, expected_arrays, expected_records = final_state(unbroken[0])
    assert records == expected_records
    np.testing.assert_equal(arrays, expected_arrays)
    assert total == expected_total
    rate = "train/member_examples_per_second"  # A process has none for its first chunk.
    events, expected_events = (
        sorted(event for event in read_events(each) if event.tag != rate)
        for each in (workdir, unbroken[0])
    )
    assert events == expected_events  # Each once.


@pytest.mark.check
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_interrupted_it_checkpoints_and_says_how_to_resume(unbroken, config_file, tmp_path, number):
    workdir = tmp_path / "interrupted"
    metrics = workdir / "metrics.jsonl"
    with started(
        command(config_file, workdir), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    last = stderr.splitlines()[-1]
    assert re.search(r" step \d+ of 135, .*resume with: ", last)
    resumed = subprocess.run(
        last.split("resume with: ")[1], shell=True, capture_output=True, text=True, timeout=300
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "Resuming" in resumed.stderr
    assert final_state(workdir)[0] == final_state(unbroken[0])[0]


@pytest.mark.check
def test_misused_a_process_of_its_own_ends_in_one_line_too(config_file, tmp_path):
    done = run_alone(config_file, tmp_path / "w", "--config.batch_size=-5")
    assert "config.batch_size=-5" in the_one_line(done)
    assert done.stdout == ""


@pytest.mark.soak
def test_saved_on_eight_devices_resumed_on_two(config_file, tmp_path):
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    assert run(config_file, straight, "--config.num_epochs=4").returncode == 0
    eight = run(config_file, moved, "--config.num_epochs=2", "--config.num_devices=8")
    assert eight.returncode == 0, eight.stderr
    two = run(config_file, moved, "--config.num_epochs=4", "--config.num_devices=2")
    assert two.returncode == 0, two.stderr
    for split in ("validation", "test"):
        with (
            np.load(straight / "predictions" / f"{split}.npz") as a,
            np.load(moved / "predictions" / f"{split}.npz") as b,
        ):
            np.testing.assert_allclose(a["log_probs"], b["log_probs"], atol=1e-4)


@pytest.mark.check
def test_training_imports_no_tensorflow(config_file, tmp_path):
    script = (
        "import sys, train; status = train.run('train', 'train.py');"
        "assert 'tensorflow' not in sys.modules and 'torch' not in sys.modules; sys.exit(status)"
    )
    flags = command(config_file, tmp_path / "w", "--config.num_epochs=1")[2:]
    done = subprocess.run(
        [sys.executable, "-c", script, *flags], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.check
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--config.dataset=mnits"], "did you mean mnist"),
        (["--config.model=cnnn"], "'cnnn'"),
        (["--config.optimizer=lion"], "config.optimizer='lion'"),
        (["--config.method=magic"], "config.method='magic'"),
        (["--config.schedule=linear"], "config.schedule='linear'"),
        (["--num_epochs=3"], "--config.num_epochs=..."),
        (["--config.batchsize=3"], "config.batchsize"),
        (["--config.hmc.thin=2"], "config.sampler.thin"),
        (["--config.pretrained=w.npz"], "config.init_from"),
        (["--config.batch_size=many"], "batch_size"),
        (["--config.num_steps=10"], "config.num_steps=10"),
        (["--config.ensemble_size=0"], "config.ensemble_size=0"),
        (["--config.batch_size=-5"], "config.batch_size=-5"),
        (["--config.num_epochs=0"], "config.num_epochs=0"),
        (["--config.num_epochs=-3"], "config.num_epochs=-3"),
        (["--config.model=cnn"], "shape (6,)"),
        (["--config.augment.shift=1"], "config.augment is for images"),
        (["--config.learning_rate=nan"], "config.learning_rate=nan"),
        (["--config.class_weights=1,2"], "class_weights"),
        (["--config.dataset=npz:/nowhere.npz"], "/nowhere.npz"),
        (["--config.dataset=folder:/nowhere"], "/nowhere"),
        (["--wrokdir=/tmp/x"], "wrokdir"),
        (["extra"], "'extra'"),
        (["--workdir="], "--workdir is missing"),
        (["--workdir=/proc/run"], "/proc/run"),
        (["--workdir=/"], "--workdir=/ is"),
        (["--join_seconds=nan"], "--join_seconds=nan"),
        (["--join_seconds=inf"], "--join_seconds=inf"),
        (["--config=/nowhere/config.py"], "/nowhere/config.py"),
    ],
)
def test_bad_input_is_one_clear_line(config_file, tmp_path, flags, line):
    assert line in run_expecting_one_line(config_file, tmp_path / "w", *flags)


@pytest.mark.check
@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("nn.tanh", "nn.tahn", "config.model='mine' failed at {} (AttributeError: module 'flax."),
        (" default_config()", " defalt_config()", "cannot be loaded (at {}): NameError: name 'def"),
        (
            ' "npz:',
            " 1 / int(0) #",
            "cannot be loaded (at {}): ZeroDivisionError: division by zero",
        ),
        (
            " default_config()",
            " default_config(); config.augment = 'shift'",
            "cannot be loaded (at {}): config.augment is a block of keys and takes no value "
            "itself; set config.augment.flip, config.augment.name, config.augment.shift",
        ),
        (
            " default_config()",
            " default_config(); config.update_from_flattened_dict({'hmc.thin': 2})",
            "cannot be loaded (at {}): config.hmc has another name now: config.sampler",
        ),
        (
            " default_config()",
            " default_config(); config.hmc.thin = 2",
            "cannot be loaded (at {}): config.hmc has another name now: config.sampler",
        ),
    ],
)
def test_an_error_in_a_users_file_is_one_line_with_its_place(
    config_file, tmp_path, right, wrong, says
):
    before, after = config_file.read_text().split(right)
    file = tmp_path / "mine.py"
    file.write_text(f"{before}{wrong}{after}")
    line = before.count("\n") + 1
    assert says.format(f"{file}:{line}") in run_expecting_one_line(file, tmp_path / "w")


HMC = [
    "--config.method=hmc",
    "--config.sampler.num_leapfrog_steps=2",
    "--config.sampler.num_warmup=4",
]
HMC += ["--config.sampler.num_samples=20", "--config.sampler.thin=5", "--config.num_devices=2"]


@pytest.mark.check
def test_one_word_swaps_the_method(config_file, tmp_path):
    done = run(config_file, tmp_path / "w", *HMC)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "Left out, for" in line]
    for key in ("num_epochs=15", "ensemble_size=3", "batch_size=16"):
        assert key in line
    (line,) = [line for line in done.stderr.splitlines() if "config.prior was not set" in line]
    config = json.loads((tmp_path / "w" / "config.json").read_text())["config"]
    assert f"takes {config['prior']!r}." in line
    assert config["sampler"]["thin"] == 5
    assert not {"num_epochs", "learning_rate", "rwm", "density", "num_factors"} & config.keys()
    report = json.loads((tmp_path / "w" / "report.json").read_text())
    assert report["config"] == config
    assert newest_checkpoint(tmp_path / "w")[1]["config"] == config
    again = run(config_file, tmp_path / "w", *HMC)
    assert again.returncode == 0, again.stderr


@pytest.mark.check
def test_what_is_found_at_the_end_stands_below_the_table_alone(config_file, tmp_path):
    flags = ["--config.num_epochs=1", "--config.learning_rate=1e-9"]
    done = run(config_file, tmp_path / "run", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not measurably better") == 1
    assert "not measurably better" not in done.stderr


def test_a_file_with_a_few_keys_can_be_overridden_in_all(tmp_path):
    few = tmp_path / "few.py"
    few.write_text(
        "import ml_collections\n"
        "def get_config():\n"
        "    return ml_collections.ConfigDict({'num_epochs': 3, 'model': 'mlp'})\n"
    )
    done = run_here("train.py", f"--config={few}", "--explain", "--config.seed=5")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\* num_epochs = 3\n(.*\n)*  batch_size = 128\n", done.stdout, re.M)
    hmc = ["--config.method=hmc", "--config.sampler.thin=7", "--config.prior=normal(2)"]
    done = run_here("train.py", f"--config={few}", "--explain", *hmc)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\* model = mlp\n(.*\n)*\* sampler.thin = 7\n", done.stdout, re.M)
    (left_out,) = (line for line in done.stderr.splitlines() if "num_epochs=3" in line)
    assert "config.method='hmc' with config.model='mlp'" in left_out


def test_a_value_for_a_block_of_keys_is_one_line(tmp_path):
    few = tmp_path / "few.py"
    few.write_text(
        "import ml_collections\n"
        "def get_config():\n"
        "    return ml_collections.ConfigDict({'num_epochs': 3, 'augment': 'shift'})\n"
    )
    named = "config.augment.flip"
    assert named in run_expecting_one_line(few, tmp_path / "w")
    done = run_here("train.py", "--explain", "--config.augment=shift")
    assert done.returncode == 2
    assert named in done.stderr


@pytest.mark.check
def test_every_key_is_explained_and_nothing_is_trained(config_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_here("train.py", f"--config={config_file}", "--explain", "--config.seed=77")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\* seed = 77\n +\w.* must be ", done.stdout, re.M)
    assert re.search(r"^. num_epochs = 15\n", done.stdout, re.M)
    assert "sampler." not in done.stdout
    assert list(tmp_path.iterdir()) == []
    by_default = run_here("train.py", "--explain", "--config.method=hmc")
    assert by_default.returncode == 0, by_default.stderr
    assert re.search(r"^  sampler.thin = 10\n +\w", by_default.stdout, re.M)
    assert "num_epochs" not in by_default.stdout


@pytest.mark.check
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--explain", "--config.batch_size=0"], "config.batch_size=0"),
        (["--explain", "--config.sampler.thin=1"], "config.sampler.thin=1"),
        (["--explain", "--config.method=magic"], "config.method='magic'"),
        (["--explain", "--config.num_epochs=0"], "config.num_epochs=0"),
    ],
)
def test_what_would_be_refused_is_refused_when_it_is_explained(config_file, tmp_path, flags, line):
    assert line in run_expecting_one_line(config_file, tmp_path / "w", *flags)


@pytest.mark.check
def test_what_is_set_by_hand_for_another_method_is_refused_in_one_line(config_file, tmp_path):
    by_hand = ["--config.learning_rate=0.5", "--config.ensemble_size=4", "--config.seed=-1"]
    line = run_expecting_one_line(config_file, tmp_path / "w", *HMC, *by_hand)
    for named in (
        "(1) config.ensemble_size=4",
        "(2) config.learning_rate=0.5",
        "(3) config.seed=-1",
    ):
        assert named in line
    assert "num_epochs" not in line  # The file has set it.
    line = run_expecting_one_line(config_file, tmp_path / "w", "--config.sampler.thin=5")
    assert "config.sampler.thin=5" in line


def test_a_config_file_that_raises_is_one_line(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config():\n    return 1 / 0\n")
    line = run_expecting_one_line(broken, tmp_path / "w")
    assert "ZeroDivisionError" in line
    assert str(broken) in line
    assert "Traceback" not in line


@pytest.mark.check
def test_bad_arrays_are_one_line(config_file, tmp_path):
    blobs = make_blobs()
    cases = {
        "keys.npz": ({"a": blobs["inputs"], "b": blobs["labels"]}, "inputs"),
        "labels.npz": ({**blobs, "labels": blobs["labels"] - 1}, "-1"),
        "classes.npz": ({**blobs, "class_names": np.array(["a", "b"])}, "2"),
        "pickled.npz": ({**blobs, "inputs": np.array([{}] * 203, object)}, "pickle"),
    }
    for name, (arrays, line) in cases.items():
        np.savez(tmp_path / name, **arrays)
        printed = run_expecting_one_line(
            config_file, tmp_path / "w", f"--config.dataset=npz:{tmp_path / name}"
        )
        assert line in printed, printed


@pytest.mark.check
def test_a_file_that_may_not_grow_is_one_line(config_file, tmp_path):
    """`ulimit -f`: the system says EFBIG."""
    limited = "ulimit -f 20; exec " + shlex.join(
        [sys.executable, str(ROOT / "train.py"), f"--config={config_file}", f"--workdir={tmp_path}"]
    )
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.match(r"train.py: .*cannot be .*File too large", last), last
    assert "Traceback" not in done.stderr


@pytest.mark.check
@pytest.mark.parametrize("free", [0, 30_000])
def test_a_full_disk_is_one_line(config_file, small_disk, free):
    """Full at the start, and filled by the run itself."""
    fill(small_disk, free)
    line = run_expecting_one_line(config_file, small_disk / "w")
    assert "cannot be written" in line
    assert "No space left" in line


@pytest.mark.check
@pytest.mark.parametrize("every", [1, 10_000], ids=["in a save", "in a write of metrics"])
def test_a_disk_that_fills_up_leaves_the_checkpoint_before(
    unbroken, config_file, small_disk, every
):
    workdir = small_disk / "w"
    shutil.copytree(unbroken[0], workdir)
    metrics = workdir / "metrics.jsonl"
    more = ["--config.num_epochs=3000", f"--config.checkpoint_every_epochs={every}"]
    size = metrics.stat().st_size
    slow = command(config_file, workdir, *more)
    with started(slow, stderr=subprocess.PIPE) as process:
        while process.poll() is None and metrics.stat().st_size < size + 1000:
            time.sleep(0.01)
        before = newest_checkpoint(workdir)[1]["counters"]["step"]
        ballast = fill(small_disk)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"train.py: {workdir} cannot be written: No space left on device")
    ballast.unlink()
    assert newest_checkpoint(workdir)[1]["counters"]["step"] >= before


@pytest.mark.check
@pytest.mark.parametrize("is_half_removed", [False, True])
def test_a_workdir_that_is_removed_is_one_line(config_file, tmp_path, is_half_removed):
    workdir = tmp_path / "removed"
    slow = command(config_file, workdir, "--config.num_epochs=3000")
    with started(slow, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not any((workdir / "checkpoints").glob("*")):
            time.sleep(0.01)
        if is_half_removed:  # What `rm -r` leaves where the run has just written.
            (workdir / "config.json").unlink()
        else:
            shutil.rmtree(workdir, ignore_errors=True)  # It writes meanwhile.
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("train.py: ")
    assert "was removed " in errors.splitlines()[-1]


@pytest.mark.check
def test_a_corrupt_newest_checkpoint_is_a_warning(unbroken, config_file, tmp_path):
    workdir = tmp_path / "corrupt"
    shutil.copytree(unbroken[0], workdir)
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    victim = max((p for p in (newest / "state").rglob("*") if p.is_file()), key=os.path.getsize)
    os.truncate(victim, 10)
    done = run(config_file, workdir)
    assert done.returncode == 0, done.stderr
    assert f"Checkpoint {newest.name}" in done.stderr
    assert "the one before is used" in done.stderr
    assert final_state(workdir)[0] == final_state(unbroken[0])[0]


@pytest.mark.check
def test_a_live_workdir_is_refused(config_file, tmp_path):
    with held(tmp_path):
        assert "in use " in run_expecting_one_line(config_file, tmp_path)
