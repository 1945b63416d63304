"""Writes an ensemble as one file, which `ensemble.export` describes."""

from ensemble import cli
from ensemble.export import MODEL_READER, PLATFORMS, TABLE_READER, export, table_json
from ensemble.predictor import load
from ensemble.storage.files import fresh_file, write_file


def main(call: cli.Call) -> None:
    """Writes the file."""
    options = dict(call.flags)
    path = fresh_file(options.pop("out"), "--out")  # Checked before the work, not after it.
    predictor = load(**options)
    content = export(predictor)
    files = {path.name: content, MODEL_READER.name: MODEL_READER.read_bytes()}
    if table := predictor.dataset.table:
        files[TABLE_READER.name] = TABLE_READER.read_bytes()
        files[f"{path.name}.table.json"] = table_json(table)
    for name, part in files.items():
        write_file(path.with_name(name), part)
    cli.print_answer(
        f"{path}: {predictor.description}, {len(content) / 1e6:.1f} MB, for {', '.join(PLATFORMS)}"
    )
