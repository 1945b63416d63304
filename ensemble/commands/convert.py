"""Writes data as a folder of records, which `config.dataset=records:FOLDER` reads in batches."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from ensemble.commands import command_line
from ensemble.errors import shown
from ensemble.run.display import open_display
from ensemble.run.progress import Progress
from ensemble.source import Request, TableKeys
from ensemble.sources.catalogue import given_examples, prefix_of_path
from ensemble.sources.image_form import parse_size
from ensemble.sources.own_arrays import local_path
from ensemble.sources.records.conversion import check_new, write_records


def main(argv: Sequence[str]) -> None:
    """Writes the folder that the command line names."""
    values: Any = flags.FLAGS
    _, source, target = argv
    folder = local_path(target)
    check_new(folder)
    name = source
    if "://" in source or (":" not in source and os.path.exists(local_path(source))):
        name = f"{prefix_of_path(source)}:{source}"
    table = TableKeys(target=values.target)
    request = Request(values.data_dir, size=parse_size(values.resize), table=table)
    given = given_examples(name, request)
    total = sum(map(len, given.inputs.values()))
    with (
        open_display() as display,
        Progress(0, total, "converting", "example", display) as progress,
    ):
        left_out = write_records(given, folder, values.skip_damaged, progress.update)
    command_line.print_answer(shown(_summary(folder, total, left_out)))


def _summary(folder: Path, total: int, left_out: int) -> str:
    size = sum(file.stat().st_size for file in folder.iterdir())
    damaged = f", {left_out:,} damaged left out" if left_out else ""
    return (
        f"{folder}: {total - left_out:,} examples{damaged}, {size / 1e6:,.1f} MB; "
        f"train with --config.dataset=records:{folder}"
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    flags.DEFINE_string(
        "resize", None, "To what size to bring pictures from files, such as 64 or 64x48."
    )
    flags.DEFINE_string("data_dir", None, "Where sets of TFDS are.")
    flags.DEFINE_string("target", "", "Of a table: the column to learn.")
    flags.DEFINE_bool("skip_damaged", False, "Count and leave out examples that cannot be read.")
    return command_line.parse(
        argv, example="convert pictures/ records/", arguments=("SOURCE", "FOLDER")
    )


def run(program: str = "convert") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
