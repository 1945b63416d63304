"""Finds functions that make an interval which no simulation names: `make lint` runs it.

    python -m scripts.simulated_intervals

A function makes an interval if it is called one, if it calls one of `MAKERS`, asks a distribution
of SciPy for a quantile, or has one written out (1.96). Where what it makes is no statement of its
own, it stands in `NO_STATEMENTS` with the reason. Nothing of the program is imported: statements
name their functions in `made_by=`.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKERS = {
    "intervals", "mean_interval", "mean_intervals", "bounded_interval", "share_interval",
    "influence_interval", "error_interval", "error_bound", "score_intervals",
    "balanced_accuracy_interval", "ppf", "isf", "betaincinv", "stdtrit",
}  # fmt: skip
QUANTILES = {1.96, 1.645, 1.6449, 2.576}
_PREDICTED = "of targets that are predicted, not of a score"
_WRITES = "writes an interval that another function made"
_DRAWN = "drawn in a picture, and no sentence is about it"
NO_STATEMENTS: dict[str, str] = {
    "ensemble.metrics.bootstrap.intervals": "for users of ensemble.metrics; no report has it",
    "ensemble.evaluation.score_table.interval": _WRITES,
    "ensemble.metrics.regression.interval_score": _PREDICTED,
    "ensemble.scoring.scores.numbers.interval_score": _PREDICTED,
    "ensemble.likelihoods.mixture_view.MixtureView._intervals": _PREDICTED,
    "ensemble.sklearn.regressor.EnsembleRegressor.predict_interval": _PREDICTED,
    "ensemble.scoring.combine.Combine.interval": "a signature",
    "ensemble.pictures.intervals.coverage_curve": _DRAWN,
    "ensemble.pictures.intervals.quantile_curve": _DRAWN,
    "ensemble.pictures.number_plots.errors_against_uncertainty": _DRAWN,
    "ensemble.pictures.reliability._wilson_interval": _DRAWN,
    **{
        f"ensemble.testing.scores.{name}": "a check of a tenant"
        for name in ("made_view", "an_interval_holds_the_value", "intervals_cover")
    },
}
"""Functions, and why nothing is stated by what they make."""


def find_makers(package: pathlib.Path) -> dict[str, str]:
    """Finds where functions make intervals.

    Args:
        package: folder of a package.

    Returns:
        By dotted name of the function, `path:line` of the first such call.
    """
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        module = _module(path, package)
        for name, line in _calls(ast.parse(path.read_text()), module):
            found.setdefault(name, f"{path.relative_to(package.parent)}:{line}")
    return found


def _calls(tree: ast.AST, inside: str) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}"
        if isinstance(node, ast.FunctionDef) and "interval" in node.name:
            yield name, node.lineno
        if isinstance(node, ast.Constant) and node.value in QUANTILES:
            yield inside, node.lineno
        if isinstance(node, ast.Call):
            called = node.func
            what = getattr(called, "attr", None) or getattr(called, "id", None)
            if what in MAKERS:
                yield inside, node.lineno
        yield from _calls(node, name)


def _functions(package: pathlib.Path) -> set[str]:
    """Dotted names of all functions and classes of a package."""
    names: set[str] = set()

    def visit(tree: ast.AST, inside: str) -> None:
        for node in ast.iter_child_nodes(tree):
            name = inside
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = f"{inside}.{node.name}"
                names.add(name)
            visit(node, name)

    for path in package.rglob("*.py"):
        visit(ast.parse(path.read_text()), _module(path, package))
    return names


def _module(path: pathlib.Path, package: pathlib.Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


def named_by_simulations(folder: pathlib.Path) -> set[str]:
    """Functions that stand in a `made_by=` of a simulation.

    Args:
        folder: of the simulations.
    """
    named: set[str] = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "made_by":
                named |= {
                    one.value
                    for one in ast.walk(node.value)
                    if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    return named


def find_faults(
    package: pathlib.Path, folder: pathlib.Path, reasons: Mapping[str, str]
) -> list[str]:
    """Lines to print: functions that no simulation names, and names that no function has.

    Args:
        package: folder of a package.
        folder: of the simulations.
        reasons: functions that need no simulation, and why.
    """
    makers, named = find_makers(package), named_by_simulations(folder)
    known = named | reasons.keys()
    faults = [
        f"{place}: {name} makes an interval that no statement of simulations/ names in made_by="
        for name, place in makers.items()
        if not any(name == one or name.startswith(f"{one}.") for one in known)
    ]
    for name in sorted(known - _functions(package)):
        faults.append(f"{name} is named as one that makes an interval, and is no function")
    return faults


def main() -> int:
    """Prints the faults; status 1 if there is one."""
    faults = find_faults(ROOT / "ensemble", ROOT / "simulations", NO_STATEMENTS)
    for line in faults:
        print(line)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
