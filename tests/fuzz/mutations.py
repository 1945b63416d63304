"""Damages or exchanges parts of workdirs, over and over, and says what came of it, for tests.

    python tests/fuzz/mutations.py bytes RUN FILES COUNT
    python tests/fuzz/mutations.py parts RUN,RUN,...

It is a process of its own, for a reader may abort. The last line is JSON: how often a change was
`refused` by one line, made `no_difference`, was `warned` of, as where the checkpoint before is
used, or was `bad`: a result that differs without a word, or a traceback.
"""

import collections
import itertools
import json
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile

import numpy as np
import small_runs  # noqa: F401  It registers the network.
from spoiled import Said

PARTS = (
    "checkpoints",
    "config.json",
    "report.json",
    "draws",
    "predictions",
    "predictions/test.npz",
    "predictions/calibration.npz",
)


def outcome(workdir):
    """What programs read of a run: its predictions, of now and as they are stored, its scores."""
    import ensemble
    from ensemble.evaluation.page import drawable_records
    from ensemble.evaluation.subject import Subject

    predictor = ensemble.load(workdir, num_devices=1)
    inputs = np.random.default_rng(0).uniform(0, 1, (5, *predictor.dataset.input_shape))
    inputs = inputs.astype(predictor.dataset.input_dtype)
    subject = Subject(str(workdir), num_devices=1)
    test, calibration = subject.test, subject.calibration
    drawable_records(subject)
    stored = {
        "log_probs": test.arrays["log_probs"],
        "targets": test.targets,
        "members": test.members,
    }
    stored |= {"calibration": calibration.arrays["log_probs"], "their_targets": calibration.targets}
    return {
        **predictor.member_arrays(inputs),
        **{f"stored_{name}": np.asarray(array) for name, array in stored.items()},
        "scores": json.dumps(subject.report["test"], sort_keys=True),
        "names": json.dumps(subject.description["class_names"]),
    }


def judged(workdir, expected):
    """How programs take a changed workdir; with it why, where that is bad."""
    from ensemble import UserError

    said = Said()
    logging.getLogger("ensemble").addHandler(said)
    try:
        found = outcome(workdir)
    except UserError as error:
        lines = str(error).splitlines()
        return ("refused", "") if len(lines) == 1 else ("bad", f"{len(lines)} lines: {error}")
    except Exception as error:
        return "bad", f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("ensemble").removeHandler(said)
    same = found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in expected
    )
    if same:
        return "no_difference", ""
    is_told = any("the one before is used" in line for line in said.lines)
    return ("warned", "") if is_told else ("bad", "another result, without a word")


def mutate(run, pattern, count):
    """Changes one byte of the files that a pattern names, one change at a time."""
    expected, results = outcome(run), collections.Counter()
    rng = random.Random(pattern)
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder, "run")
        shutil.copytree(run, workdir)
        files = [path for path in sorted(workdir.glob(pattern)) if path.is_file()]
        files = [path for path in files if path.stat().st_size]
        for number in range(count):
            path = files[number % len(files)]
            content = path.read_bytes()
            where = rng.randrange(len(content))
            changed = bytearray(content)
            changed[where] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            kind, why = judged(workdir, expected)
            note(results, kind, f"{path.relative_to(workdir)} at {where}: {why}")
            path.write_bytes(content)
    return results


def exchange(runs):
    """Puts parts of each run in the place of those of each other one, one part at a time."""
    results = collections.Counter()
    for own, other in itertools.permutations(runs, 2):
        expected = outcome(own)
        for part in PARTS:
            if not (own / part).exists() or not (other / part).exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                workdir = pathlib.Path(folder, "run")
                shutil.copytree(own, workdir)
                if (workdir / part).is_dir():
                    shutil.rmtree(workdir / part)
                    shutil.copytree(other / part, workdir / part)
                else:
                    shutil.copy(other / part, workdir / part)
                kind, why = judged(workdir, expected)
            is_used = kind == "no_difference"
            note(results, "bad" if is_used else kind, f"{part} of {other} in {own}: {why or kind}")
    return results


def note(results, kind, text):
    results[kind] += 1
    if kind == "bad":
        print(text, flush=True)


def main(argv):
    """Does what the command line says."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if argv[0] == "bytes":
        results = mutate(pathlib.Path(argv[1]), argv[2], int(argv[3]))
    else:
        results = exchange([pathlib.Path(one) for one in argv[1].split(",")])
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
