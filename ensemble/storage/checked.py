"""JSON files of a workdir with a format and a checksum: what is damaged is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from etils import epath

from ensemble.config import FORMAT
from ensemble.errors import UserError, in_one_line
from ensemble.storage.files import write_file
from ensemble.storage.schema import checksum, parse, to_json
from ensemble.storage.workdir import check_format, check_size

_MAX_BYTES = 50_000_000
Read = TypeVar("Read")


def write_checked(path: epath.Path, content: Mapping[str, Any]) -> None:
    """Writes an object as JSON, in place of an earlier one."""
    whole = {"format": FORMAT, **content}
    whole["checksum"] = checksum(whole)
    write_file(path, to_json(whole))


def read_checked(path: epath.Path, make: Callable[[Mapping[str, Any]], Read]) -> Read:
    """Reads what `write_checked` wrote.

    Args:
        path: of the file.
        make: makes something of the object; raises ValueError, KeyError or TypeError where it is
            not as expected.

    Raises:
        UserError: the file is damaged, or of something else.
    """
    check_size(path, _MAX_BYTES)
    try:
        content = parse(path.read_bytes())
        if content.pop("checksum", None) != checksum(content):
            raise ValueError("its checksum does not agree with its content")
        check_format(path, content["format"])
        return make(content)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged or not of this program ({in_one_line(error)}); choose another "
            "--workdir"
        ) from None
