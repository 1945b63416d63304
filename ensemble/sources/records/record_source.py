"""The tenant for folders of records: `records:FOLDER`."""

from ensemble.source import Request
from ensemble.sources.on_disk import OnDisk, split_on_disk
from ensemble.sources.records.index import given_records
from ensemble.sources.remarks import tell


def load_records(name: str, request: Request) -> OnDisk:
    """Makes a data set of a folder of records.

    Raises:
        UserError: the folder is not whole or damaged, or there are too few examples to be split.
    """
    given = given_records(name, request)
    tell(given.targets, name)
    return split_on_disk(given, name, request, reads_ahead=True)
