"""What memory cannot hold is refused before it is taken."""

import pytest
from conftest import small_config
from run_parts import task_of, validated

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


OF_BATCHES = {
    "method": "sghmc",
    "model": "small_runs:Tiny",
    "num_chains": 2**20,
    "batch_size": 29,
    "sgmcmc": {"num_samples": 10, "steps_per_draw": 3},
}
LARGE = {
    "members": small_config(ensemble_size=2**20),
    "members that try settings": small_config(
        method="kfold_bagging", model="mlp", num_epochs=4, ensemble_size=256
    )
    | {"mlp.widths": "1024,1024"},
    "chains": SAMPLER,
    "chains of batches": OF_BATCHES,
    "long lines": SAMPLER
    | {"num_chains": 2, "log_every_steps": 2**25, "sampler": {"num_samples": 2**25}},
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_one_line(name, blobs, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**26)
    line = (
        r"^the states of \d+ (members|chains) would take \d+\.\d GiB, over the 0\.1 of this "
        "machine; lower their number"
    )
    with pytest.raises(InputError, match=line) as error:
        ensemble.train(LARGE[name], data=blobs)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["members", "chains of batches"])
def test_devices_hold_less_than_the_host(name, blobs, monkeypatch):
    """Where they have memory of their own, as accelerators do."""
    monkeypatch.setattr(memory, "memory_bytes", lambda: 2**40)
    monkeypatch.setattr(memory, "own_bytes", lambda devices: 2**26)
    with pytest.raises(InputError, match=r"would take \d\.\d GiB, over the 0\.\d of the devices"):
        ensemble.train(LARGE[name], data=blobs)


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
