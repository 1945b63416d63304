"""The programs, wherever the package is installed: `ensemble COMMAND ...`.

`python -m ensemble COMMAND ...` is the same, where the command is on no path.
"""

import importlib
import sys
import traceback

from ensemble import __version__
from ensemble.applications import Command, applications

COMMANDS = {
    "train": Command("trains an ensemble, or samples a posterior or a density"),
    "fit": Command("fits a table as well as a time allows"),
    "methods": Command("says which method to use with the time that there is"),
    "convert": Command("writes data as records, which training reads in batches from the disk"),
    "distill": Command("trains one network to predict what an ensemble predicts"),
    "evaluate": Command("scores a trained ensemble and writes its report"),
    "select": Command("chooses members of several runs that predict best together"),
    "predict": Command("predicts images, the least certain first"),
    "list": Command("lists methods, networks and such, built in and of installed packages"),
    "export": Command("writes an ensemble as one file that runs without this package"),
    **{name: one for some in applications() for name, one in some.commands.items()},
}


def main() -> int:
    """Runs the command that the command line names; returns the exit status."""
    is_module = sys.argv[0].endswith("__main__.py")
    program = "python -m ensemble" if is_module else "ensemble"
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS))
        rows = [f"  {command:<{width}}  {one.does}" for command, one in COMMANDS.items()]
        usage = f"{program} COMMAND --help, or --version"
        print("\n".join([usage, "", *rows]))
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        print(
            f"ensemble: {name!r} is not a command; use one of {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    sys.argv[:2] = [f"{program} {name}"]
    return run(name, f"ensemble {name}")


def run(command: str, program: str) -> int:
    """Runs a command, which messages call `program`; returns the exit status.

    JAX reads its variables when it is imported: what it cannot read is one line here.
    """
    try:
        module = importlib.import_module(COMMANDS[command].module or f"ensemble.commands.{command}")
    except ValueError as error:
        if "/jax/_src/" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
        line = f"JAX cannot be imported: {error}; correct that variable of the environment"
        print(f"{program}: {line}, or leave it out", file=sys.stderr)
        return 2
    status: int = module.run(program)
    return status


if __name__ == "__main__":
    sys.exit(main())
