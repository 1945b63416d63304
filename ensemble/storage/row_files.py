"""Files of rows, written piece by piece: lines of JSON, CSV, or Parquet."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any

Piece = Mapping[str, Sequence[Any]]
"""Values [n] by the names of columns, which have the same types in each piece."""


def write_json_lines(file: IO[bytes], pieces: Iterable[Piece]) -> None:
    """Writes each row as an object of JSON in a line of its own."""
    for columns in pieces:
        for row in zip(*columns.values(), strict=True):
            line = json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False)
            file.write(f"{line}\n".encode())


def write_csv(file: IO[bytes], pieces: Iterable[Piece]) -> None:
    """Writes CSV in UTF-8 below a line with the names; numbers have all their digits."""
    text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="")
    lines = csv.writer(text, lineterminator="\n")
    for number, columns in enumerate(pieces):
        if not number:
            lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))
    text.detach()


def write_parquet(file: IO[bytes], pieces: Iterable[Piece]) -> None:
    """Writes Parquet, a row group for each piece; pyarrow must be there."""
    import pyarrow.parquet  # Only where Parquet files are written.

    writer = None
    for columns in pieces:
        table = pyarrow.table(dict(columns))
        writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


WRITERS: Mapping[str, Callable[..., None]] = {
    ".jsonl": write_json_lines,
    ".ndjson": write_json_lines,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
"""What writes a file, by the ending of its name."""
