"""Predicts with a trained ensemble, and says how sure it is; the least certain come first.

    python predict.py --workdir=runs/digits pictures
    python predict.py --workdir=runs/digits new.npz --json

The inputs are a folder of images (or of folders with images), or an npz file with `inputs` or a
single array. Uncertainties of classes are in nats: total = aleatoric (noise in the data) +
epistemic (what the members disagree on). Numbers come with their 90% interval.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

import ensemble
from ensemble.commands import command_line
from ensemble.errors import UserError
from ensemble.pictures import tabular
from ensemble.sources.folders import read_unlabelled_folder
from ensemble.sources.own_arrays import check_inputs, local_path, read_npz

if TYPE_CHECKING:
    from ensemble.source import Source


def main(argv: Sequence[str]) -> None:
    """Predicts what the command line names, and prints the answer."""
    values: Any = flags.FLAGS
    command_line.run_config_file(values.config)
    command_line.print_answer(answer(values.workdir, argv[1], values.json, values.calibrated))


def answer(workdir: str, path: str, as_json: bool = False, calibrated: bool = False) -> str:
    """Predicts inputs and says the result, the most uncertain first.

    Args:
        workdir: of the run whose ensemble predicts.
        path: of the inputs; see `read_inputs`.
        as_json: whether to return a JSON document instead of a table.
        calibrated: whether to temper the probabilities as the run was calibrated.

    Raises:
        UserError: the inputs or the workdir cannot be used.
    """
    names, inputs = read_inputs(path)  # First, for it fails faster than loading does.
    predictor = ensemble.load(workdir, calibrated=calibrated)
    dataset = predictor.dataset
    inputs = as_trained(inputs, dataset, path)
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
    if not as_json:
        rows = [[("input", names[i]), *likelihood.cells(prediction, i)] for i in ranking]
        return tabular.aligned(rows)
    document = {
        **likelihood.legend(),
        "members": len(predictor.members),
        "predictions": [{"input": names[i], **likelihood.entry(prediction, i)} for i in ranking],
    }
    return json.dumps(document, allow_nan=False)


def read_inputs(path: str) -> tuple[list[str], np.ndarray]:
    """Reads a folder of images, or `inputs` or the single array of an npz file.

    Returns:
        names [N], which are relative paths or indices, and examples [N, ...] as they are.

    Raises:
        UserError: there is no such folder or file, or it holds no examples, or bad ones.
    """
    if local_path(path).is_dir():
        return read_unlabelled_folder(path)
    arrays = read_npz(path)
    if "inputs" not in arrays and len(arrays) != 1:
        raise UserError(
            f"npz:{path} has the arrays {', '.join(sorted(arrays)) or '(none)'}; expected is "
            "inputs, or a single array"
        )
    inputs = arrays["inputs"] if "inputs" in arrays else next(iter(arrays.values()))
    return [str(i) for i in range(len(np.atleast_1d(inputs)))], inputs


def as_trained(inputs: np.ndarray, dataset: "Source", path: str) -> np.ndarray:
    """Brings inputs to the form of the training data, where that needs no guess.

    Args:
        inputs: [N, ...] as read.
        dataset: the training data's description.
        path: where the inputs come from.

    Returns:
        [N, ...] of the training data's dtype; grayscale images are RGB where those were.

    Raises:
        UserError: the inputs are no such numbers.
    """
    dtype = dataset.input_dtype
    if local_path(path).is_dir():
        if dtype != np.uint8:
            raise UserError(
                f"{path} holds images, the training data were {dtype}: write the inputs, on their "
                "scale, to an npz file and give that"
            )
        if inputs.shape[-1] == 1 and dataset.input_shape[-1] == 3:
            inputs = np.repeat(inputs, 3, axis=-1)  # As in a training folder with both.
    return check_inputs(inputs, dtype, path)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    # Defined here, for a program that imports this module may have flags of these names.
    flags.DEFINE_string("workdir", None, "The run whose ensemble predicts.")
    command_line.define_config_flag()
    flags.DEFINE_bool("json", False, "Print one JSON document.")
    flags.DEFINE_bool("calibrated", False, "Temper the probabilities as the run was calibrated.")
    return command_line.parse(
        argv,
        example="--workdir=runs/digits pictures",
        required=("workdir",),
        arguments=("FOLDER_OR_NPZ",),
    )


def run(program: str = "predict.py") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
