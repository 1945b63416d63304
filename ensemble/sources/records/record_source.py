"""The source for folders of records: `records:FOLDER`, on a disk or in a bucket."""

from ensemble.errors import UserError
from ensemble.source import Request
from ensemble.sources.on_disk import OnDisk, split_on_disk
from ensemble.sources.own_arrays import OwnData, local_path, tell
from ensemble.sources.records.bucket import local_copy
from ensemble.sources.records.index import INDEX, read_folder
from ensemble.storage.paths import is_remote


def given_records(name: str, request: Request) -> OwnData:
    """The examples of a folder of records, as they were given.

    Args:
        name: `records:FOLDER`.
        request: how they are asked for, of which nothing matters here.

    Raises:
        UserError: there is no such folder, or it is not whole or damaged.
    """
    path = name.partition(":")[2]
    folder = local_copy(name) if is_remote(path) else local_path(path)
    if not folder.is_dir():
        raise UserError(f"{name}: there is no folder {folder.absolute()}; check the path")
    if not (folder / INDEX).is_file():
        raise UserError(
            f"{name} holds no {INDEX}; ensemble convert SOURCE FOLDER writes a folder of records"
        )
    return read_folder(folder, name)


def load_records(name: str, request: Request) -> OnDisk:
    """Makes a data set of a folder of records.

    Raises:
        UserError: the folder is not whole or damaged, or there are too few examples to be split.
    """
    given = given_records(name, request)
    tell(given.targets, name)
    return split_on_disk(given, name, request, reads_ahead=True)
