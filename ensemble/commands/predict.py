"""Predicts with a trained ensemble, and says how sure it is; the least certain come first.

    python predict.py --workdir=runs/digits picture.png
    python predict.py --workdir=runs/digits pictures
    python predict.py --workdir=runs/digits new.npz --json
    python predict.py --workdir=runs/digits pictures --abstain=max_error=0.05

The inputs are image files and folders of images (or of folders with images), as many as one likes;
one npz file with `inputs` or a single array; or one table, a CSV or Parquet file whose columns are
found by their names, and which may lack the target's. Uncertainties of classes are in nats: total =
aleatoric (noise in the data) + epistemic (what the members disagree on). Numbers come with their
90% interval.
"""

import json
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

import ensemble
from ensemble.commands import command_line
from ensemble.errors import UserError
from ensemble.pictures import tabular
from ensemble.predictor import check_is_workdir
from ensemble.sources.folders import read_unlabelled
from ensemble.sources.image_form import parse_size
from ensemble.sources.own_arrays import check_inputs, local_path, read_npz
from ensemble.sources.tables import table_files
from ensemble.sources.tables.raw_columns import num_rows
from ensemble.storage.workdir import Workdir

if TYPE_CHECKING:
    from ensemble.source import Source


def main(argv: Sequence[str]) -> None:
    """Predicts what the command line names, and prints the answer."""
    values: Any = flags.FLAGS
    command_line.run_config_file(values.config)
    command_line.print_answer(
        answer(values.workdir, argv[1:], values.json, values.calibrated, values.abstain)
    )


def answer(
    workdir: str,
    paths: str | Sequence[str],
    as_json: bool = False,
    calibrated: bool = False,
    abstain: str | None = None,
) -> str:
    """Predicts inputs and says the result, the most uncertain first.

    Args:
        workdir: of the run whose ensemble predicts.
        paths: of the inputs, or the only one; see `read_inputs`.
        as_json: whether to return a JSON document instead of a table.
        calibrated: whether to temper the probabilities as the run was calibrated.
        abstain: as `ensemble.load` has it.

    Raises:
        UserError: the inputs or the workdir cannot be used.
    """
    paths = [paths] if isinstance(paths, str) else paths
    work = Workdir(workdir)
    check_is_workdir(work)
    config = work.read_config() or {}
    # First, for it fails faster than loading does.
    columns: Any = table_files.read_if_table(paths)
    if columns is None:
        names, inputs = read_inputs(paths, parse_size(config.get("resize")))
    predictor = ensemble.load(workdir, calibrated=calibrated, abstain=abstain)
    path = paths[0] if len(paths) == 1 else f"{paths[0]}, ..."
    learned = predictor.dataset.table
    if (columns is None) != (learned is None):
        what = "a table" if learned else "arrays or images"
        raise UserError(f"{path}: the run has learned {what}; give such inputs")
    if columns is None:
        inputs = as_trained(inputs, predictor.dataset, path, are_images(paths))
    else:
        names, inputs = [str(i) for i in range(num_rows(columns))], columns
    try:
        prediction = predictor(inputs)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError:  # Log-probabilities that are none: finite inputs, but an output is not.
        raise UserError(
            f"{path}: on an example a member's output overflows; check the scale of the inputs"
        ) from None
    likelihood = predictor.likelihood
    ranking = np.argsort(-likelihood.uncertainty(prediction), kind="stable")
    abstention = predictor.abstention
    if not as_json:
        rows = [[("input", names[i]), *likelihood.cells(prediction, i)] for i in ranking]
        if abstention:
            for i, row in zip(ranking, rows, strict=True):
                row.insert(1, ("decision", "accept" if prediction.accepted[i] else "abstain"))
        return tabular.aligned(rows)
    entries = [{"input": names[i], **likelihood.entry(prediction, i)} for i in ranking]
    document = {**likelihood.legend(), "members": len(predictor.members)}
    if abstention:
        document["abstain"] = str(abstention.rule)
        entries = [
            {**e, "accepted": bool(prediction.accepted[i])}
            for i, e in zip(ranking, entries, strict=True)
        ]
    return json.dumps({**document, "predictions": entries}, allow_nan=False)


def read_inputs(
    paths: Sequence[str], size: tuple[int, int] | None = None
) -> tuple[list[str], np.ndarray]:
    """Reads image files and folders of images; or `inputs` or the single array of an npz file.

    Args:
        paths: of images and folders, or of one npz file.
        size: that images are brought to, as of `folders.read_images`.

    Returns:
        names [N], which are paths or indices, and examples [N, ...] as they are.

    Raises:
        UserError: there is no such folder or file, or it holds no examples, or bad ones.
    """
    if are_images(paths):
        return read_unlabelled(paths, size)
    path = next(path for path in paths if not _has_images(path))
    if not local_path(path).exists():
        raise UserError(f"there is no file or folder {local_path(path).absolute()}; check the path")
    arrays = read_npz(path)
    if len(paths) > 1:
        raise UserError(f"{path} is an npz file: give it alone, or images and folders of images")
    if "inputs" not in arrays and len(arrays) != 1:
        raise UserError(
            f"npz:{path} has the arrays {', '.join(sorted(arrays)) or '(none)'}; expected is "
            "inputs, or a single array"
        )
    inputs = arrays["inputs"] if "inputs" in arrays else next(iter(arrays.values()))
    return [str(i) for i in range(len(np.atleast_1d(inputs)))], inputs


def are_images(paths: Sequence[str]) -> bool:
    """Whether all paths are of folders, or of files that are to be images."""
    return all(map(_has_images, paths))


def _has_images(path: str) -> bool:
    file = local_path(path)
    is_array = file.suffix == ".npz" or (file.is_file() and zipfile.is_zipfile(file))
    return file.exists() and not is_array


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
