"""Writes an ensemble as one file that runs anywhere, without this project.

    ensemble export --workdir=runs/digits --out=model.bin

Whoever has the file needs `pip install jax flatbuffers` and these lines:

    from read_model import Model  # The program that is written beside the file.
    model = Model("model.bin").compile()
    p = model(inputs)  # [N, *input_shape], as raw and of the dtype as the training data
    p["probs"], p["epistemic_uncertainty"]

`p` is a dict of the columns of predictions, [N, ...] each: of classes `label`, `probs` [N, C] and
`total_uncertainty`, `aleatoric_uncertainty` and `epistemic_uncertainty` in nats; of numbers `mean`,
`std`, `aleatoric_std`, `epistemic_std` and `quantiles` [N, Q], float32. `accepted` [N] bool is
false where an ensemble that was exported with `--max_error` is not sure enough to answer. N is
free: `read_model.py` pads to powers of two and runs at most 256 rows at once, so that nine programs
serve all calls (decision 0084). Without it, `jax.export.deserialize(content).call(inputs)` compiles
anew for each N. `model.name`, the file's `fun_name`, says which run it is of, and which JAX wrote
it. JAX promises to read files that are up to six months old, and refuses some older ones in one
line: export the workdir again.

The file holds StableHLO for CPU, CUDA and TPU, with the variables of all members as constants: its
size is theirs, 4 bytes a parameter and member (eight CNNs of MNIST: 26 MB), at most 2 GB. Of a
posterior the members are draws, at most `config.max_draws_per_chain` of each chain.

An ensemble of a table takes the inputs [N, F] that its columns become. What these are is written
beside the file as `model.bin.table.json`, with the program that makes them, `read_table.py`, which
needs NumPy alone: `inputs, warnings = encode(read_csv("new.csv"), json.load(open(...)))`.
"""

import json
from pathlib import Path

import jax
import jax.export

from ensemble import read_model
from ensemble.data.tables import read_table
from ensemble.data.tables.table import TableForm
from ensemble.errors import InputError
from ensemble.predictor import Ensemble

MODEL_READER = Path(read_model.__file__)
"""Runs the file on batches of any size. It goes beside every export."""
TABLE_READER = Path(read_table.__file__)
"""Makes a table into inputs. It goes beside the export of a table's ensemble."""
PLATFORMS = ("cpu", "cuda", "tpu")
_MAX_BYTES = 2_000_000_000  # FlatBuffers, the container of a `jax.export` file, ends at 2**31.


def export(predictor: Ensemble) -> bytes:
    """Serializes an ensemble; the module's docstring says how to run it.

    Args:
        predictor: of an ensemble; where it has a temperature T, `probs` are softmax(log p / T).

    Raises:
        InputError: The ensemble is larger than 2 GB.
    """
    sets = [one.sets for _, one in predictor.parts]
    if (size := sum(leaf.nbytes for leaf in jax.tree.leaves(sets))) > _MAX_BYTES:
        raise InputError(
            f"the {predictor.description} take {size / 1e9:.1f} GB, and an export holds 2; train "
            "fewer or smaller ones"
        )
    dataset = predictor.dataset
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = jax.ShapeDtypeStruct((batch, *dataset.input_shape), dataset.input_dtype)

    def run(inputs: jax.Array) -> dict[str, jax.Array]:
        return predictor.function(inputs)

    # What a file says as `model.fun_name`.
    run.__name__ = f"run_{predictor.identity}_jax_{jax.__version__}"
    return bytes(jax.export.export(jax.jit(run), platforms=PLATFORMS)(inputs).serialize())


def table_json(table: TableForm) -> bytes:
    """What was made of the columns of a table, as `read_table.py` takes it."""
    return (json.dumps(table.content, indent=1, allow_nan=False) + "\n").encode()
