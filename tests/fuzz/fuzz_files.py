"""Damages and forges files that programs read, over and over, for tests.

    python tests/fuzz/fuzz_files.py KIND FOLDER FIRST LAST

It is a process of its own, for a reader in C++ may abort. Every line is JSON: the number of an
input, how it ended, and what is wrong if something is. An input is seeded by its kind and number.
It may be `refused` by one line or be read. What was damaged, and not forged, must then be read as
if nothing had happened, or with a warning.
"""

import contextlib
import faulthandler
import io
import json
import logging
import os
import pathlib
import random
import resource
import shutil
import sys
import traceback
import zlib

import jax
import numpy as np
import pyarrow
import pyarrow.parquet
from etils import epath
from run_parts import examples_of, workdir_of
from small_runs import make_blobs, small_config
from spoiled import TEXTS, Said, mutate_bytes, mutate_document, mutate_json, mutate_npz

import ensemble
from ensemble import UserError
from ensemble.predictor import restore
from ensemble.source import TableKeys
from ensemble.sources import in_memory, load_dataset
from ensemble.sources.records import shards
from ensemble.sources.records.conversion import write_records
from ensemble.sources.records.index import EXAMPLES, INDEX
from ensemble.storage import schema
from ensemble.storage.checkpoint import Checkpointer
from ensemble.storage.checksum import checksum

MAX_SECONDS = 120
"""Of an input: the process ends, with a traceback."""
MAX_BYTES = 500_000_000
"""By which an input may raise the memory of the process at most."""


SAID = Said()


def must_be_same(found, expected):
    """Fails where what was damaged is read as something else, without a word."""
    if any("the one before is used" in line for line in SAID.lines):
        return "warned"
    np.testing.assert_equal(found, expected)
    return "the same"


# What each kind of input is: a function that prepares a folder, and returns one of a generator.


def damage(rng, path, other):
    """Flips bytes of a file, cuts it off, removes it, or puts another in its place."""
    content = path.read_bytes()
    match rng.randrange(12):
        case 0:
            path.write_bytes(content[: rng.randrange(len(content) or 1)])
        case 1:
            path.unlink()
        case 2:
            path.write_bytes(other.read_bytes() if other.is_file() else b"")
        case 3:
            path.unlink()
            path.mkdir()
        case 4:
            path.unlink()
            path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "nowhere", str(other), "."]))
        case 5:
            path.unlink()
            os.mkfifo(path)
        case 6 | 7:
            path.write_bytes(mutate_bytes(rng, content))
        case _:
            changed = bytearray(content)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)


def fresh(source, target):
    """A copy of a folder, in the place of the copy before."""
    while target.exists():  # A thread of Orbax may still write.
        shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def write_folders(folder, seeds):
    """Folders of records of 60 pictures each, in several shards."""
    shards.SHARD_BYTES = 20 * (60 + shards.HEADER.itemsize)
    for name, seed in seeds.items():
        rng = np.random.default_rng(seed)
        pictures = rng.integers(0, 200, (60, 5, 4, 3), np.uint8)
        np.savez(
            folder / f"{name}.npz",
            inputs=pictures,
            labels=np.array([*"abc"])[rng.permutation(60) % 3],
        )
        write_records(examples_of(f"npz:{folder / name}.npz"), folder / name)


def read_all(name, **options):
    """All examples of a data set."""
    source = load_dataset(name, **options)
    return {split: tuple(in_memory(source, split)) for split in source.sizes}


def write_index(file, content):
    """Writes an index whose checksum is right."""
    content.pop("checksum", None)
    with contextlib.suppress(Exception):  # Of what cannot be written so at all.
        content["checksum"] = schema.checksum(content)
    file.write_text(json.dumps(content))


def records(folder):
    """Folders of records: shards, the index and what is known of examples."""
    write_folders(folder, {"own": 0, "twin": 1})
    expected = read_all(f"records:{folder / 'own'}")
    names = sorted(path.name for path in (folder / "own").iterdir())

    def one(rng):
        copy = fresh(folder / "own", folder / "copy")
        if rng.random() < 0.7:
            name = rng.choice(names)
            damage(rng, copy / name, folder / "twin" / rng.choice([name, name, *names]))
            return must_be_same(read_all(f"records:{copy}"), expected)
        index = json.loads((copy / INDEX).read_text())
        if rng.random() < 0.6:
            (copy / EXAMPLES).write_bytes(mutate_npz(rng, (copy / EXAMPLES).read_bytes()))
            index["examples"] = crc_of(copy / EXAMPLES)
        else:
            index = mutate_document(rng, index)
        write_index(copy / INDEX, index)
        read_all(f"records:{copy}")
        return "forged"

    return one


