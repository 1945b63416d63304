"""Draws come back as they were appended, and no file of another hand does harm."""

import io
import re
import zipfile
from typing import ClassVar

import numpy as np
import pytest
from etils import epath

from ensemble import UserError
from ensemble.draws.store import Draws

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
        draws.append(first, end, scalars(first, end), positions(numbers), numbers)
    return draws


def files(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["local", "remote"])
def directory(request, tmp_path):
    if request.param == "local":
        return epath.Path(tmp_path) / "run" / "draws"
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


def test_many_positions_are_mostly_as_many_as_are_asked_for(directory):
    draws = Draws(directory)
    draws.append(0, 400, {"x": np.zeros((1, 400))}, {"a": np.zeros((1, 400))}, np.arange(400))
    before, num_changes = np.zeros(0), 0
    for most in (100, 90, 80, 70):
        found = draws.predicting(most)
        assert 0.8 * most <= len(found) <= most
        assert np.ptp(np.diff(found)) <= 1
    for number in range(10, 401):  # As if so many had been kept.
        some = Draws(directory / str(number))
        some.append(
            0, number, {"x": np.zeros((1, number))}, {"a": np.zeros((1, number))}, range(number)
        )
        found = some.predicting(50)
        assert min(number, 40) <= len(found) <= 50
        num_changes += before.tolist() != found[: len(before)].tolist()
        before = found
    assert num_changes <= 12


def test_scalars_are_read_once(directory):
    append_all(directory)
    draws = Draws(directory)
    before = draws.scalars()
    for path in directory.iterdir():
        path.unlink()
    assert_same(draws.scalars(), before)


def test_what_is_appended_is_a_copy(directory):
    values, draws = scalars(0, 4), Draws(directory)
    draws.append(0, 4, values, {}, [])
    values["log_density"][:] = 7
    assert_same(draws.scalars(), scalars(0, 4))


def test_no_draws(directory):
    draws = Draws(directory)
    draws.truncate(0)
    tree, numbers = draws.positions(draws.predicting(5))
    assert (draws.end, draws.scalars(), tree, numbers.tolist()) == (0, {}, {}, [])
    draws.append(0, 2, scalars(0, 2), positions([]), [])  # A chunk without positions.
    tree, numbers = draws.positions()
    assert (tree, numbers.tolist()) == ({}, [])
    assert draws.scalars(first=2) == {}


def test_a_resumed_run_replaces_the_draws_after_its_checkpoint(directory):
    append_all(directory)
    (directory / "000000006.npz").write_bytes(b"damaged, and of no use any more")
    (directory / ".000000006.npz.part").write_bytes(b"of a kill")
    draws = Draws(directory)
    draws.truncate(6)
    assert "000000006.npz" not in files(directory)
    assert_same(draws.scalars(), scalars(0, 6))
    draws.append(6, 9, scalars(6, 9), positions([8]), [8])
    for again in (draws, Draws(directory)):
        assert_same(again.scalars(), scalars(0, 9))
        np.testing.assert_array_equal(again.positions()[1], [0, 2, 4, 8])


@pytest.mark.parametrize("end", [20, 10])
def test_a_checkpoint_that_ends_no_chunk_is_refused(directory, end):
    append_all(directory)
    with pytest.raises(UserError, match=f"16 draws.*{end}.*--workdir"):
        Draws(directory).truncate(end)
    assert len(files(directory)) == 3


@pytest.mark.parametrize(
    ("name", "gap"), [("000000000.npz", "0 to 4"), ("000000005.npz", "5 to 5")]
)
def test_a_gap_is_named(directory, name, gap):
    append_all(directory)
    (directory / name).unlink()
    for act in (lambda draws: draws.truncate(16), lambda draws: draws.scalars()):
        with pytest.raises(UserError, match=f"draws {gap} are missing, .*new --workdir"):
            act(Draws(directory))
    assert len(files(directory)) == 2


def test_the_disk_holds_whole_chunks_only(tmp_path, monkeypatch):
    directory = epath.Path(tmp_path) / "draws"
    draws = append_all(directory)
    monkeypatch.setattr(type(directory), "replace", fail)
    with pytest.raises(OSError, match="No space"):
        draws.append(16, 18, scalars(16, 18), positions([16]), [16])
    assert draws.end == 16
    assert_same(Draws(directory).scalars(), scalars(0, 16))


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": 4}, "do not continue a chain of 5"),
        ({"first": 6}, "do not continue a chain of 5"),
        ({"end": 5}, "do not continue"),
        ({"end": 8}, "log_density.*float64 .3, 2..*.3, 3."),
        ({"scalars": scalars(5, 7, num_chains=2)}, "not numbers .3, 2."),
        ({"scalars": {"log_density": np.zeros((3, 2))}}, "not those of the draws before"),
        ({"scalars": {}}, "not those of the draws before"),
        ({"position_numbers": [6, 5]}, "ascending"),
        ({"position_numbers": [5, 7]}, "ascending"),
        ({"position_numbers": [5]}, r"Dense_0/kernel.*float32 \(3, 2, 2, 3\).*3, 1"),
        ({"positions": {}}, "no positions for 2 draws"),
        ({"positions": positions([5, 6], num_chains=2)}, "not numbers .3, 2"),
        ({"positions": {"w": np.full((3, 2), "x")}}, "not numbers"),
    ],
)
def test_what_does_not_fit_is_not_appended(tmp_path, change, message):
    draws = append_all(epath.Path(tmp_path), [(0, 5)])
    chunk = {
        "first": 5,
        "end": 7,
        "scalars": scalars(5, 7),
        "positions": positions([5, 6]),
        "position_numbers": [5, 6],
    }
    with pytest.raises(ValueError, match=message):
        draws.append(**{**chunk, **change})
    assert files(epath.Path(tmp_path)) == ["000000000.npz"]
    draws.append(**chunk)


