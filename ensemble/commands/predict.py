"""Predicts with a trained ensemble, and says how sure it is; the least certain come first.

    ensemble predict --workdir=runs/digits picture.png
    ensemble predict --workdir=runs/digits pictures
    ensemble predict --workdir=runs/digits new.npz --json
    ensemble predict --workdir=runs/digits pictures --abstain=max_error=0.05
    ensemble predict --workdir=runs/digits records:new --out=predictions.jsonl
    ensemble predict --workdir=runs/prices new.csv --keep=id,name --out=predictions.csv

The inputs are image files and folders of images (or of folders with images), as many as one likes;
one npz file with `inputs` or a single array; one table, a CSV or Parquet file whose columns are
found by their names, and which may lack the target's; or all examples of data as `config.dataset`
has them, such as `records:FOLDER`. With `--out` inputs are read and predicted in pieces, and come
in their order, a row each: their number is not limited by the memory, but a table's is. The ending
of the file says its form: `.jsonl` is a line of JSON for each row, `.csv` and `.parquet` have the
same columns. `--keep` puts columns of a table beside its predictions.
Uncertainties of classes are in nats: total = aleatoric (noise in the data) + epistemic (what the
members disagree on). Numbers come with their 90% interval.
"""

import importlib.util
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags
from etils import epath

import ensemble
from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.pictures import tabular
from ensemble.predictor import Predictor, check_is_workdir
from ensemble.run.progress import Display, Progress, open_display
from ensemble.source import block_size
from ensemble.sources.folders import unlabelled
from ensemble.sources.image_form import parse_size
from ensemble.sources.own_arrays import check_inputs
from ensemble.sources.tables import table_files
from ensemble.sources.tables.kept_columns import Kept, as_values, read_kept
from ensemble.sources.tables.raw_columns import Columns, num_rows
from ensemble.sources.tables.table_files import PYARROW
from ensemble.sources.to_predict import (
    Numbers,
    Part,
    all_of,
    are_images,
    given_parts,
    num_inputs,
    read_inputs,
)
from ensemble.storage.files import write_by
from ensemble.storage.memory import check_memory
from ensemble.storage.paths import fresh_file
from ensemble.storage.row_files import WRITERS, Piece, write_parquet
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.source import Source

logger = logging.getLogger("ensemble")

_MAX_PIECE = 1 << 14
"""Inputs whose predictions are in memory together."""
_ANSWER_BYTES = {False: 2000, True: 1000}
"""Memory of one input's line of the table, and of its part of the JSON document, at least."""


def main(argv: Sequence[str]) -> None:
    """Predicts what the command line names, and prints or writes the answer."""
    values: Any = flags.FLAGS
    command_line.run_config_file(values.config)
    fitted = (values.calibrated, values.abstain, values.keep)
    if values.out is None:
        command_line.print_answer(answer(values.workdir, argv[1:], values.json, *fitted))
        return
    path = fresh_file(values.out, "--out", [*WRITERS])  # Said before the work, not after it.
    if path.suffix.lower() == ".parquet" and not importlib.util.find_spec("pyarrow"):
        raise UserError(f"--out={values.out} needs pyarrow: pip install '{PYARROW}'")
    with open_display() as display:
        count = write_answers(values.workdir, argv[1:], path, *fitted, display=display)
    command_line.print_answer(shown(f"{path}: predictions of {count:,} inputs, a row each"))


