"""What the text of a compiled program says: what devices exchange, where, and how long it may take.

The text is that of `jax.stages.Compiled.as_text()`, of any compiler of XLA.
"""

import collections
import dataclasses
import math
import re

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_BYTES = {
    "bf16": 2, "c64": 8, "f16": 2, "f32": 4, "f64": 8, "pred": 1, "s16": 2, "s32": 4, "s64": 8,
    "s8": 1, "u16": 2, "u32": 4, "u64": 8, "u8": 1,
}  # fmt: skip
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$", re.MULTILINE)
_CALLED = re.compile(
    r"\b(?:calls|to_apply|true_computation|false_computation|condition)=%?([\w.-]+)"
    r"|\bbranch_computations=\{([^}]*)\}"
)
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN_CYCLES = 2**63 - 1
_COMMENT = re.compile(r"/\*.*?\*/")
"""Numbers the parts of a long tuple: `/*index=5*/`."""


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """Collectives of one kind, as deep in loops.

    Attributes:
        name: of the operation.
        depth: loops around it; what is in none happens once a program.
        count: how many the program has.
        num_bytes: that they put out together, once each, on one device.
    """

    name: str
    depth: int
    count: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a program's text says.

    Attributes:
        exchanged: what the devices exchange.
        cycles: that the compiler's own cost model estimates, loops as often as it knows that they
            run, else once; 0 where it estimates none, or not of every operation.
        callbacks: calls of the host.
    """

    exchanged: tuple[Exchanged, ...]
    cycles: int
    callbacks: int


def read(text: str) -> Reading:
    """Reads a program.

    Args:
        text: of the compiled program.

    Raises:
        ValueError: it has no entry.
    """
    lines_of, entry = _computations(text)
    counts: collections.Counter[tuple[str, int]] = collections.Counter()
    sizes: collections.Counter[tuple[str, int]] = collections.Counter()
    callbacks = cycles = 0
    is_known = True
    waiting = [(entry, 0, 1)]
    while waiting:
        name, depth, times = waiting.pop()
        for line in lines_of[name]:
            estimated = [int(number) for number in _CYCLES.findall(line)]
            is_known &= _UNKNOWN_CYCLES not in estimated
            cycles += times * sum(estimated)
            callbacks += "callback" in line and "custom-call" in line
            collective = _collective(line)
            if collective:
                counts[collective[0], depth] += 1
                sizes[collective[0], depth] += collective[1]
            body = _BODY.search(line)
            if body:
                trips = _TRIPS.search(line)
                waiting.append((body[1], depth + 1, times * int(trips[1] if trips else 1)))
            for one, several in _CALLED.findall(line):
                called = [one] if one else re.findall(r"[\w.-]+", several)
                waiting += [(each, depth, times) for each in called if each in lines_of]
    exchanged = tuple(
        Exchanged(name, depth, counts[name, depth], sizes[name, depth])
        for name, depth in sorted(counts)
    )
    return Reading(exchanged, cycles if is_known else 0, callbacks)


def rounded_products(text: str) -> int:
    """Counts the products of float32 that accelerators may round to some three digits.

    Args:
        text: of a program that is lowered, of `jax.stages.Lowered.as_text()`.
    """
    return sum(
        ("stablehlo.dot_general" in line or "stablehlo.convolution" in line)
        and "HIGHEST" not in line
        and "f32" in line
        for line in text.splitlines()
    )


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of every computation by its name, and the name of the first that runs."""
    found: dict[str, list[str]] = {}
    entry = ""
    lines = None
    for line in _COMMENT.sub("", text).splitlines():
        head = _COMPUTATION.match(line)
        if head:
            lines = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            lines = None
        elif lines is not None:
            lines.append(line)
    if not entry:
        raise ValueError("the text of a program has an ENTRY")
    return found, entry


def _collective(line: str) -> tuple[str, int] | None:
    """The name of a collective and the bytes that it puts out; None for anything else."""
    for name in COLLECTIVES:
        found = re.search(rf"= (\(?[^=]*?\)?) {name}(-start)?\(", line)
        if found:
            sizes = _sizes(found[1])
            if found[2] and found[1].startswith("(") and name != "all-reduce":
                # What starts one puts out what goes in, what comes out, and perhaps a context.
                sizes = sizes[len(sizes) // 2 :] if found[1].startswith("((") else sizes[1:2]
            return name, sum(sizes)
    return None


def _sizes(shapes: str) -> list[int]:
    """Bytes of each of the shapes in a text such as `(f32[8,4]{1,0}, f32[])`."""
    return [
        _BYTES.get(dtype, 0) * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", shapes)
    ]
