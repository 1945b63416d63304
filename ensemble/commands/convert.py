"""Writes data as a folder of records, which `config.dataset=records:FOLDER` reads in batches.

    ensemble convert pictures/ records/ --resize=64
    ensemble convert records:records/ new/ --skip_damaged
    ensemble convert tfds:beans records/ --resize=64

SOURCE is an npz file, a folder of npy files, a folder of images per class, `tfds:NAME`, or
records. FOLDER must not be there yet.
"""

from ensemble import cli
from ensemble.data.catalogue import given_examples
from ensemble.data.image_form import parse_size
from ensemble.data.own_arrays import local_path
from ensemble.data.records import INDEX, check_new, write_records
from ensemble.data.source import Request
from ensemble.errors import InputError
from ensemble.run.progress import Progress, open_display

_FILES = {".npz": "npz", ".csv": "csv", ".parquet": "parquet"}


def main(call: cli.Call) -> None:
    """Writes the folder."""
    flags = call.flags
    source, target = call.arguments
    folder = local_path(target)
    try:
        check_new(folder)  # Before the work, not after it.
        request = Request(flags["data_dir"], size=parse_size(flags["resize"]))
        given = given_examples(_name(source), request)
        total = sum(len(one.targets) for one in given.parts.values())
        with (
            open_display() as display,
            Progress(0, total, display, "converting", "example") as progress,
        ):
            left_out = write_records(given, folder, flags["skip_damaged"], progress.update)
    except InputError as error:  # A key of a configuration is a flag here.
        raise InputError(str(error).replace("config.resize", "--resize")) from error
    cli.print_answer(
        f"{folder}: {total - left_out:,} examples, {left_out:,} damaged left out; train with "
        f"--config.dataset=records:{folder}"
    )


def _name(source: str) -> str:
    """The data set that the command line names, which may be a path without a prefix."""
    folder = local_path(source)
    if not folder.exists():
        return source
    kind = _FILES.get(folder.suffix.lower(), "folder")
    if any(folder.glob("*inputs.npy")):
        kind = "npy"
    if (folder / INDEX).is_file():
        kind = "records"
    return f"{kind}:{source}"