def answer(
    workdir: str,
    paths: str | Sequence[str],
    as_json: bool = False,
    calibrated: bool = False,
    abstain: str | None = None,
    keep: Sequence[str] = (),
) -> str:
    """Predicts inputs and says the result, the most uncertain first.

    Args:
        workdir: of the run whose ensemble predicts.
        paths: of the inputs, or the only one; see `read_inputs`.
        as_json: whether to return a JSON document instead of a table.
        calibrated: whether to temper the probabilities as the run was calibrated.
        abstain: as `ensemble.load` has it.
        keep: columns of a table to show beside its predictions.

    Raises:
        UserError: the inputs or the workdir cannot be used.
    """
    paths = [paths] if isinstance(paths, str) else paths
    config = _config_of_run(workdir)
    size = parse_size(config.get("resize"))
    # First, for it fails faster than loading does.
    columns: Any = table_files.read_if_table(paths, keep)
    kept = as_values(_read_kept(paths, columns, keep), paths[0])
    names: Sequence[str]
    if columns is None and (parts := given_parts(paths, config)) is not None:
        names, inputs = all_of(parts, paths[0])
    elif columns is None:
        _check_answer(num_inputs(paths), as_json, paths[0])
        names, inputs = read_inputs(paths, size)
    predictor = ensemble.load(workdir, calibrated=calibrated, abstain=abstain)
    path = paths[0] if len(paths) == 1 else f"{paths[0]}, ..."
    _check_kind(predictor, columns, path)
    columns = _to_encode(columns, kept, predictor)
    if columns is None:
        inputs = as_trained(inputs, predictor.dataset, path, are_images(paths))
    else:
        names, inputs = Numbers(num_rows(columns), ""), columns
    _check_answer(len(names), as_json, path, predictor)
    prediction = _naming(path, predictor, inputs)
    likelihood = predictor.likelihood
    ranking = np.argsort(-likelihood.uncertainty(prediction), kind="stable").tolist()
    abstention = predictor.abstention
    if not as_json:
        rows = [[("input", names[i]), *likelihood.cells(prediction, i)] for i in ranking]
        if abstention:
            for i, row in zip(ranking, rows, strict=True):
                row.insert(1, ("decision", "accept" if prediction.accepted[i] else "abstain"))
        _check_names(kept, [title for title, _ in rows[0]])
        for i, row in zip(ranking, rows, strict=True):
            row[1:1] = [(name, _cell(values[i])) for name, values in kept.items()]
        return tabular.aligned(rows)
    entries = [
        {
            **likelihood.entry(prediction, i),
            **({"accepted": bool(prediction.accepted[i])} if abstention else {}),
        }
        for i in ranking
    ]
    _check_names(kept, ["input", *entries[0]])
    of_rows = [{name: values[i] for name, values in kept.items()} for i in ranking]
    predictions = [
        {"input": names[i], **mine, **entry}
        for i, mine, entry in zip(ranking, of_rows, entries, strict=True)
    ]
    legend = {**likelihood.legend(), "members": len(predictor.members)}
    if abstention:
        legend["abstain"] = str(abstention.rule)
    return json.dumps({**legend, "predictions": predictions}, allow_nan=False)


def write_answers(
    workdir: str,
    paths: Sequence[str],
    out: epath.Path,
    calibrated: bool = False,
    abstain: str | None = None,
    keep: Sequence[str] = (),
    display: Display | None = None,
) -> int:
    """Predicts inputs in pieces, and writes a row each, of the same columns in every form.

    Args:
        workdir: as of `answer`.
        paths: likewise.
        out: the file to write, whose ending says the form.
        calibrated: as of `answer`.
        abstain: likewise.
        keep: columns of a table to write beside its predictions, as they are in its file.
        display: of the progress.

    Returns:
        How many inputs there were.

    Raises:
        UserError: as `answer`, or the file cannot be written.
    """
    config = _config_of_run(workdir)
    size = parse_size(config.get("resize"))
    columns: Any = table_files.read_if_table(paths, keep)
    write_rows = WRITERS[out.suffix.lower()]
    kept = _read_kept(paths, columns, keep)
    if write_rows is not write_parquet:
        kept = as_values(kept, paths[0])
    if columns is None and (parts := given_parts(paths, config)) is None:
        names, inputs = unlabelled(paths, size) if are_images(paths) else read_inputs(paths, size)
        parts = {"": Part(names, inputs)}
    predictor = ensemble.load(workdir, calibrated=calibrated, abstain=abstain)
    path = paths[0] if len(paths) == 1 else f"{paths[0]}, ..."
    _check_kind(predictor, columns, path)
    columns = _to_encode(columns, kept, predictor)
    table = predictor.dataset.table
    if table is not None:
        rows = _naming(path, table.encode, columns)
        parts = {"": Part(Numbers(len(rows), ""), rows)}
    rule = f", which abstain by {predictor.abstention.rule}" if predictor.abstention else ""
    logger.info("Predictions are of %s%s.", predictor.description, rule)
    assert parts is not None
    total, has_images = sum(len(one.names) for one in parts.values()), are_images(paths)

    def pieces() -> Iterator[Piece]:
        done = 0
        with Progress(0, total, "predicting", "input", display) as progress:
            for names, inputs in parts.values():
                length = min(_MAX_PIECE, block_size(inputs.shape[1:]))
                for start in range(0, len(names), length):
                    here = slice(start, start + length)
                    piece = inputs[here]
                    if table is None:
                        piece = as_trained(piece, predictor.dataset, path, has_images)
                    prediction = _naming(path, predictor.of_inputs, piece)
                    predicted = _columns(predictor, prediction)
                    _check_names(kept, ["input", *predicted])
                    of_rows = {name: values[here] for name, values in kept.items()}
                    yield {"input": list(names[here]), **of_rows, **predicted}
                    done += len(piece)
                    progress.update(done)

    try:
        write_by(out, lambda file: write_rows(file, pieces()))
    except OSError as error:
        raise UserError(
            f"--out={out} cannot be written: {error.strerror or error}; choose another place or "
            "free space there"
        ) from None
    return total


