"""Writes an ensemble as one file, which `ensemble.export` describes."""

from etils import epath

from ensemble import cli
from ensemble.data.tables.table_form import TableForm
from ensemble.errors import InputError
from ensemble.export import MODEL_READER, PLATFORMS, TABLE_READER, export, table_json
from ensemble.predictor import load
from ensemble.storage.files import write_file
from ensemble.storage.paths import fresh_file


def _beside(path: epath.Path, table: TableForm | None) -> dict[epath.Path, bytes]:
    """The files that are written next to an export: its readers, and what a table became.

    The readers, which are the same next to every export, may be there already.

    Raises:
        InputError: Another file is there.
    """
    readers = [MODEL_READER] if table is None else [MODEL_READER, TABLE_READER]
    contents = {path.with_name(reader.name): reader.read_bytes() for reader in readers}
    if table is not None:
        contents[path.with_name(f"{path.name}.table.json")] = table_json(table)
    for there, content in contents.items():
        if there == path or (there.exists() and there.read_bytes() != content):
            raise InputError(
                f"--out={path}: {there} is written next to it, and is there already, with other "
                "content; choose another name or folder"
            )
    return contents


def main(call: cli.Call) -> None:
    """Writes the file."""
    options = dict(call.flags)
    path = fresh_file(options.pop("out"), "--out")  # Checked before the work, not after it.
    predictor = load(**options)
    beside = _beside(path, predictor.dataset.table)
    content = export(predictor)
    for place, part in {path: content, **beside}.items():
        write_file(place, part)
    cli.print_answer(
        f"{path}: {predictor.description}, {len(content) / 1e6:.1f} MB, for {', '.join(PLATFORMS)}"
    )