# Files of another hand.


def npz(**changes):
    """The content of the second chunk, changed; a change to None removes an array."""
    arrays = {"range": np.array([5, 7]), "numbers": np.array([5, 6])}
    arrays |= {f"scalars/{name}": values for name, values in scalars(5, 7).items()}
    kernel, bias = positions([5, 6])["Dense_0"].values()
    arrays |= {"positions/Dense_0/kernel": kernel, "positions/Dense_0/bias": bias}
    arrays |= {"positions/scale": positions([5, 6])["scale"], **changes}
    content = io.BytesIO()
    np.savez(content, **{name: array for name, array in arrays.items() if array is not None})
    return content.getvalue()


def with_member(name, content, compression=zipfile.ZIP_STORED):
    """The second chunk with other bytes for one array."""
    old, new = zipfile.ZipFile(io.BytesIO(npz())), io.BytesIO()
    with zipfile.ZipFile(new, "w") as archive:
        for member in old.namelist():
            mine = member == f"{name}.npy"
            archive.writestr(
                member,
                content if mine else old.read(member),
                compression if mine else zipfile.ZIP_STORED,
            )
    return new.getvalue()


def npy_header(shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def flipped(content):
    middle = content.index(b"scalars/log_density.npy") + 180
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Harm:
    """Says that it was unpickled."""

    harmed: ClassVar[list] = []

    def __reduce__(self):
        return _harm, ()


def _harm():
    Harm.harmed.append("unpickled")


PICKLED = np.array([Harm()], dtype=object)
IN_SCALARS = {
    "empty": b"",
    "no_zip": b"draws",
    "cut": npz()[:-200],
    "flipped_bit": flipped(npz()),
    "npy": npz()[:0] + npy_header((10**13,)),
    "pickle": npz(**{"scalars/log_density": PICKLED}),
    "compressed": with_member(
        "scalars/log_density", npy_header((3, 2)) + bytes(48), zipfile.ZIP_DEFLATED
    ),
    "huge_shape": with_member("scalars/log_density", npy_header((10**7, 10**7))),
    "overflowing_shape": with_member("scalars/log_density", npy_header((2**62, 2**62))),
    "negative_shape": with_member("scalars/log_density", npy_header((-3, 2))),
    "bad_header": with_member("scalars/log_density", b"\x93NUMPY\x01\x00\x08\x00((((((((" * 9),
    "no_range": npz(range=None),
    "odd_range": npz(range=np.array(5)),
    "other_range": npz(range=np.array([5, 8])),
    "range_of_another": npz(range=np.array([4, 6])),
    "backwards": npz(range=np.array([5, 3])),
    "no_numbers": npz(numbers=None),
    "numbers_of_others": npz(numbers=np.array([1, 2])),
    "fractions": npz(numbers=np.array([5.0, 6.0])),
    "text": npz(**{"scalars/log_density": np.full((3, 2), "x")}),
    "missing_scalar": npz(**{"scalars/log_density": None}),
    "more_scalars": npz(**{"scalars/more": np.zeros((3, 2))}),
    "other_chains": npz(**{"scalars/log_density": np.zeros((4, 2))}),
    "no_chains": npz(**{"scalars/log_density": np.zeros(())}),
}
IN_POSITIONS = {
    "no_positions": npz(**dict.fromkeys([f"positions/{n}" for n in ("scale",)])),
    "other_shape": npz(**{"positions/scale": np.zeros((3, 2, 4), np.float32)}),
    "other_count": npz(**{"positions/scale": np.zeros((3, 3), np.float32)}),
    "pickle": npz(**{"positions/scale": PICKLED}),
    "huge_shape": with_member("positions/scale", npy_header((3, 2, 10**13))),
}


def read_all(directory):
    draws = Draws(directory)
    draws.scalars()
    draws.positions()


@pytest.mark.parametrize(
    "content",
    [*IN_SCALARS.values(), *IN_POSITIONS.values()],
    ids=[*IN_SCALARS, *(f"positions_{name}" for name in IN_POSITIONS)],
)
def test_damage_ends_in_one_line(tmp_path, content):
    directory = epath.Path(tmp_path)
    append_all(directory, [(0, 5)])
    path = directory / "000000005.npz"
    path.write_bytes(npz())
    read_all(directory)  # Sound without the change.
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))} is damaged .*--workdir$") as info:
        read_all(directory)
    assert "\n" not in str(info.value)
    assert Harm.harmed == []


def test_other_files_are_let_alone(tmp_path):
    directory = epath.Path(tmp_path)
    append_all(directory)
    (directory / "notes.npz").write_bytes(b"mine")
    draws = Draws(directory)
    draws.truncate(5)
    assert draws.end == 5
    assert files(directory) == ["000000000.npz", "notes.npz"]
