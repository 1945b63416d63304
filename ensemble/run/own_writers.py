"""Writers of users: each gets the metrics of a run as `metrics.jsonl` does."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from ensemble import registry
from ensemble.errors import UserError, in_own_code
from ensemble.notes import note
from ensemble.sharding import processes


def check_writers(config: ml_collections.FrozenConfigDict) -> None:
    """Refuses writers that are not there, before anything slow happens.

    Raises:
        UserError: `config.writers` names one that is not there, or cannot be loaded.
    """
    tenants = registry.WRITERS
    for name in _names(config):
        if name not in tenants:
            raise UserError(
                f"config.writers={config.writers!r} has {name!r}, which is no writer; register "
                f"it, or choose from {tenants.listing() or 'none, for there are none'}"
            )
        registry.load_code(tenants, name, tenants[name].factory)


class OwnWriter:
    """A writer of a user, which is called no more once it has failed.

    Args:
        name: of the writer.
        config: of the run.
        workdir: of the run; None keeps nothing.
        step: that the run goes on from.

    Raises:
        UserError: its factory fails, or makes no writer.
    """

    def __init__(
        self, name: str, config: ml_collections.FrozenConfigDict, workdir: str | None, step: int
    ):
        tenants = registry.WRITERS
        factory = tenants[name].factory
        self._name = name
        self._write = registry.called(tenants, name, factory, config, workdir, step)
        if not callable(self._write):
            raise registry.made_none(tenants, name, "a function of a step and its metrics")
        self._has_failed = False

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Hands the scalars of a step over."""
        if self._has_failed:
            return
        metrics = {tag: float(value) for tag, value in scalars.items()}
        if not self._calls(f"at step {step}", self._write, step, metrics):
            self._has_failed = True
            with contextlib.suppress(Exception):  # What it holds open; it has been named already.
                self._close()

    def close(self) -> None:
        """Closes the writer, unless it has failed."""
        if not self._has_failed:
            self._calls("when the run ended", self._close)

    def _close(self) -> None:
        close = getattr(self._write, "close", None)
        if callable(close):
            close()

    def _calls(self, when: str, function: Callable[..., Any], *arguments: Any) -> bool:
        """Calls code of the user; says so, and returns False, where that fails."""
        try:
            function(*arguments)
        except Exception as error:  # It is a program, and may raise anything.
            what = registry.described(registry.WRITERS, self._name).removeprefix("the")
            note(f"The{what} failed {in_own_code(error)} {when}; it is called no more.")
            return False
        return True


@contextlib.contextmanager
def open_own_writers(
    config: ml_collections.FrozenConfigDict, workdir: str | None, step: int
) -> Iterator[Sequence[OwnWriter]]:
    """Opens the writers that `config.writers` names, and closes them when the run ends.

    Of several processes only the main one has them.

    Args:
        config: of the run.
        workdir: as of `OwnWriter`.
        step: likewise.

    Raises:
        UserError: a factory fails.
    """
    writers: list[OwnWriter] = []
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            for name in _names(config):
                writers.append(OwnWriter(name, config, workdir, step))
                stack.callback(writers[-1].close)

        processes.from_main(begin)
        yield writers


def _names(config: ml_collections.FrozenConfigDict) -> Sequence[str]:
    return [one.strip() for one in config.writers.split(",") if one.strip()]
