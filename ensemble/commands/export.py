"""Writes an ensemble as one file, which `ensemble.export` describes."""

from collections.abc import Sequence
from typing import Any

from absl import flags
from etils import epath

from ensemble.commands import command_line
from ensemble.errors import UserError
from ensemble.export import PLATFORMS, READER, export, table_json
from ensemble.predictor import load
from ensemble.storage.files import write_bytes
from ensemble.storage.paths import new_file


def write(path: epath.Path, content: bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    try:
        write_bytes(path, content)
    except OSError as error:
        raise UserError(
            f"--out={path} cannot be written: {error.strerror or error}; choose another place or "
            "free space there"
        ) from None


def main(argv: Sequence[str]) -> None:
    """Writes the file that the flags describe."""
    values: Any = flags.FLAGS
    path = new_file(values.out, "--out")  # Said before the work, not after it.
    command_line.run_config_file(values.config)
    predictor = load(values.workdir, calibrated=values.calibrated, abstain=values.abstain)
    content = export(predictor)
    write(path, content)
    if predictor.dataset.table is not None:
        write(path.with_name(f"{path.name}.table.json"), table_json(predictor.dataset.table))
        write(path.with_name(READER.name), READER.read_bytes())
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
