"""Lists what there is of a kind, built in, registered and installed: `ensemble list methods`.

Kinds are methods, networks, likelihoods, priors, sources, tasks, optimizers, schedules,
augmentations, writers and scores. What installed packages have is listed by its name; nothing of it
is imported. Scores of packages count where they are asked for, by `ensemble evaluate
--scores=NAME`.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from ensemble import registry
from ensemble.commands import command_line
from ensemble.errors import UserError, shown
from ensemble.scoring.score import declared

_BUILT_IN, _REGISTERED = "built in", "registered"


def main(argv: Sequence[str]) -> None:
    """Prints the names of a kind, and where each comes from."""
    values: Any = flags.FLAGS
    kind = argv[1].removesuffix("s")
    if kind not in registry.KINDS:
        kinds = ", ".join(f"{one}s" for one in registry.KINDS)
        raise UserError(f"{argv[1]!r} is nothing that can be listed; use one of {kinds}")
    command_line.run_config_file(values.config)
    found = origins(kind)
    width = max(map(len, found), default=0)
    rows = [f"{shown(name):<{width}}  {shown(origin)}" for name, origin in found.items()]
    command_line.print_answer("\n".join(rows) or "none")


def origins(kind: str) -> dict[str, str]:
    """Finds where the tenants of a kind come from, by their names."""
    tenants = registry.tenants_of(kind)
    built_in = {one.name for one in declared()} if kind == "score" else tenants.built_in
    installed = {
        name: " and ".join(sorted(map(str, packages)))
        for name, packages in tenants.installed().items()
    }
    registered = dict.fromkeys(tenants.registered, _REGISTERED)
    found = {**installed, **registered, **dict.fromkeys(built_in, _BUILT_IN)}
    order = {_BUILT_IN: 0, _REGISTERED: 1}
    return dict(sorted(found.items(), key=lambda one: (order.get(one[1], 2), one[0])))


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a mistake in it is a `UserError`."""
    command_line.define_config_flag()
    return command_line.parse(argv, example="methods", arguments=("KIND",))


def run(program: str = "list") -> int:
    """Runs `main`, which messages call `program`; returns the exit status."""
    return command_line.run(main, parse_flags, program)
