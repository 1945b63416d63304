"""Writes an ensemble as one file, which `ensemble.export` describes."""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from etils import epath

from ensemble.commands import command_line
from ensemble.errors import UserError
from ensemble.export import MODEL_READER, PLATFORMS, TABLE_READER, export, table_json
from ensemble.predictor import load
from ensemble.source import Table
from ensemble.storage.files import write_together
from ensemble.storage.paths import fresh_file


def write(path: epath.Path, contents: Mapping[epath.Path, bytes]) -> None:
    """Writes files whole or not at all.

    Args:
        path: of `--out`, for messages.
        contents: by the paths of the files.

    Raises:
        UserError: they cannot be written.
    """
    try:
        write_together(contents)
    except OSError as error:
        raise UserError(
            f"--out={path} cannot be written: {error.strerror or error}; choose another place or "
            "free space there"
        ) from None


def _beside(path: epath.Path, table: Table | None) -> dict[epath.Path, bytes]:
    """The files that are written beside an export: its readers, and what a table became.

    The readers, which are the same beside every export, may be there already.

    Raises:
        UserError: another file is there.
    """
    contents = {}
    if table is not None:
        contents[path.with_name(f"{path.name}.table.json")] = table_json(table)
    readers = [MODEL_READER] if table is None else [MODEL_READER, TABLE_READER]
    for reader in readers:
        there, content = path.with_name(reader.name), reader.read_bytes()
        if not there.is_file() or there.read_bytes() != content:
            contents[there] = content
    if taken := [one for one in contents if one.exists() or one == path]:
        is_reader = taken[0].name in [reader.name for reader in readers]
        there = "is there already, with other content" if is_reader else "is there already"
        choose = "folder" if is_reader else "name or folder"
        raise UserError(
            f"--out={path}: {taken[0]} is to be written beside it, and "
            f"{'is the same file' if taken[0] == path else there}; choose another {choose}"
        )
    return contents


def main(argv: Sequence[str]) -> None:
    """Writes the file that the flags describe."""
    values: Any = flags.FLAGS
    path = fresh_file(values.out, "--out")  # Said before the work, not after it.
    command_line.run_config_file(values.config)
    predictor = load(values.workdir, calibrated=values.calibrated, abstain=values.abstain)
    beside = _beside(path, predictor.dataset.table)
    content = export(predictor)
    write(path, {path: content, **beside})
    command_line.print_answer(
        f"{path}: {predictor.description}, {len(content) / 1e6:.1f} MB, for {', '.join(PLATFORMS)}"
    )


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run whose ensemble to write.")
    command_line.define_config_flag()
    flags.DEFINE_string("out", None, "The file to write.")
    flags.DEFINE_bool("calibrated", False, "Temper the probabilities as the run was calibrated.")
    command_line.define_abstain_flag()
    return command_line.parse(
        argv, example="--workdir=runs/digits --out=model.bin", required=("workdir", "out")
    )


def run(program: str = "export") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
