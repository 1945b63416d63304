"""Writes data as a folder of records, which `config.dataset=records:FOLDER` reads in batches.

    ensemble convert pictures/ records/ --resize=64
    ensemble convert table.parquet records/ --target=price
    ensemble convert records:records/ new/ --skip_damaged
    ensemble convert tfds:beans gs://bucket/records --resize=64

SOURCE is an npz file, a folder of npy files, a folder of images per class, `tfds:NAME`, a Parquet
file of numbers, or records. FOLDER must not be there yet; it may be in a bucket.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.run.progress import Progress, open_display
from ensemble.source import Request, TableKeys
from ensemble.sources.catalogue import find_entry, given_examples, prefix_of_path
from ensemble.sources.image_form import parse_size
from ensemble.sources.own_arrays import local_path
from ensemble.sources.records.bucket import new_folder
from ensemble.sources.records.conversion import write_records
from ensemble.storage.paths import is_remote


def main(argv: Sequence[str]) -> None:
    """Writes the folder that the command line names."""
    try:
        _convert(argv)
    except UserError as error:
        if error.exit_status != UserError.exit_status:
            raise
        raise UserError(_by_flags(str(error))) from error


def _by_flags(line: str) -> str:
    """A line about data with the words of this command line in place of a configuration's keys."""
    line = re.sub(r"(?<!-)config\.(resize|target|data_dir)\b", r"--\1", line)
    return re.sub(r"(?<!-)(config\.)?dataset='", "SOURCE='", line)


def _convert(argv: Sequence[str]) -> None:
    values: Any = flags.FLAGS
    _, source, target = argv
    with new_folder(target) as folder:  # Said before the work, not after it.
        table = TableKeys(target=values.target)
        request = Request(values.data_dir, size=parse_size(values.resize), table=table)
        given = given_examples(_name(source), request)
        total = sum(map(len, given.inputs.values()))
        with (
            open_display() as display,
            Progress(0, total, "converting", "example", display) as progress,
        ):
            left_out = write_records(given, folder, values.skip_damaged, progress.update)
        size = sum(file.stat().st_size for file in folder.iterdir())
    damaged = f", {left_out:,} damaged left out" if left_out else ""
    place = target if is_remote(target) else folder
    answer = (
        f"{place}: {total - left_out:,} examples{damaged}, {size / 1e6:,.1f} MB; "
        f"train with --config.dataset=records:{place}"
    )
    command_line.print_answer(shown(answer))


def _name(source: str) -> str:
    """The data set that the command line names, which may be a path without a prefix."""
    is_data = ":" in source and find_entry(source) is not None
    if not is_data and (is_remote(source) or os.path.exists(local_path(source))):
        return f"{prefix_of_path(source)}:{source}"
    return source


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
