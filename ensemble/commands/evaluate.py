"""Scores a trained ensemble: `ensemble evaluate --workdir=runs/digits`.

Works on any workdir, finished or in training, and changes nothing but its own folder, which gets
`report.html` to read and `evaluation.json` with every number.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

import ensemble
from ensemble.commands import command_line
from ensemble.errors import shown
from ensemble.evaluation.summary import lines_of
from ensemble.sources.own_arrays import read_npz
from ensemble.storage.paths import user_path


def main(argv: Sequence[str]) -> None:
    """Evaluates what the flags say, and prints what is found."""
    values: Any = flags.FLAGS
    out = user_path(values.out, "--out") if values.out else None  # Said before the work.
    command_line.run_config_file(values.config)
    evaluation = ensemble.evaluate(
        values.workdir,
        out,
        values.datasets,
        values.compare,
        data_dir=values.data_dir,
        data=read_npz(values.data) if values.data else None,
        exact_sets=values.exact_sets,
        num_devices=values.num_devices,
        abstain=values.abstain,
        scores=values.scores,
    )
    found = "\n".join([*lines_of(evaluation), *_asked(evaluation)])
    out = out or f"{values.workdir.rstrip('/')}/evaluation"
    out = shown(str(out))
    files = f"{out}/report.html, and every number in {out}/evaluation.json"
    command_line.print_answer(f"\n{found}\n\nReport: {files}")


def _asked(evaluation: Mapping[str, Any]) -> list[str]:
    """A line for each score that was asked for."""
    lines, scores = [], evaluation["test"]["scores"]
    for name in evaluation["asked"]:
        ends = scores[name]["interval"]
        over = "" if ends is None else f" (95% interval {ends[0]:.4g} to {ends[1]:.4g})"
        lines.append(f"{shown(name)}: {scores[name]['value']:.4g}{over}.")
    return lines


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "Of the run.")
    flags.DEFINE_string("out", None, "Where results go; by default `evaluation` in the workdir.")
    flags.DEFINE_list(
        "datasets",
        None,
        "What to score beside the test split: shift, uniform, constant, of tables box, outside and "
        "profile, and names of data sets of the same shape, separated by commas; or none. By "
        "default those that suit the run and are here.",
    )
    flags.DEFINE_list("compare", [], "Workdirs to lay beside it, separated by commas.")
    flags.DEFINE_list(
        "abstain",
        None,
        "Thresholds of abstention to fit, separated by commas: max_error=0.02 for an error among "
        "accepted examples, coverage=0.9 for the share to accept; of numbers max_error=0.1@5, "
        "where an error is to be off by more than 5. By default some of both.",
    )
    flags.DEFINE_list(
        "scores",
        [],
        "What to score beside the usual, separated by commas: of classes cost:FILE, a matrix of "
        "what each decision costs, auprc:CLASS and auroc:CLASS.",
    )
    flags.DEFINE_string("data_dir", None, "Of TFDS sets; by default the run's, if they lie there.")
    flags.DEFINE_string(
        "data",
        None,
        "An npz file of the arrays that the run learned, if a program gave it arrays.",
    )
    flags.DEFINE_bool(
        "exact_sets",
        False,
        "Let conformal sets be empty, for a coverage no higher than is guaranteed.",
    )
    flags.DEFINE_integer("num_devices", None, "To predict on; by default all.", lower_bound=1)
    command_line.define_config_flag()
    return command_line.parse(argv, example="--workdir=runs/digits", required=("workdir",))


def run(program: str = "evaluate.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
