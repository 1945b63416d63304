"""Writes an ensemble as one file, which `ensemble.export` describes."""

from ensemble import cli
from ensemble.errors import InputError
from ensemble.export import MODEL_READER, PLATFORMS, TABLE_READER, export, table_json
from ensemble.predictor import load
from ensemble.storage.files import write_file
from ensemble.storage.paths import fresh_file


def main(call: cli.Call) -> None:
    """Writes the file."""
    options = dict(call.flags)
    path = fresh_file(options.pop("out"), "--out")  # Checked before the work, not after it.
    predictor = load(**options)
    table = predictor.dataset.table
    readers = [MODEL_READER, TABLE_READER] if table else [MODEL_READER]
    beside = {path.with_name(one.name): one.read_bytes() for one in readers}
    if table is not None:
        beside[path.with_name(f"{path.name}.table.json")] = table_json(table)
    for there, own in beside.items():  # Readers, the same for every export, may be there.
        if there == path or (there.exists() and there.read_bytes() != own):
            raise InputError(
                f"--out={path}: {there} is written next to it, and is there already, with other "
                "content; choose another name or folder"
            )
    content = export(predictor)
    for place, part in {path: content, **beside}.items():
        write_file(place, part)
    cli.print_answer(
        f"{path}: {predictor.description}, {len(content) / 1e6:.1f} MB, for {', '.join(PLATFORMS)}"
    )