def crc_of(path):
    return zlib.crc32(path.read_bytes())


CSV_MARKS = [",", ";", "\t", "|"]
CELLS = [*TEXTS, "?", "NA", "2024-12-31", "2024-12-31T25:00", "yes", '"a,b"', '"', "1,5", "\0", "﻿"]


def csv(folder):
    """CSV files: bytes, cells, rows, names of columns."""
    rng = np.random.default_rng(0)
    table = [
        [f"{value:.3f}", str(i % 7), "abc"[i % 3], f"2024-01-{i % 28 + 1:02d}", str(i % 2)]
        for i, value in enumerate(rng.normal(size=60))
    ]
    names = ["x", "n", "c", "d", "y"]

    def one(rng):
        rows = [list(names), *[list(row) for row in table]]
        for _ in range(rng.randint(0, 4)):
            row = rng.choice(rows[: rng.choice([1, None])])
            match rng.randrange(5):
                case 0:
                    del row[rng.randrange(len(row) or 1) :]
                case 1:
                    row.append(rng.choice(CELLS))
                case _:
                    if row:
                        row[rng.randrange(len(row))] = rng.choice(CELLS)
        if rng.random() < 0.1:  # A whole column.
            for row in rows[1:]:
                if len(row) > 1:
                    row[1] = rng.choice(CELLS)
        mark = rng.choice(CSV_MARKS) if rng.random() < 0.2 else ","
        text = rng.choice(["\n"] * 5 + ["\r\n", "\r"]).join(mark.join(row) for row in rows)
        content = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.3:
            content = mutate_bytes(rng, content)
        if rng.random() < 0.05:
            content = text.encode(rng.choice(["utf-16", "utf-8-sig", "utf-32"]), "surrogatepass")
        (folder / "t.csv").write_bytes(content)
        read_all(f"csv:{folder / 't.csv'}", table=keys_of(rng), seed=rng.randrange(3))
        return "read"

    return one


def keys_of(rng):
    """How a table is asked for: mostly as it can be."""
    if rng.random() < 0.7:
        return TableKeys(rng.choice(["y", "c", "x", "n"]))
    texts = [*TEXTS, "n=drop", "n=category", "d=number", "*=drop", "x=date", "c=boolean"]
    splits = ["", "group:c", "group:n", "time:d", "time:x", "time:c", *TEXTS]
    kind = rng.choice([None, None, "labels", "targets"])
    return TableKeys(rng.choice(["y", "c", "x"]), rng.choice(texts), rng.choice(splits), kind)


def parquet(folder):
    """Parquet files: bytes, and columns of types that are no column's."""
    rng = np.random.default_rng(0)
    plain = {
        "x": pyarrow.array(rng.normal(size=60)),
        "n": pyarrow.array(np.arange(60) % 7),
        "c": pyarrow.array([*"abc"] * 20),
        "d": pyarrow.array(np.arange(60).astype("datetime64[D]")),
        "y": pyarrow.array(np.arange(60) % 2),
    }
    types = [
        pyarrow.list_(pyarrow.int64()), pyarrow.struct([("a", pyarrow.int8())]), pyarrow.binary(),
        pyarrow.decimal128(38, 10), pyarrow.dictionary(pyarrow.int8(), pyarrow.string()),
        pyarrow.timestamp("ns", "Europe/Berlin"), pyarrow.time64("us"), pyarrow.duration("s"),
        pyarrow.null(), pyarrow.float16(), pyarrow.bool_(), pyarrow.large_string(),
        pyarrow.map_(pyarrow.string(), pyarrow.int8()), pyarrow.uint64(), pyarrow.date64(),
        pyarrow.binary(3), pyarrow.string_view(), pyarrow.list_(pyarrow.float32(), 2),
    ]  # fmt: skip
    odd = [None, 0, 1, -1, 2**62, 10**30, "", "a", b"abc", float("nan"), [1, 2], {"a": 1}, True]

    def write(rng, columns):
        out = io.BytesIO()
        table = pyarrow.table(list(columns.values()), names=list(columns))
        options = {
            "compression": rng.choice(["none", "snappy", "zstd", "gzip"]),
            "row_group_size": rng.choice([7, 60]),
            "use_dictionary": rng.random() < 0.5,
        }
        pyarrow.parquet.write_table(table, out, **options)
        return out.getvalue()

    def one(rng):
        columns = dict(plain)
        for _ in range(rng.choice([0, 0, 1, 2])):
            name = rng.choice([*columns, *TEXTS[:9]])
            with contextlib.suppress(pyarrow.ArrowException, TypeError, ValueError, OverflowError):
                value, kind = rng.choice(odd), rng.choice(types)
                gap = rng.choice([value, None])
                columns[name] = pyarrow.array([value, gap] * 30, kind)
        try:
            content = write(rng, columns)
        except (pyarrow.ArrowException, UnicodeError):
            content = write(rng, plain)  # There are types that cannot be written.
        if rng.random() < 0.7:
            content = mutate_bytes(rng, content)
        if rng.random() < 0.1:  # The footer says where all is.
            where = rng.randint(max(0, len(content) - 400), len(content))
            content = content[:where] + rng.randbytes(4) + content[where + 4 :]
        (folder / "t.parquet").write_bytes(content)
        read_all(f"parquet:{folder / 't.parquet'}", table=keys_of(rng))
        return "read"

    return one


