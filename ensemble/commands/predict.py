"""Predicts with a trained ensemble, and says how sure it is; the least certain come first.

    ensemble predict --workdir=runs/digits picture.png
    ensemble predict --workdir=runs/digits pictures
    ensemble predict --workdir=runs/digits new.npz --json
    ensemble predict --workdir=runs/digits pictures --max_error=0.05
    ensemble predict --workdir=runs/digits records:new --out=predictions.jsonl
    ensemble predict --workdir=runs/prices new.csv --id_columns=id,name --out=predictions.csv

The inputs are image files and folders of images (or of folders with images), as many as one likes;
one npz file with `inputs` or a single array; one table, a CSV or Parquet file whose columns are
found by their names, and which may lack the target's; or all examples of data as `config.dataset`
has them, such as `records:FOLDER`. With `--out` inputs are read and predicted in pieces, and come
in their order, a row each: their number is not limited by the memory, but a table's is. The ending
of the file says its form: `.jsonl` is a line of JSON for each row, `.csv` and `.parquet` have the
same columns. `--id_columns` puts columns of a table, such as ids, beside its predictions, as texts.
Uncertainties of classes are in nats: total = aleatoric (noise in the data) + epistemic
(disagreement of the members). Numbers come with their 90% interval.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np

import ensemble
from ensemble import cli
from ensemble.data.catalogue import find_entry, given_examples
from ensemble.data.data_forms import read_npz
from ensemble.data.folders import unlabelled
from ensemble.data.image_form import parse_size
from ensemble.data.own_arrays import local_path
from ensemble.data.source import AnyStored, Request, block_size
from ensemble.data.splitting import POOL
from ensemble.data.tables.columns import read_if_table
from ensemble.errors import InputError, logger
from ensemble.likelihoods.predictive import Predictive, as_text, short
from ensemble.predictor import Ensemble
from ensemble.pytrees import ByName
from ensemble.run.progress import Progress, open_display
from ensemble.storage.files import fresh_file, write_file
from ensemble.storage.workdir import Workdir


class Part(NamedTuple):
    """Inputs by name.

    Attributes:
        names: [N], of examples that have none their numbers.
        inputs: [N, ...], which are read in slices, of a table as the network has them.
        prefix: of all names.
    """

    names: Sequence[Any]
    inputs: AnyStored
    prefix: str = ""


def inputs_of(paths: Sequence[str], config: ByName) -> list[Part]:
    """Finds inputs: images and folders of images, an npz file, or a data set by its name.

    Args:
        paths: Images and folders; or one npz file, `inputs` or the single array of which counts; or
            one data set, all examples of which count.
        config: Configuration of the run.

    Returns:
        The inputs by the parts of a data set; of all else a single part.

    Raises:
        InputError: There is no such folder or file, or it holds no examples, or bad ones.
    """
    size = parse_size(config.get("resize"))
    path = paths[0]
    if are_images(paths):
        return [Part(*unlabelled(paths, size))]
    if paths[1:]:
        raise InputError(
            f"{' '.join(paths)} are not all images and folders that are here; give such, or one "
            "npz file or data set alone"
        )
    entry = find_entry(path) if ":" in path else None
    if entry is None or not entry.given:
        arrays = read_npz(path)
        key = "inputs" if len(arrays) != 1 else next(iter(arrays))
        if key not in arrays:
            raise InputError(
                f"npz:{path} has the arrays {', '.join(sorted(arrays)) or '(none)'}; expected is "
                "inputs, or a single array"
            )
        inputs = np.atleast_1d(arrays[key])
        return [Part(range(len(inputs)), inputs)]
    request = Request(config.get("data_dir"), size=size if entry.can_resize else None)
    return [
        Part(range(len(one.inputs)), one.inputs, "" if part == POOL else f"{part}/")
        for part, one in given_examples(path, request).parts.items()
    ]


def are_images(paths: Sequence[str]) -> bool:
    """Whether all paths are of folders, or of files that are to be images."""
    return all(file.exists() and file.suffix != ".npz" for file in map(local_path, paths))


Rows = list[ByName]
_MAX_PIECE = 1 << 14
"""Inputs whose predictions are in memory together."""


def main(call: cli.Call) -> None:
    """Predicts the inputs, and prints or writes the predictions."""
    options = dict(call.flags)
    out, id_columns, as_json = (options.pop(name) for name in ("out", "id_columns", "json"))
    if out is not None:
        out = fresh_file(out, "--out", [*WRITERS])  # Checked before the work.
    predictor = ensemble.load(**options)
    logger.info("Predictions are of %s.", predictor.description)
    kept, parts = _inputs(predictor, options["workdir"], call.arguments, id_columns)
    total = sum(len(one.names) for one in parts)
    with open_display() as display, Progress(0, total, display, "predicting", "input") as progress:
        predicted = partial(_predicted, predictor, kept, parts, progress)
        if out is None:
            text = _printed(predicted, as_json)
        else:
            pieces = (rows for rows, _ in predicted(lambda p: p.flat_columns()))
            write_file(out, lambda file: WRITERS[out.suffix.lower()](file, pieces))
            text = f"{out}: predictions of {total:,} inputs"
    cli.print_answer(text)


def _inputs(
    predictor: Ensemble, workdir: str, paths: Sequence[str], id_columns: Sequence[str]
) -> tuple[ByName, list[Part]]:
    """Columns of a table to repeat, and inputs as the network has them.

    Raises:
        InputError: They cannot be read, or the run has learned others.
    """
    table = predictor.dataset.table
    read = read_if_table(paths, id_columns)
    if read is not None and table is not None:
        columns, kept = read
        inputs = table.encode(columns)
        return kept, [Part(range(len(inputs)), inputs)]
    if read is not None or table is not None or id_columns:
        learned = "a table" if table else "arrays or images, which have no --id_columns"
        raise InputError(f"{paths[0]}: the run has learned {learned}; give such inputs")
    dtype = predictor.dataset.input_dtype
    if are_images(paths) and dtype != np.uint8:
        raise InputError(f"{paths[0]}: the run has learned {dtype}; give the inputs as an npz file")
    return {}, inputs_of(paths, Workdir(workdir).read_config() or {})


def _predicted(
    predictor: Ensemble,
    kept: ByName,
    parts: Sequence[Part],
    progress: Progress,
    columns_of: Callable[[Any], ByName],
) -> Iterator[tuple[Rows, Predictive]]:
    """Predicts inputs in pieces, in their order.

    Raises:
        InputError: They are no inputs of the run, or a column to repeat has a prediction's name.
    """
    done = 0
    for names, inputs, prefix in parts:
        length = min(_MAX_PIECE, block_size(inputs.shape[1:]))
        for start in range(0, max(len(names), 1), length):
            here = slice(start, start + length)
            p = predictor.of_inputs(inputs[here])
            for name, one in p.arrays.items():
                if not np.isfinite(np.exp(one) if name.startswith("log_") else one).all():
                    raise InputError(
                        "on an example a member's output overflows; check the scale of the inputs"
                    )
            own = {"input": [f"{prefix}{one}" for one in names[here]]}
            own |= {name: one[here] for name, one in kept.items()}
            columns = {name: np.asarray(one).tolist() for name, one in columns_of(p).items()}
            if both := own.keys() & columns.keys():
                raise InputError(
                    f"--id_columns={min(both)}: predictions have a column of this name; rename it "
                    "in the file, or leave it out"
                )
            whole = {**own, **columns}
            rows = zip(*whole.values(), strict=True)
            yield [dict(zip(whole, row, strict=True)) for row in rows], p
            done += len(p)
            progress.update(done)


def _printed(predicted: Callable[..., Iterator[tuple[Rows, Predictive]]], as_json: bool) -> str:
    """The predictions, the most uncertain first, as a table or a JSON document."""
    rows: Any = []
    doubts: list[float] = []
    for some, p in predicted((lambda p: p.columns()) if as_json else short):
        rows += some
        doubts.extend(p.doubt())
    rows = [rows[i] for i in np.argsort(np.negative(doubts), kind="stable")]
    if not as_json:
        return as_text(rows)
    legend = {one: list(getattr(p, one)) for one in ("class_names", "levels") if hasattr(p, one)}
    return json.dumps({**legend, "predictions": rows}, allow_nan=False)


# Files of rows, written piece by piece.


def write_json_lines(file: IO[bytes], pieces: Iterable[Rows]) -> None:
    """Writes each row as an object of JSON in a line of its own."""
    for rows in pieces:
        file.writelines(f"{json.dumps(row, allow_nan=False)}\n".encode() for row in rows)


def write_csv(file: IO[bytes], pieces: Iterable[Rows]) -> None:
    """Writes CSV in UTF-8 below a line with the names; numbers have all their digits."""
    import pandas as pd  # Slow: of tables alone.

    how = {"index": False, "mode": "wb", "lineterminator": "\n", "errors": "backslashreplace"}
    for number, rows in enumerate(pieces):
        pd.DataFrame(rows, dtype=object).to_csv(file, header=not number, **how)


def write_parquet(file: IO[bytes], pieces: Iterable[Rows]) -> None:
    """Writes Parquet, a row group for each piece; pyarrow must be there."""
    import pyarrow.parquet  # Only where Parquet files are written.

    writer = None
    for rows in pieces:
        table = pyarrow.Table.from_pylist(rows)
        writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


WRITERS: dict[str, Callable[..., None]] = {
    ".jsonl": write_json_lines,
    ".ndjson": write_json_lines,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
"""What writes a file, by the ending of its name."""
