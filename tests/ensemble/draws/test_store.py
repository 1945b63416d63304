"""Draws come back as they were appended; damaged files end in one line."""

import re

import numpy as np
import pytest
from etils import epath

from ensemble import InputError
from ensemble.draws.store import Draws
from ensemble.storage.manifest import Manifest

NUM_CHAINS = 3
CHUNKS = [(0, 5), (5, 6), (6, 16)]


def scalars(first, end, num_chains=NUM_CHAINS):
    """Values that tell chain and draw."""
    numbers = np.arange(first, end) + 100.0 * np.arange(num_chains)[:, None]
    return {"log_density": -numbers, "is_divergent": numbers % 2 == 0}


def positions(numbers, num_chains=NUM_CHAINS):
    """Parameters that tell chain, draw and entry."""
    base = np.float32(100 * np.arange(num_chains)[:, None] + np.asarray(numbers, int))
    kernel = base[..., None, None] + np.arange(6, dtype=np.float32).reshape(2, 3) / 10
    return {"Dense_0": {"kernel": kernel, "bias": -base[..., None]}, "scale": base}


def numbers_of(first, end):
    """Every second draw; none of the chunk 5..5."""
    return np.arange(first + first % 2, end, 2)


def append_all(directory, chunks=CHUNKS):
    draws = Draws(directory)
    for first, end in chunks:
        numbers = numbers_of(first, end)
        draws.append(end, scalars(first, end), positions(numbers), numbers)
    return draws


def files(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["local", "remote"])
def directory(request, tmp_path):
    if request.param == "local":
        return epath.Path(tmp_path) / "draws"
    return request.getfixturevalue("bucket").path / "draws"


def assert_same(tree, expected):
    assert tree.keys() == expected.keys()
    for name, leaf in expected.items():
        if isinstance(leaf, dict):
            assert_same(tree[name], leaf)
        else:
            np.testing.assert_array_equal(tree[name], leaf)
            assert tree[name].dtype == leaf.dtype


def test_draws_come_back_as_they_were_appended(directory):
    written = append_all(directory)
    assert files(directory) == ["000000000.npz", "000000005.npz", "000000006.npz"]
    for draws in (written, Draws(directory)):
        assert draws.end == 16
        for first in (0, 3, 5, 6, 12):
            assert_same(draws.scalars(first), scalars(first, 16))
        tree, numbers = draws.positions()
        np.testing.assert_array_equal(numbers, [0, 2, 4, 6, 8, 10, 12, 14])
        assert_same(tree, positions(numbers))


def test_some_positions_are_evenly_spaced(directory):
    draws = append_all(directory)
    for count, expected in (
        (8, range(0, 16, 2)),
        (4, [2, 6, 10, 14]),
        (3, [4, 10]),
        (1, [14]),
    ):
        tree, numbers = draws.positions(draws.predicting(count))
        np.testing.assert_array_equal(numbers, expected)
        assert_same(tree, positions(numbers))


def test_no_draws(directory):
    draws = Draws(directory)
    draws.truncate(0)
    tree, numbers = draws.positions(draws.predicting(5))
    assert (draws.end, draws.scalars(), tree, numbers.tolist()) == (0, {}, {}, [])
    draws.append(2, scalars(0, 2), positions([]), [])  # A chunk without positions.
    tree, numbers = draws.positions()
    assert (tree, numbers.tolist()) == ({}, [])
    assert draws.scalars(first=2)["log_density"].shape == (NUM_CHAINS, 0)


def test_chains_join_before_their_first_draw(tmp_path):
    draws = Draws(epath.Path(tmp_path / "draws"))
    draws.joined(Draws(epath.Path(tmp_path / "others")))
    draws.join(takes=True)
    assert draws.end == 0


def test_a_resumed_run_replaces_the_draws_after_its_checkpoint(directory):
    append_all(directory)
    (directory / "000000006.npz").write_bytes(b"damaged, and of no use any more")
    (directory / ".000000006.npz.part").write_bytes(b"of a kill")
    draws = Draws(directory)
    draws.truncate(6)
    assert "000000006.npz" not in files(directory)
    assert_same(draws.scalars(), scalars(0, 6))
    draws.append(9, scalars(6, 9), positions([8]), [8])
    for again in (draws, Draws(directory)):
        assert_same(again.scalars(), scalars(0, 9))
        np.testing.assert_array_equal(again.positions()[1], [0, 2, 4, 8])


@pytest.mark.parametrize("end", [20, 10])
def test_a_checkpoint_that_ends_no_chunk_is_refused(directory, end):
    append_all(directory)
    with pytest.raises(InputError, match=f"16 draws.*{end}.*--workdir"):
        Draws(directory).truncate(end)
    assert len(files(directory)) == 3


@pytest.mark.parametrize(
    ("name", "gap"), [("000000000.npz", "0 to 4"), ("000000005.npz", "5 to 5")]
)
def test_a_gap_is_named(directory, name, gap):
    append_all(directory)
    (directory / name).unlink()
    for act in (lambda draws: draws.truncate(16), lambda draws: draws.scalars()):
        with pytest.raises(InputError, match=f"draws {gap} are missing, .*new --workdir"):
            act(Draws(directory))
    assert len(files(directory)) == 2


def test_the_disk_holds_whole_chunks_only(tmp_path, monkeypatch):
    directory = epath.Path(tmp_path) / "draws"
    draws = append_all(directory)
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        draws.append(18, scalars(16, 18), positions([16]), [16])
    assert draws.end == 16
    assert_same(Draws(directory).scalars(), scalars(0, 16))


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", [500, 700, -40])
def test_damage_ends_in_one_line(tmp_path, place):
    directory = epath.Path(tmp_path) / "draws"
    append_all(directory)
    path = directory / "000000005.npz"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content[: 2 * place] if place == 700 else content))
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} is damaged, .*--workdir$"):
        read_all(directory)


def read_all(directory):
    draws = Draws(directory)
    draws.scalars()
    draws.positions()


def test_draws_that_a_kill_left_without_an_entry_are_taken_again(tmp_path):
    directory = epath.Path(tmp_path) / "draws"
    append_all(directory)
    Manifest(directory.parent)._change({"draws/000000006.npz": None})
    draws = Draws(directory)
    assert draws.end == 6
    draws.truncate(6)
    assert files(directory) == ["000000000.npz", "000000005.npz"]


def test_other_files_are_let_alone(tmp_path):
    directory = epath.Path(tmp_path) / "draws"
    append_all(directory)
    (directory / "notes.npz").write_bytes(b"mine")
    draws = Draws(directory)
    draws.truncate(5)
    assert draws.end == 5
    assert files(directory) == ["000000000.npz", "notes.npz"]