def trained(folder):
    """Two runs on the blobs that differ by their seeds."""
    for name, seed in (("own", 0), ("twin", 1)):
        config = small_config(num_devices=1, seed=seed)
        ensemble.train(config, make_blobs(), str(folder / name), show_progress=False)


def newest(run):
    """The folder of a run's newest checkpoint."""
    numbers = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal()]
    return run / "checkpoints" / str(max(numbers))


def restored(run):
    """What programs read of a run's newest checkpoint."""
    found = restore(workdir_of(run))._asdict()
    found["fitted"] = vars(found["fitted"])
    del found["likelihood"]  # An object, made of the description.
    return found


def saved(run):
    """The arrays of a run's newest checkpoint, and what is said beside them."""
    checkpointer = Checkpointer(epath.Path(run) / "checkpoints")
    found = checkpointer.restore_latest(read_only=True)
    checkpointer.close()
    return found


def manifests(folder):
    """Files that say what others hold: of records, of checkpoints, of a run."""
    write_folders(folder, {"records": 0})
    trained(folder)
    twin = newest(folder / "twin")
    files = [
        "_CHECKPOINT_METADATA", "meta/metadata", "state/_METADATA", "state/manifest.ocdbt",
        "state/ocdbt.process_0/manifest.ocdbt",
    ]  # fmt: skip
    index = json.loads((folder / "records" / INDEX).read_text())
    expected = restored(folder / "own")

    def one(rng):
        if rng.random() < 0.4:
            copy = fresh(folder / "records", folder / "copy")
            if rng.random() < 0.5:
                write_index(copy / INDEX, mutate_document(rng, index))
            else:
                (copy / INDEX).write_bytes(mutate_json(rng, index))
            read_all(f"records:{copy}")
            return "forged"
        copy = fresh(folder / "own", folder / "copy")
        name = rng.choice([*files, "config.json", "report.json"])
        path = (copy if name.endswith(".json") else newest(copy)) / name
        if not path.is_file() or rng.random() < 0.3:
            damage(rng, path, twin / rng.choice(files))
            if name.endswith(".json"):
                ensemble.load(copy, num_devices=1)
                return "read"
        elif name.endswith(".ocdbt"):
            path.write_bytes(mutate_bytes(rng, path.read_bytes()))
        else:
            path.write_bytes(mutate_json(rng, json.loads(path.read_bytes())))
        return must_be_same(restored(copy), expected)

    return one


