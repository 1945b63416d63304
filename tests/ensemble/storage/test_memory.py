"""What memory cannot hold is refused before it is taken."""

import jax
import pytest
from conftest import small_config
from run_parts import loop_of, task_of, validated

import ensemble
from ensemble import InputError
from ensemble.run.loop import create_method
from ensemble.storage import memory

SAMPLER = {
    "method": "hmc",
    "model": "logistic_regression",
    "prior": "normal(1)",
    "num_chains": 2**20,
    "log_every_steps": 10,
}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            small_config(ensemble_size=2**20),
            r"config\.ensemble_size=1048576 members of 83 parameters would take 2\.\d GiB, over "
            r"the 1\.0 of this machine; lower it",
        ),
        (
            small_config(method="snapshot_ensemble", ensemble_size=2**17)
            | {"snapshot_ensemble.num_cycles": 20, "num_epochs": 20},
            r"config\.ensemble_size=131072 members of 83 parameters would take \d+\.\d GiB, over",
        ),
        (
            SAMPLER,
            r"config\.num_chains=1048576 chains of 21 parameters would take \d+\.\d GiB, over the "
            r"1\.0 of this machine; lower config\.num_chains or config\.log_every_steps",
        ),
        (
            SAMPLER
            | {"num_chains": 2, "log_every_steps": 2**25, "sampler": {"num_samples": 2**25}},
            r"config\.num_chains=2 chains .* lower config\.num_chains or config\.log_every_steps",
        ),
    ],
)
def test_what_is_too_large_is_one_line(config, line, blobs, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**30)
    with pytest.raises(InputError, match=line) as error:
        ensemble.train(config, data=blobs)
    assert "\n" not in str(error.value)


OF_BATCHES = {
    "method": "sghmc",
    "model": "small_runs:Tiny",
    "num_chains": 2**20,
    "batch_size": 29,
    "sgmcmc": {"num_samples": 10, "steps_per_draw": 3},
}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (OF_BATCHES, r"chains of .* would take \d\.\d GiB, over the 0\.\d of the devices"),
        (small_config(ensemble_size=2**20), r"members of .* would take 0\.6 GiB, over the 0\.1 of"),
        (SAMPLER, r"chains of .* would take \d+\.\d GiB, over the 0\.5 of the devices; lower c"),
    ],
)
def test_devices_hold_less_than_the_host(config, line, blobs, monkeypatch):
    """Where they have memory of their own, as accelerators do."""
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**40)
    monkeypatch.setattr(memory, "own_bytes", lambda devices: 2**26)
    with pytest.raises(InputError, match=line):
        loop_of(config, blobs)


@pytest.mark.parametrize(
    ("config", "limit"), [(small_config(ensemble_size=2**20), 1), (OF_BATCHES, 4)]
)
def test_a_process_needs_memory_for_its_own_part_alone(config, limit, blobs, monkeypatch):
    config = validated(config)
    task = task_of(config, blobs)
    monkeypatch.setattr(memory, "memory_bytes", lambda: limit * 2**30)
    with pytest.raises(InputError, match=rf"take \d+\.\d GiB, over the {limit}\.0 of this machine"):
        create_method(config, task)
    monkeypatch.setattr(jax, "process_count", lambda: 8)
    create_method(config, task)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "3000", "memory.max": "9000"}, 3000),
        ("0::/", {"memory.max": "2000"}, 2000),
        ("0::/a", {}, None),
    ],
)
def test_the_limit_of_a_container_is_the_memory(groups, files, limit, tmp_path, monkeypatch):
    (tmp_path / "own").write_text(groups + "\n")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    without = memory.os.sysconf("SC_PAGE_SIZE") * memory.os.sysconf("SC_PHYS_PAGES")
    found = memory.memory_bytes()
    assert found == limit if limit else found <= without and found > 10**6


def test_what_fits_is_let_through(monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1000)
    memory.check_memory(1000, "this", "it")
    with pytest.raises(InputError, match="this would take"):
        memory.check_memory(1001, "this", "it")


@pytest.mark.parametrize(("asked", "taken"), [(29, 29), (2**31 - 1, None)])
def test_a_batch_has_no_more_than_all_examples(blobs, asked, taken):
    config = validated(small_config(batch_size=asked))
    task = task_of(config, blobs)
    method = create_method(config, task)
    num_examples = task.num_train_examples
    assert method.steps_per_epoch == -(-num_examples // (taken or num_examples))
