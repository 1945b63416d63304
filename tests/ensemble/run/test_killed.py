"""Runs of every registered method in real processes: killed, they end with the same bits."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import time

import jax
import many_processes
import numpy as np
import pytest
from conftest import ROOT, free_port, make_blobs, started
from kills import assert_same, kill_often, result_of
from run_parts import records_of

import ensemble
from ensemble import registry

METHODS = [*registry.METHODS, *many_processes.OTHERS]
OF_ONE_CLASS = ("nuts", "mclmc", "adjusted_mclmc", "tempering", "sgld", *many_processes.OTHERS)
"""Methods whose class another method has, too."""
MARKED = [
    pytest.param(one, marks=pytest.mark.soak if one in OF_ONE_CLASS else pytest.mark.check)
    for one in METHODS
]


@contextlib.contextmanager
def both(root, log, methods):
    """Two processes of two devices each that run some methods; always the same command."""
    worker = [sys.executable, str(ROOT / "tests" / "many_processes.py"), f"127.0.0.1:{free_port()}"]
    stage = many_processes.METHODS + ",".join(methods)
    variables = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                started(
                    [*worker, "2", str(k), "2", str(root), stage],
                    env={**os.environ, **variables},
                    stdout=stack.enter_context(open(f"{log}_{k}.log", "w")),
                    stderr=subprocess.STDOUT,
                )
            )
            for k in range(2)
        ]


def steps_of(workdir):
    return [int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal()]


@pytest.fixture(scope="module")
def root(tmp_path_factory, request):
    """The folders `killed` and `whole` with a workdir for each method that is asked for.

    While a method runs in `killed`, one of the two processes is killed. Both are started again by
    the same command, end that run and begin the next method's. Nobody kills the runs of `whole`.
    """
    root = tmp_path_factory.mktemp("every")
    items = [one for one in request.session.items if one.module is request.module]
    asked = {one.callspec.params.get("method") for one in items if hasattr(one, "callspec")}
    methods = [method for method in METHODS if method in asked]
    for number, method in enumerate(methods):
        workdir = root / "killed" / method
        with both(root, root / method, methods) as processes:
            while not steps_of(workdir):
                for k, process in enumerate(processes):
                    assert process.poll() is None, (root / f"{method}_{k}.log").read_text()
                time.sleep(0.001)
            processes[number % 2].kill()
            assert [process.wait(timeout=60) != 0 for process in processes] == [True, True]
        (root / f"{method}.json").write_text(json.dumps(steps_of(workdir)))
        assert not (workdir / "report.json").exists()
    with both(root, root / "last", methods) as processes:
        statuses = [process.wait(timeout=300) for process in processes]
        assert statuses == [0, 0], (root / "last_0.log").read_text()
    return root


@pytest.mark.parametrize("method", MARKED)
def test_where_one_of_two_processes_was_killed_the_bits_are_the_same(root, method):
    killed, whole = root / "killed" / method, root / "whole" / method
    saved = json.loads((root / f"{method}.json").read_text())
    assert 0 < max(saved) < max(steps_of(killed)) == max(steps_of(whole))
    assert_same(killed, result_of(whole))


@pytest.mark.parametrize("method", MARKED)
def test_one_process_with_all_their_devices_learns_the_same(root, method, tmp_path):
    config, data = many_processes.every_method(root)[method]
    config.num_devices = 4
    ensemble.train(config, data, str(tmp_path), show_progress=False)
    found, expected = result_of(tmp_path), result_of(root / "whole" / method)
    for part in {"metrics", "state", "positions", "log_probs"} & expected.keys():
        jax.tree.map(assert_near, found[part], expected[part])


def assert_near(found, expected):
    """Sums over devices may be rounded otherwise where processes exchange them."""
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


CONFIG = """
from ensemble import default_config


def get_config():
    config = default_config()
    config.update_from_flattened_dict({values})
    return config
"""
NUM_KILLS = 17
"""Of each kind, so that all have 200 and some."""


KINDS = [*registry.METHODS, "streamed", "streamed_apart", "split", *many_processes.OTHERS]
"""Every method by data in memory, SGD by records on disk and of members that two devices hold
together, and runs of applications."""


def values_of(kind, folder):
    """What a kind's configuration sets: a run of a second or two that saves often."""
    if kind in many_processes.OTHERS:
        return {"num_devices": 2, **many_processes.OTHERS[kind]}
    method = kind if kind in registry.METHODS else "sgd"
    small = many_processes.SMALL[registry.METHODS[method].tasks[0]]
    values = {"num_devices": 2, "method": method, **small, "dataset": f"npz:{folder / 'blobs.npz'}"}
    values |= many_processes.OF_METHODS.get(method, {})
    if method == "laplace":
        values["init_from"] = str(folder / "members")
        many_processes.train_members(folder, dataset=values["dataset"], num_devices=2)
    if kind.startswith("streamed"):
        values["dataset"] = f"records:{folder / 'records'}"
    if kind == "streamed_apart":
        values["batching"] = "independent"
    if kind == "split":
        values |= {"num_devices": 4, "model": "mlp", "member_devices": 2}
    return values


@pytest.mark.parametrize(
    ("kind", "num_kills"),
    [
        *[pytest.param(kind, NUM_KILLS, marks=pytest.mark.soak) for kind in KINDS],
        pytest.param("streamed", 1, marks=pytest.mark.check),
    ],
)
def test_a_process_killed_at_random_moments_ends_with_the_same_bits(
    kind, num_kills, tmp_path, record_property
):
    """A process alone, of two devices."""
    np.savez(tmp_path / "blobs.npz", **make_blobs())
    records_of(f"npz:{tmp_path / 'blobs.npz'}")
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(values=values_of(kind, tmp_path)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, str(ROOT / "train.py"), f"--config={config}"]
    subprocess.run([*command, f"--workdir={whole}"], check=True, capture_output=True)
    check = functools.partial(assert_same, killed, result_of(whole))
    command.append(f"--workdir={killed}")
    moments = kill_often(command, killed, num_kills, len(kind), check)
    record_property("counted", json.dumps({f"kills of {kind}": dict(moments)}))
    assert moments.total() >= num_kills
