"""Files of a run that are damaged, or of another run, are refused in one line."""

import shutil

import names
import numpy as np
import pytest
from runs import classes
from small import MEMBERS, refused, train

CHAINS = {
    "method": "hmc",
    "prior": "normal(1)",
    "init_from": "prior",
    "num_chains": 2,
    "sampler.num_warmup": 4,
    "sampler.num_samples": 8,
    "sampler.thinning": 2,
    "sampler.num_leapfrog_steps": 2,
    "sampler.step_size": 0.02,
    "log_every_steps": 4,
    "checkpoint_every_epochs": 4,
}
LEFT_OUT = ("events", "plots", ".lock", "metrics.jsonl")
"""Files that are written on and on, or that nobody reads."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Workdirs of two finished runs of each kind, which differ by their seeds; only to be read."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        train({"checkpoint_every_epochs": 1, "seed": seed}, classes(), folder / f"members{seed}")
        chains = {key: one for key, one in MEMBERS.items() if key in ("model", "mlp.widths")}
        chains |= {**CHAINS, "seed": seed}
        names.train(chains, classes(), str(folder / f"chains{seed}"), show_progress=False)
    return folder


def files_of(run):
    found = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    return sorted(path for path in found if path.parts[0] not in LEFT_OUT)


def use(run, evaluates=True):
    """What a finished run predicts, and how it scores."""
    found = names.probs(names.load(run, calibrated=True)(classes()["inputs"][:5]))
    if not evaluates:
        return found, ""
    out = names.evaluate(run, run / "out", datasets=(), show_progress=False)
    return found, str(out)


@pytest.mark.parametrize("kind", ["members", "chains"])
def test_a_flipped_byte_is_refused_or_changes_nothing(kind, runs, tmp_path, caplog):
    whole = runs / f"{kind}0"
    expected, scores = use(shutil.copytree(whole, tmp_path / "whole"))
    newest = max(int(path.name) for path in (whole / "checkpoints").glob("[0-9]*"))
    num_refused = 0
    for path in files_of(whole):
        run = shutil.copytree(whole, tmp_path / "run")
        content = bytearray((run / path).read_bytes())
        content[len(content) // 2] ^= 1
        (run / path).write_bytes(content)
        caplog.clear()
        evaluates = path.name in ("test.npz", "results.json", "config.json")
        try:
            found, others = use(run, evaluates)
        except names.InputError as error:
            named = str(run / path) if path.parts[0] != "checkpoints" else "/checkpoints: none of"
            refused(lambda error=error: raised(error), named)
            num_refused += 1
        else:
            if f"Checkpoint {newest} of {run}/checkpoints is damaged" not in caplog.text:
                np.testing.assert_array_equal(found, expected, err_msg=str(path))
            assert others in ("", scores)
        shutil.rmtree(run)
    assert num_refused >= 5


def raised(error):
    raise error


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("members", "config.json"),
        ("members", "results.json"),
        ("members", "manifest.json"),
        ("members", "predictions/test.npz"),
        ("members", "checkpoints"),
        ("chains", "draws"),
    ],
)
def test_a_part_of_another_run_is_refused(kind, part, runs, tmp_path):
    run = shutil.copytree(runs / f"{kind}0", tmp_path / "run")
    other = runs / f"{kind}1" / part
    if other.is_dir():
        shutil.rmtree(run / part)
        shutil.copytree(other, run / part)
    else:
        shutil.copy(other, run / part)
    refused(lambda: use(run), str(run))


def test_a_checkpoint_that_is_damaged_is_put_aside_and_the_one_before_resumed(runs, tmp_path):
    run = shutil.copytree(runs / "members0", tmp_path / "run")
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    part = max(newest.rglob("d/*"), key=lambda path: path.stat().st_size)
    part.write_bytes(part.read_bytes()[:-9])
    train({"checkpoint_every_epochs": 1}, classes(), run)
    assert (names.file(run, "corrupt_checkpoints") / newest.name).exists()
    for whole, found in zip(use(runs / "members0", False), use(run, False), strict=True):
        np.testing.assert_array_equal(whole, found)
