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
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import ensemble
from ensemble import cli
from ensemble.data.source import block_size
from ensemble.data.tables import table_files
from ensemble.data.to_predict import Part, are_images, inputs_of
from ensemble.errors import InputError
from ensemble.likelihoods.predictive import Predictive, as_text, short
from ensemble.predictor import Ensemble
from ensemble.run.progress import Progress, open_display
from ensemble.storage.files import write_file
from ensemble.storage.paths import fresh_file
from ensemble.storage.row_files import WRITERS
from ensemble.storage.workdir import Workdir

logger = logging.getLogger("ensemble")

Columns = dict[str, list[Any]]
"""Columns [N] by name."""
_MAX_PIECE = 1 << 14
"""Inputs whose predictions are in memory together."""


def main(call: cli.Call) -> None:
    """Predicts the inputs, and prints or writes the predictions."""
    options = dict(call.flags)
    out, id_columns, as_json = (options.pop(name) for name in ("out", "id_columns", "json"))
    if out is not None:
        out = fresh_file(out, "--out", [*WRITERS])  # Checked before the work.
    with open_display() as display:
        predictor = ensemble.load(**options)
        rule = f", which abstain by {predictor.abstention.rule}" if predictor.abstention else ""
        logger.info("Predictions are of %s%s.", predictor.description, rule)
        config = Workdir(options["workdir"]).read_config() or {}
        kept, parts = _inputs(predictor, config, call.arguments, id_columns)
        total = sum(len(one.names) for one in parts)
        with Progress(0, total, display, "predicting", "input") as progress:
            pieces = _predicted(predictor, kept, parts, progress)
            if out is None:
                text = _printed(predictor, pieces, as_json)
            else:
                text = f"{out}: predictions of {total:,} inputs, a row each"
                rows = (_joined(own, p.flat_columns()) for own, p in pieces)
                write_file(out, lambda file: WRITERS[out.suffix.lower()](file, rows))
    cli.print_answer(text)


def _inputs(
    predictor: Ensemble, config: Mapping[str, Any], paths: Sequence[str], id_columns: Sequence[str]
) -> tuple[Columns, list[Part]]:
    """Columns of a table to repeat, and inputs as the network has them.

    Raises:
        InputError: They cannot be read, or the run has learned others.
    """
    table = predictor.dataset.table
    read = table_files.read_if_table(paths, id_columns)
    if (read is None) != (table is None):
        what = "a table" if table else "arrays or images"
        raise InputError(f"{paths[0]}: the run has learned {what}; give such inputs")
    if read is not None and table is not None:
        columns, kept = read
        inputs = table.encode(columns)
        return kept, [Part(range(len(inputs)), inputs)]
    if id_columns:
        raise InputError(f"--id_columns is for tables, and {paths[0]} is none: leave it out")
    dtype = predictor.dataset.input_dtype
    if are_images(paths) and dtype != np.uint8:
        raise InputError(
            f"{paths[0]}: these are images, the training data were {dtype}: write the inputs, on "
            "their scale, to an npz file and give that"
        )
    return {}, inputs_of(paths, config)


def _predicted(
    predictor: Ensemble, kept: Columns, parts: Sequence[Part], progress: Progress
) -> Iterator[tuple[Columns, Predictive]]:
    """Predicts inputs in pieces, in their order.

    Yields:
        Columns of the inputs to repeat, with their names, and the predictions.

    Raises:
        InputError: They are no inputs of the run.
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
            own = {name: one[here] for name, one in kept.items()}
            yield {"input": [f"{prefix}{one}" for one in names[here]], **own}, p
            done += len(p)
            progress.update(done)


def _joined(own: Columns, columns: Mapping[str, Any]) -> Columns:
    """Columns to repeat and predictions, as lists of Python's values.

    Raises:
        InputError: A column to repeat has a prediction's name.
    """
    if both := own.keys() & columns.keys():
        raise InputError(
            f"--id_columns={min(both)}: predictions have a column of this name; rename it in the "
            "file, or leave it out"
        )
    return own | {name: np.asarray(values).tolist() for name, values in columns.items()}


def _printed(
    predictor: Ensemble, pieces: Iterable[tuple[Columns, Predictive]], as_json: bool
) -> str:
    """The predictions, the most uncertain first, as a table or a JSON document."""
    table: Columns = {}
    doubts: list[float] = []
    for own, p in pieces:
        doubts.extend(p.doubt())
        for name, values in _joined(own, p.columns() if as_json else short(p)).items():
            table.setdefault(name, []).extend(values)
    order = np.argsort(np.negative(doubts), kind="stable")
    table = {name: [values[i] for i in order] for name, values in table.items()}
    if not as_json:
        return as_text(table)
    legend = {
        name: list(getattr(p, name)) for name in ("class_names", "levels") if hasattr(p, name)
    }
    about: dict[str, Any] = {"members": len(predictor.members)}
    if predictor.abstention:
        about["abstain"] = str(predictor.abstention.rule)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return json.dumps({**legend, **about, "predictions": rows}, allow_nan=False)
