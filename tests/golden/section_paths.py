"""Where version 2 of report.json and evaluation.json has what version 1 had elsewhere.

`python -m tests.golden.section_paths OLD.json` compares the numbers of version 1, as an old commit
recorded them in `stated_numbers.json`, with those that are recorded now: it names every number that
has moved, and every path that is only in one of both.
"""

import json
import math
import re
import sys

NAME, PART = r"([^.]+)", r"(?:targets\.(\d+)\.)?"
TABLE = (
    # report.json, paths that begin with `report.` here.
    (rf"report\.(test|validation)\.(?:ensemble|diversity)\.{NAME}", r"report.\1.scores.\2.value"),
    (rf"report\.(test|validation)\.members\.{NAME}\.(.+)", r"report.\1.scores.\2.members.\3"),
    (
        rf"report\.(test|validation)\.targets\.(\d+)\.{NAME}",
        r"report.\1.targets.\2.scores.\3.value",
    ),
    (rf"report\.test\.simple\.{NAME}\.{NAME}", r"report.simple.\1.scores.\2.value"),
    # The scores of the test split, and of each target.
    (rf"{PART}test\.ensemble\.{NAME}", r"{test}scores.\2.value"),
    (rf"{PART}test\.(interval|members)\.{NAME}\.(.+)", r"{test}scores.\3.\2.\4"),
    (rf"{PART}test\.(mean|sd)\.{NAME}", r"{test}scores.\3.\2"),
    (rf"{PART}test\.num_examples", r"{test}num_rows"),
    (rf"{PART}test\.num_groups", r"{test}num_groups"),
    (rf"{PART}test\.(.+)", r"{part}facts.\2"),
    # What is calibrated.
    (
        rf"{PART}calibrated\.(?:temperature|scale)\.ensemble\.{NAME}",
        r"{part}calibrated.scores.\2.value",
    ),
    (
        rf"{PART}calibrated\.(?:temperature|scale)\.interval\.{NAME}\.(.+)",
        r"{part}calibrated.scores.\2.interval.\3",
    ),
    (rf"{PART}calibrated\.(?:temperature|scale)\.(.+)", r"{part}calibrated.\2"),
    (rf"{PART}calibrated\.conformal\.(distance|quantiles)\.(.+)", r"{part}conformal.\2.\3"),
    (rf"{PART}calibrated\.conformal\.(.+)", r"{part}conformal.sets.\2"),
    # Simple predictors, accepted examples, rows beyond the training range.
    (rf"{PART}simple\.{NAME}\.ensemble\.{NAME}", r"{part}simple.\2.scores.\3.value"),
    (rf"{PART}simple\.{NAME}\.interval\.{NAME}\.(.+)", r"{part}simple.\2.scores.\3.interval.\4"),
    (
        rf"{PART}abstention\.(\d+)\.test\.scores\.{NAME}",
        r"{part}abstention.\2.test.scores.\3.value",
    ),
    (
        rf"{PART}abstention\.(\d+)\.test\.score_intervals\.{NAME}\.(.+)",
        r"{part}abstention.\2.test.scores.\3.interval.\4",
    ),
    (rf"{PART}beyond\.{NAME}\.ensemble\.{NAME}", r"{part}beyond.\2.scores.\3.value"),
    (rf"{PART}beyond\.{NAME}\.interval\.{NAME}\.(.+)", r"{part}beyond.\2.scores.\3.interval.\4"),
    # Shifts: place 0 is without a shift, of classes too.
    (
        rf"{PART}shift\.{NAME}\.ensemble\.(deviation|disagreement)\.(.+)",
        r"{part}shift.\2.spreads.\3.\4",
    ),
    (rf"{PART}shift\.{NAME}\.ensemble\.{NAME}\.(.+)", r"{part}shift.\2.scores.\3.\4"),
    (rf"{PART}shift\.{NAME}\.rmse_ratio_interval\.(.+)", r"{part}shift.\2.change.rmse.\3"),
    (rf"{PART}shift\.{NAME}\.mean_entropy\.(.+)", r"{part}shift.\2.spreads.entropy.\3"),
    # Comparisons.
    (rf"compare\.(\d+)\.{PART}ensemble\.{NAME}", r"compare.\1.{part2}scores.\3.value"),
    (rf"compare\.(\d+)\.{PART}difference\.{NAME}", r"compare.\1.{part2}scores.\3.difference"),
    (rf"compare\.(\d+)\.{PART}interval\.{NAME}\.(.+)", r"compare.\1.{part2}scores.\3.interval.\4"),
)
"""Patterns of old paths, and the new ones; `{part}` and `{test}` are those of a target, if any."""


def moved(path, is_of_classes):
    """The path in version 2, and the factor of the number there.

    Args:
        path: in version 1.
        is_of_classes: whether the run is of classes, whose shifts began with the first severity.
    """
    sign = 1
    if is_of_classes and path.startswith("shift."):
        kind, what, *rest = path.split(".")[1:]
        if what == "accuracy_cost_interval":  # What it costs is what the change takes away.
            return f"shift.{kind}.change.accuracy.{rest[0]}.{1 - int(rest[1])}", -1
        if what in ("ensemble", "mean", "mean_entropy"):
            rest[-1] = str(int(rest[-1]) + 1)
            path = ".".join(["shift", kind, what, *rest])
    for pattern, new in TABLE:
        if found := re.fullmatch(pattern, path):
            where = 2 if path.startswith("compare") else 1
            number = found[where] if "{part" in new or "{test" in new else None
            part = f"targets.{number}." if number else ""
            filled = new.replace("{part}", part).replace("{part2}", part)
            path = found.expand(filled.replace("{test}", f"test.{part}"))
            break
    if not path.startswith(("report.", "posterior.")):
        path = path.replace(".num_examples", ".num_rows")
    return path, sign


def in_version_2(numbers):
    """The numbers of a case at the paths of version 2, from those by the paths of version 1."""
    is_of_classes = any(path.startswith("classes.") for path in numbers)
    found = {}
    for path, value in numbers.items():
        new, factor = moved(path, is_of_classes)
        assert new not in found or found[new] == factor * value, (path, new)
        found[new] = factor * value
    return found


def main(path):
    from tests.golden.test_stated_numbers import LEAST, RECORDED, numbers_of

    with open(path) as file:
        before = json.load(file)["numbers"]
    for name, case in before.items():
        expected, found = in_version_2(numbers_of(case)), numbers_of(RECORDED["numbers"][name])
        differing = [
            f"  {key}: {expected[key]:.7g} -> {found[key]:.7g}"
            for key in sorted(expected.keys() & found.keys())
            if not math.isclose(expected[key], found[key], rel_tol=LEAST, abs_tol=LEAST)
        ]
        gone, new = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        numbers = f"{len(expected)} numbers, {len(differing)} moved"
        print(f"{name}: {numbers}, {len(gone)} gone, {len(new)} new")
        marked = [*(f"  - {one}" for one in gone), *(f"  + {one}" for one in new)]
        print("\n".join([*differing, *marked]))


if __name__ == "__main__":
    main(sys.argv[1])
