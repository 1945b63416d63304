"""Modules beside a file that the command line names: it imports them as a program does.

Python puts the folder of the program that it runs in front of `sys.path`. A config file is such a
program, and so is the file of a model. Nothing that a workdir names comes here.
"""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importable(file: str | os.PathLike[str]) -> Iterator[None]:
    """Within it, the modules beside a file come first; after it, behind all others.

    What a function of the file imports later is found then, and hides no module of other folders.

    Args:
        file: that is about to be executed.
    """
    folder = os.path.dirname(os.path.abspath(file))
    is_new = folder not in sys.path
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)  # The first of them.
        if is_new:
            sys.path.append(folder)
