"""What every source promises: splits of examples that are read by their indices, always alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ensemble.source import Source, SplitInputs, in_memory
from ensemble.sources import load_dataset
from ensemble.testing.promises import Promise, demand, keep_all, promise

SPLITS = ("train", "validation", "calibration", "test")


@dataclasses.dataclass(frozen=True)
class SourceCase:
    """A source of examples.

    Attributes:
        name: of the data set, as `config.dataset` has it.
        source: of its examples.
        load: makes the source anew.
    """

    name: str
    source: Source
    load: Callable[[], Source]
    kind: str = "source"


def check_source(name: str, data_dir: str | None = None) -> None:
    """Checks what every source promises.

    Args:
        name: of a small data set, as `config.dataset` has it.
        data_dir: where data sets lie that are prepared before; None for where they lie by default.

    Raises:
        BrokenPromise: it breaks a rule, which the message names, with what to look at.
        UserError: there is no such data set.
    """

    def load() -> Source:
        return load_dataset(name, data_dir)

    keep_all(PROMISES, SourceCase(name, load(), load))


_FOUND: list[Promise] = []


@promise(_FOUND, "sizes, class_names, shift and scale")
def it_says_what_its_examples_are(case: SourceCase) -> None:
    """Splits begin with train, classes have names and numbers none, and inputs can be scaled."""
    source = case.source
    names = list(source.sizes)
    wanted = [name for name in SPLITS if name in names]
    demand(names[:1] == ["train"], f"the first of the splits {names} is not train")
    demand(names == wanted, f"the splits are {names}, not {wanted}")
    is_picture = len(source.input_shape) == 3
    demand(source.has_pictures == is_picture, f"has_pictures is {source.has_pictures}")
    is_number = source.target_dtype == np.float32
    told = f"class_names are {source.class_names} of targets of type {source.target_dtype}"
    demand((source.class_names is None) == is_number, told)
    for field in ("shift", "scale"):
        dtype = getattr(source, field).dtype
        demand(dtype == np.float32, f"{field} is {dtype}, not float32")
    np.broadcast_shapes(source.shift.shape, source.scale.shape, source.input_shape)


@promise(_FOUND, "read, targets, input_shape, input_dtype and target_dtype")
def examples_are_read_by_their_indices(case: SourceCase) -> None:
    """Indices of any shape and slices read the same examples, of the shape and type it says."""
    source = case.source
    for split, size in source.sizes.items():
        inputs, targets = in_memory(source, split)
        shape = (size, *source.input_shape)
        demand(inputs.shape == shape, f"inputs of {split} are {inputs.shape}, not {shape}")
        demand(len(targets) == size, f"{split} has {len(targets)} targets, not {size}")
        for what, array, dtype in (
            ("inputs", inputs, source.input_dtype),
            ("targets", targets, source.target_dtype),
        ):
            demand(array.dtype == dtype, f"{what} of {split} are {array.dtype}, not {dtype}")
        np.testing.assert_array_equal(targets, source.targets(split), err_msg="targets")
        indices = np.random.default_rng(2).integers(0, size, (2, 7))
        read = source.read(split, indices)
        np.testing.assert_array_equal(read.inputs, inputs[indices], err_msg="inputs by indices")
        np.testing.assert_array_equal(read.targets, targets[indices], err_msg="targets by indices")
        some = SplitInputs(source, split)
        np.testing.assert_array_equal(some[3:9], inputs[3:9], err_msg="a slice")
        demand(len(some) == size, f"{split} has {len(some)} inputs, not {size}")


@promise(_FOUND, "what is drawn by another seed than the request's, or differs at every reading")
def the_same_data_are_loaded_again(case: SourceCase) -> None:
    """Loaded twice, a data set has the same sizes and the same fingerprint."""
    source, again = case.source, case.load()
    sizes = dict(source.sizes), dict(again.sizes)
    demand(sizes[0] == sizes[1], f"the sizes are {sizes[0]}, and {sizes[1]} the second time")
    found = source.fingerprint, again.fingerprint
    demand(found[0] == found[1], f"the fingerprint is {found[0]}, and {found[1]} the second time")


PROMISES: tuple[Promise, ...] = tuple(_FOUND)
"""All rules of sources, in order."""