def _read_kept(paths: Sequence[str], columns: Columns | None, keep: Sequence[str]) -> Kept:
    """Columns to keep, as they are in the table's file.

    Raises:
        UserError: the inputs are no table, or it has no such column.
    """
    if not keep:
        return {}
    if columns is None:
        raise UserError(
            f"--keep={','.join(keep)} is for CSV and Parquet files, and {paths[0]} has no named "
            "columns: leave it out"
        )
    return read_kept(paths[0], keep, [*columns])


def _to_encode(columns: Columns | None, kept: Kept, predictor: Predictor) -> Columns | None:
    """Columns without the kept ones that were not learned: nobody is told that these are unused."""
    table = predictor.dataset.table
    if columns is None or table is None:
        return columns
    learned = {one["name"] for one in table.content["columns"]}
    return {
        name: one for name, one in columns.items() if name in learned or name not in kept
    } or columns


def _check_names(kept: Iterable[str], fields: Sequence[str]) -> None:
    """Refuses a column to keep that has the name of what is said of it.

    Raises:
        UserError: as said.
    """
    for name in kept:
        if name in fields:
            raise UserError(
                f"--keep={name}: predictions have a {shown(repr(name))} of their own; rename the "
                "column in the file, or leave it out"
            )


def _cell(value: Any) -> str:
    """A value of a kept column in the table on a terminal."""
    return "" if value is None else str(value)


def _columns(predictor: Predictor, prediction: Any) -> dict[str, list[Any]]:
    """Predictions as columns of Python's values, the same in every form of file."""
    found = predictor.likelihood.as_columns(prediction)
    if predictor.abstention:
        found["accepted"] = prediction.accepted
    return {name: values.tolist() for name, values in found.items()}


def _check_kind(predictor: Predictor, columns: Columns | None, path: str) -> None:
    """Refuses a table where the run has learned none, and the other way round."""
    learned = predictor.dataset.table
    if (columns is None) != (learned is None):
        what = "a table" if learned else "arrays or images"
        raise UserError(f"{path}: the run has learned {what}; give such inputs")


def _config_of_run(workdir: str) -> Mapping[str, Any]:
    work = Workdir(workdir)
    check_is_workdir(work)
    return work.read_config() or {}


def _check_answer(count: int, as_json: bool, path: str, predictor: Predictor | None = None) -> None:
    """Refuses to answer for more inputs at once than memory holds answers of.

    Raises:
        UserError: as said.
    """
    of_each = _ANSWER_BYTES[as_json]
    if predictor is not None:
        of_each += 4 * len(predictor.members) * predictor.likelihood.num_outputs
    what = f"the answers for the {count:,} inputs of {path}"
    check_memory(count * of_each, what, "their number, or write predictions by --out=NAME.jsonl")


def _naming(path: str, function: Callable[[Any], Any], inputs: Any) -> Any:
    """Encodes or predicts inputs; what is wrong with them is said with their path."""
    try:
        return function(inputs)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError:  # Log-probabilities that are none: finite inputs, but an output is not.
        raise UserError(
            f"{path}: on an example a member's output overflows; check the scale of the inputs"
        ) from None


def as_trained(inputs: np.ndarray, dataset: "Source", path: str, has_images: bool) -> np.ndarray:
    """Brings inputs to the type of the training data.

    Args:
        inputs: [N, ...] as read.
        dataset: the training data's description.
        path: where the inputs come from.
        has_images: whether they were read from images.

    Returns:
        [N, ...] of the training data's dtype.

    Raises:
        UserError: the inputs are no such numbers, or images of another size.
    """
    dtype, shape = dataset.input_dtype, dataset.input_shape
    if has_images:
        if dtype != np.uint8:
            raise UserError(
                f"{path} holds images, the training data were {dtype}: write the inputs, on their "
                "scale, to an npz file and give that"
            )
        if len(shape) == 3 and inputs.shape[1:3] != shape[:2]:
            found, learned = (
                f"{height}x{width}" for height, width in (inputs.shape[1:3], shape[:2])
            )
            raise UserError(
                f"{path} holds images of {found} pixels (height x width), the training data were "
                f"{learned}: resize them, or train with config.resize, which does it here, too"
            )
    return check_inputs(inputs, dtype, path)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run whose ensemble predicts.")
    command_line.define_config_flag()
    flags.DEFINE_bool("json", False, "Print one JSON document.")
    flags.DEFINE_bool("calibrated", False, "Temper the probabilities as the run was calibrated.")
    flags.DEFINE_string("out", None, "A new file NAME.csv, .jsonl or .parquet to write instead.")
    flags.DEFINE_list("keep", [], "Columns of the table to show beside its predictions: id,name.")
    command_line.define_abstain_flag()
    return command_line.parse(
        argv,
        example="--workdir=runs/digits pictures",
        required=("workdir",),
        arguments=("INPUTS...",),
    )


def run(program: str = "predict.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
