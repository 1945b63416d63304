"""Declaration of configuration keys: fields of frozen dataclasses.

    @dataclasses.dataclass(frozen=True)
    class HMC(Chains):
        num_chains: int = key(4, "chains in all", gt=0)
        step_size: float = key(0.01, "step size of the integrator", gt=0, block="sampler")

The annotation is the type of a key; `config.sampler.step_size` is in a block. A class attribute
`config_rules` of a dataclass has the sets of values that cannot be used together, `builtin.Rule`.
"""

import dataclasses
import operator
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

MAX_STEPS = 2**31 - 1
"""Largest whole number: steps and draws are counted in 32 bits on the devices."""
MAX_MEMBERS = 2**20
"""Largest number of members or chains: each has its own scalars and entries in the report."""
LARGEST = 1e15
"""Largest number: the squares of others leave float32."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a configuration.

    Attributes:
        default: Value if it is not set.
        meaning: In a few words.
        bounds: Limits by operator, `gt`, `ge`, `lt` and `le`.
        read: Function from a given value to the value of the key; raises `ValueError` if the value
            is invalid. By default the type says what is read.
        is_valid: Predicate of a value that was read.
        rule: Wording of the rule, if type and bounds do not express it.
        may_change: If True, a resumed run may have another value.
        inherits: If False, the value of a config file is dropped if the command line changes the
            method.
        block: Name of the block that the key is in, such as `sampler`; None: that of its piece.
        type: Of its value, or of the values of a tuple.
        is_many: Whether the value is a tuple.
        choices: The possible values, if there are few.
    """

    default: Any
    meaning: str
    bounds: Mapping[str, float]
    read: Callable[[Any], Any] | None = None
    is_valid: Callable[[Any], Any] | None = None
    rule: str = ""
    may_change: bool = False
    inherits: bool = True
    block: str | None = None
    type: Any = str
    is_many: bool = False
    choices: tuple[Any, ...] = ()


Keys = dict[str, Key]
"""Keys by their names in the configuration."""


def key(default: Any, meaning: str, **properties: Any) -> Any:
    """Declares a key; `properties` are those of `Key` to `block`, and `gt`, `ge`, `lt`, `le`."""
    bounds = {one: properties.pop(one) for one in _BOUNDS if one in properties}
    about = Key(default, meaning, bounds, **properties)
    return dataclasses.field(default=default, metadata={"key": about})


@cache
def fields_of(cls: type, block: str = "") -> Keys:
    """Keys of a class by full name; empty if it declares none.

    Args:
        cls: The class.
        block: Name of the block of keys that declare none; empty: they are in no block.
    """
    result = {}
    declared = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    own = [one for one in declared if "key" in one.metadata]
    hints = typing.get_type_hints(cls) if own else {}
    for one in own:
        about: Key = one.metadata["key"]
        place = block if about.block is None else about.block
        name = f"{place}.{one.name}".lstrip(".")
        if one.name not in getattr(cls, "instead", ()):
            result[name] = dataclasses.replace(about, **_shape(hints[one.name]))
    return result


def _shape(hint) -> dict[str, Any]:
    """Properties of a key by its annotation."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is typing.Literal:
        return {"choices": args}
    if origin is tuple:
        return {"type": args[0], "is_many": True}
    return _shape(args[0]) if args else {"type": hint}  # Of `int | None` the first.


# Values.


def read(field: Key, value: Any) -> Any:
    """Returns the value of a key, of its type; texts of the command line are converted.

    Raises:
        ValueError: The value is invalid; the message is the rule.
    """
    if field.type is not str and str(value).lower() == "none":
        value = None
    if value is None:
        if field.default is not None:
            raise ValueError(f"must have a value; omit it for {field.default!r}")
        return None
    try:
        result = field.read(value) if field.read else _typed(field, value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ValueError((field.read and not field.rule and str(error)) or rule_of(field)) from None
    if field.is_valid is not None and not field.is_valid(result):
        raise ValueError(field.rule)
    return result


def _typed(field: Key, value):
    """A value of the key's type, within its bounds."""
    if field.is_many:
        parts = value.split(",") if isinstance(value, str) else value
        one = dataclasses.replace(field, is_many=False)
        return tuple(
            _typed(one, part) for part in (parts if isinstance(parts, list | tuple) else [parts])
        )
    if hasattr(value, "item"):
        value = value.item()  # A NumPy scalar.
    if isinstance(value, str) and field.type is not str:
        value = _TRUTHS[value.lower()] if field.type is bool else field.type(value)
    if type(value) is int and field.type is float:
        value = float(value)
    if type(value) is not field.type or (field.choices and value not in field.choices):
        raise ValueError
    if (most := _LARGEST.get(type(value))) and "le" not in field.bounds and value > most:
        raise OverflowError(f"must be at most {most:.10g}")
    if value != value or not all(_BOUNDS[one][0](value, at) for one, at in field.bounds.items()):
        raise ValueError
    return value


_TRUTHS = {"true": True, "false": False}
_LARGEST = {int: MAX_STEPS, float: LARGEST}
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    bool: ("True or False", "truth values"),
}
_BOUNDS = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}


def rule_of(field: Key) -> str:
    """The rule of a key in words."""
    if field.rule:
        return field.rule
    if field.choices:
        return f"must be one of {', '.join(field.choices)}"
    words = _WORDS[field.type][field.is_many]
    if field.bounds == {"gt": 0} and not field.is_many:
        return f"must be {words.replace('a ', 'a positive ', 1)}"
    words += " separated by commas," * field.is_many
    bounds = " and ".join(f"{_BOUNDS[one][1]} {bound}" for one, bound in field.bounds.items())
    return f"must be {words} {bounds}".strip(" ,")


def as_json(value: Any) -> Any:
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