def checkpoints(folder):
    """Checkpoints: their files damaged and exchanged, their arrays and counts forged."""
    trained(folder)
    expected, (arrays, meta) = restored(folder / "own"), saved(folder / "own")
    source = newest(folder / "own")
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    twin = newest(folder / "twin")
    others = sorted(path for path in twin.rglob("*") if path.is_file())

    def one(rng):
        copy = fresh(folder / "own", folder / "copy")
        if rng.random() < 0.75:
            for _ in range(rng.choice([1, 1, 1, 2])):
                path = newest(copy) / rng.choice(names)
                if path.is_file() and not path.is_symlink():
                    damage(rng, path, rng.choice(others))
            if rng.random() < 0.1:
                part = rng.choice(["state", "meta", "state/d", "state/ocdbt.process_0"])
                if (newest(copy) / part).is_dir():
                    fresh(twin / part, newest(copy) / part)
            return must_be_same(restored(copy), expected)
        if rng.random() < 0.5:
            forge_meta(newest(copy), arrays, mutate_document(rng, meta))
        else:
            forge_arrays(rng, copy, arrays, meta)
        ensemble.load(copy, num_devices=1)
        if rng.random() < 0.05:  # It takes a second.
            (copy / "report.json").unlink()
            ensemble.train(
                small_config(num_devices=1, seed=0, num_epochs=4),
                make_blobs(),
                str(copy),
                show_progress=False,
            )
        return "forged"

    return one


def forge_meta(path, arrays, meta):
    """Writes what is said beside the arrays anew, with a checksum that is right."""
    meta.pop("whole_checksum", None)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        meta["whole_checksum"] = checksum(arrays, meta)
    (path / "meta" / "metadata").write_text(json.dumps(meta))


def forge_arrays(rng, run, arrays, meta):
    """Saves a checkpoint anew whose arrays are others."""
    arrays = jax.tree.map(np.array, arrays)
    for _ in range(rng.randint(1, 2)):
        place = arrays
        while True:
            key = rng.choice(list(place))
            if not isinstance(place[key], dict) or not place[key] or rng.random() < 0.1:
                break
            place = place[key]
        old = place[key]
        if old is None or isinstance(old, dict) or rng.random() < 0.2:
            match rng.randrange(3):
                case 0:
                    del place[key]
                case 1:
                    place["more"] = np.zeros(3)
                case _:
                    place[rng.choice(["x", "a/b", "0", " "])] = place.pop(key)
        else:
            place[key] = forged_array(rng, old)
        if not place:
            break
    step = int(newest(run).name) + 1
    checkpointer = Checkpointer(epath.Path(run) / "checkpoints", keep=9)
    checkpointer.save(step, arrays, meta)
    checkpointer.close()


def forged_array(rng, array):
    """Another array than one that was saved."""
    array = np.asarray(array)
    match rng.randrange(8):
        case 0:
            return array.astype(rng.choice([np.int8, np.float64, np.complex64, bool, np.uint32]))
        case 1:
            return array[None]
        case 2:
            return array[:0] if array.ndim else np.zeros((2, 3), array.dtype)
        case 3:
            return array[..., :1] if array.ndim else array[None]
        case 4:
            return np.repeat(array, 2, axis=0) if array.ndim else array
        case 5:
            return np.full_like(array, np.nan) if array.dtype.kind == "f" else array * 0 + 99
        case 6:
            return np.full_like(array, 3e38) if array.dtype.kind == "f" else array * 0 - 1
        case _:
            return np.array(7, array.dtype)


KINDS = {
    "records": records, "csv": csv, "parquet": parquet, "manifests": manifests,
    "checkpoints": checkpoints,
}  # fmt: skip


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def judged(one, rng):
    """How an input ends, and what is wrong with that."""
    SAID.lines.clear()
    before = peak_bytes()
    try:
        ended, wrong = one(rng), ""
    except UserError as error:
        ended, wrong = "refused", "two lines" * (len(str(error).splitlines()) != 1)
    except (ensemble.RunFailed, ensemble.Interrupted) as error:
        ended, wrong = "refused", "two lines" * (len(str(error).splitlines()) != 1)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in where[:-5:-1])
        ended, wrong = "wrong", f"{type(error).__name__} {place}: {str(error)!r:.300}"
    if peak_bytes() - before > MAX_BYTES:
        ended, wrong = "wrong", f"memory: {peak_bytes() - before:,} bytes more; {wrong}"
    return ended, wrong


def main(argv):
    """Does what the command line says."""
    kind, folder, first, last = argv[0], pathlib.Path(argv[1]), int(argv[2]), int(argv[3])
    logger = logging.getLogger("ensemble")
    logger.handlers, logger.propagate = [SAID], False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    one = KINDS[kind](folder)
    for number in range(first, last):
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
        ended, wrong = judged(one, random.Random(f"{kind} {number}"))
        print(json.dumps([number, ended, wrong]), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1:])
