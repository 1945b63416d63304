"""The monitor of a run shows how it goes: scalars, pictures, progress, members that fail."""

import logging
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from clu import parameter_overview

from ensemble.draws.store import Draws
from ensemble.errors import RunFailed
from ensemble.method import (
    FAILURES,
    Charted,
    Diagnosed,
    Illustrated,
    Info,
    Method,
    PredictingMethod,
    Recorded,
    State,
    Status,
)
from ensemble.pictures import plot_style
from ensemble.report import results
from ensemble.run.progress import Clock, Progress
from ensemble.run.writer import Writer
from ensemble.scoring.sections import score_split
from ensemble.sharding import processes
from ensemble.storage.predictions import MemberPredictions
from ensemble.task import Scored

logger = logging.getLogger("ensemble")

CHUNK_SECONDS = 8.0
"""The seconds that a chunk should take at most: a second one may be in line when a run is asked to
stop."""


class Pace:
    """Chooses a limit for the next chunk from how long the last ones took.

    The first chunk is of one step, and so is the one after it, since the first compiles. From then
    on the limit may double with each chunk, so that a few quick steps do not vouch for many.

    Attributes:
        limit: steps that the next chunk may have.
    """

    def __init__(self) -> None:
        self.limit = 1
        self._since = time.monotonic()

    def resume(self) -> None:
        """Starts or restarts the measurement after other work, with nothing left on the devices."""
        self._since = time.monotonic()

    def chunk_done(self, num_steps: int, compiles: bool) -> None:
        """Notes that a chunk has just ended.

        Args:
            num_steps: that it had.
            compiles: whether its time says nothing of steps.
        """
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if compiles or not num_steps:
            return
        seconds_per_step = max(seconds, 1e-9) / num_steps
        self.limit = max(1, min(2 * self.limit, int(CHUNK_SECONDS / seconds_per_step)))


class Monitor:
    """Writes what a method reports, one chunk behind it, so that the devices never wait.

    Args:
        method: what learns.
        scored: what predictions are scored by, if there are any.
        writer: of metrics and events.
        progress: bar and log.
        clock: of the run.
        draws: where the draws of a sampler go.
        may_all_fail: whether the run goes on, with members that are not under way, when all that
            are have failed.

    Attributes:
        pace: says how many steps the next chunk may have.
        may_end: whether all members have stopped or failed, or chains have converged as was asked.
        headline_tags: tags of the scalars by which runs are compared.
    """

    def __init__(
        self,
        method: Method[State, Info],
        scored: Scored | None,
        writer: Writer,
        progress: Progress,
        clock: Clock,
        draws: Draws,
        may_all_fail: bool = False,
    ):
        self._config = method.config
        self._scored = scored
        self._method = method
        self._writer = writer
        self._progress = progress
        self._clock = clock
        self._draws = draws
        self._may_all_fail = may_all_fail
        self.pace = Pace()
        self._pending: Info | None = None
        self._state: State | None = None  # The newest.
        self._last: dict[str, float] = {}
        self._compiling = True
        self._skips_rate = False
        self._failed: set[int] = set()
        self.may_end = False
        self._split = method.tracked_split
        self.headline_tags = [
            f"{self._split}/ensemble/{name}"
            for name in (scored.likelihood.headline if scored and self._split else ())
        ]

    def charts(self) -> dict[str, str]:
        """What members are to be compared by: titles, and patterns of the tags of their curves."""
        found = dict(self._method.charts) if isinstance(self._method, Charted) else {}
        if self._scored is not None and self._split is not None:
            for name in self._scored.likelihood.columns:
                found[f"{self._split} {name}"] = f"{self._split}/(member_[0-9]+|ensemble)/{name}"
        return found

    def note_resumed(self, state: State) -> None:
        """Takes over what an earlier process knew of the members."""
        status = self._method.status(state)
        self._failed = {k for k, value in status.items() if value in FAILURES}
        self.may_end = Status.ACTIVE not in status.values()
        every = self._config.eval_every_epochs * self._method.steps_per_epoch
        if not self.may_end and state.step % every == 0:  # As the run without a break was judged.
            self.may_end = self._has_converged(self._found(state))

    def log_parameters(self, state: State) -> None:
        """Logs the shapes and sizes of one member's parameters."""
        parameters = self._method.parameters(state)
        overview = parameter_overview.get_parameter_overview(parameters, include_stats=False)
        logger.info("Parameters of a %s:\n%s", self._method.noun, overview)

    def write_previous(self, info: Info, state: State) -> None:
        """Writes the diagnostics of the chunk before a new one, and takes those of the new one.

        A process's first chunk compiles; it is waited for, and counts in no rate. One that a limit
        has cut is waited for too, so that the next limit is known.

        Args:
            info: of the chunk.
            state: after it.

        Raises:
            RunFailed: no member is alive, or one failed and `config.on_nonfinite` is 'stop'.
        """
        self._state = state
        self._skips_rate |= info.compiles  # Its compilation held up the end of the chunk before.
        self.write_pending()
        self._skips_rate |= info.compiles
        self._pending = info
        if self._compiling or info.is_cut:
            self.write_pending()

    def resume(self) -> None:
        """Starts or restarts the measurement of chunks after other work."""
        self._clock.resume()
        self.pace.resume()

    def write_pending(self) -> None:
        """Waits for the chunk on the devices and writes its diagnostics.

        Raises:
            RunFailed: as `write_previous`.
        """
        info, self._pending = self._pending, None
        if info is None:
            return
        status = self._method.status(info)  # Waits.
        self.pace.chunk_done(info.step - info.first, self._compiling or info.compiles)
        if self._compiling:
            self._clock.compiled()
            self._progress.compiled(info.step)
            self._compiling, self._skips_rate = False, True
        if info.is_cut:
            self._progress.update(info.step)
            return
        rate = {}
        if self._skips_rate:
            self._clock.resume()
        else:
            rate = self._method.rate_scalars(
                self._clock.chunk_done(self._method.member_examples(info))
            )
        self._skips_rate = False
        self._note_failures(info.step, status)
        scalars = self._method.scalars(info)
        for k in self._failed:
            scalars = {tag: v for tag, v in scalars.items() if f"/member_{k:02d}/" not in tag}
        self._last = scalars | rate
        self._progress.update(info.step, self._shown_epoch(info.step), self._headline(scalars))
        self._write(info, self._last)
        if isinstance(self._method, Recorded):
            self._method.record(info, self._draws)
        self.may_end = Status.ACTIVE not in status.values()

    def _headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What of a chunk's scalars shows how it goes: the mean loss, and how chains do."""
        of_members = [
            v for tag, v in scalars.items() if re.fullmatch(r"train/member_\d+/loss", tag)
        ]
        losses = [loss for loss in of_members if np.isfinite(loss)]  # Of members that took steps.
        found = {"train loss": float(np.mean(losses))} if losses else {}
        if isinstance(self._method, Diagnosed):
            found |= self._method.headline(scalars)
        return found

    def evaluate(self, state: State) -> None:
        """Scores the live members and their mean on the tracked split, and draws pictures."""
        method, scored, split = self._method, self._scored, self._split
        self.write_pending()
        self._state = state
        if self._may_all_fail and self._failed.issuperset(method.indices):
            return  # None is left to score.
        scalars = self._found(state)
        self.may_end = self.may_end or self._has_converged(scalars)
        shown = {}
        if isinstance(method, Diagnosed):
            shown = method.headline(self._last | scalars)
        predicts = isinstance(method, PredictingMethod) and method.has_predictions(state)
        if scored is None or split is None or not predicts:
            self._write(state, scalars)
            self._progress.log(state.step, self._shown_epoch(state.step), shown)
            if isinstance(method, Illustrated) and self._draws_now(state):
                self._write_images(state.step, method.figures(state))
            return
        predictions, status = results.live_predictions(method, state, [split], self._draws)
        self._note_failures(state.step, status)
        likelihood, targets = scored.likelihood, scored.dataset.targets(split)
        view = predictions[split].view(likelihood, targets)
        scores = score_split(view, intervals=False)["scores"]
        numbers = [k for k in status if status[k] not in FAILURES]
        scalars |= {
            f"{split}/member_{k:02d}/{name}": scores[name]["members"][i]
            for name in likelihood.columns
            for i, k in enumerate(numbers)
        }
        for name, one in scores.items():
            group = "ensemble" if "members" in one else "diversity"
            scalars[f"{split}/{group}/{name}"] = one["value"]
        self._write(state, scalars)
        loss = likelihood.loss
        shown_loss = {"nll": "NLL"}.get(loss, loss)
        self._progress.log(
            state.step,
            self._epoch(state.step),
            {
                f"{split} {likelihood.headline[0]}": scores[likelihood.headline[0]]["value"],
                shown_loss: scores[loss]["value"],
                f"average {method.noun}'s {shown_loss}": scores[loss]["mean"],
                **shown,
            },
        )
        self._draw(state, scored, split, predictions[split])

    def _has_converged(self, scalars: Mapping[str, float]) -> bool:
        """What the main process, which has seen all draws, makes of its scalars."""
        method = self._method
        if not isinstance(method, Diagnosed):
            return False
        return bool(processes.from_main(lambda: method.has_converged(scalars)))

    def _found(self, state: State) -> dict[str, float]:
        if not isinstance(self._method, Diagnosed):
            return {}
        rate = self._clock.timing()["member_examples_per_second"]
        return self._method.monitor_scalars(state, self._draws, rate)

    def _draw(
        self, state: State, scored: Scored, split: str, predictions: MemberPredictions
    ) -> None:
        if not processes.is_main() or not self._draws_now(state):
            return
        figures = results.split_figures(scored, split, predictions)
        self._write_images(
            state.step, {f"{split}/{name}": figure for name, figure in figures.items()}
        )
        name, values = scored.likelihood.spread(predictions.arrays)
        self._writer.histogram(state.step, f"{split}/{name}", values)

    def _epoch(self, step: int) -> float:
        return step / self._method.steps_per_epoch

    def _shown_epoch(self, step: int) -> float | None:
        """The epoch; None where no predictions are scored: there are no examples to go through."""
        return None if self._scored is None else self._epoch(step)

    def _draws_now(self, state: State) -> bool:
        every = self._config.plot_every_epochs * self._method.steps_per_epoch
        return state.step % every == 0 or self._method.finished(state)

    def _write_images(self, step: int, figures: Mapping[str, Any]) -> None:
        if not processes.is_main():
            return
        for tag, figure in figures.items():
            self._writer.image(step, tag, plot_style.figure_to_array(figure))

    def _write(self, at: Info | State, scalars: Mapping[str, float]) -> None:
        extra: dict[str, Any] = {"epoch": self._epoch(at.step)}
        if self._failed:
            extra["failed_members"] = sorted(self._failed)
        self._writer.scalars(at.step, scalars, **extra)

    def _note_failures(self, step: int, status: Mapping[int, Status]) -> None:
        assert self._state is not None
        new = {k: FAILURES[s] for k, s in status.items() if s in FAILURES and k not in self._failed}
        self._failed |= new.keys()
        for k, why in new.items():
            logger.warning(
                "%s %d became %s by step %d: it is left out of every mean.",
                self._method.noun.capitalize(),
                k,
                why,
                step,
            )
        if new and self._config.on_nonfinite == "stop":
            raise RunFailed(
                f"{self._method.noun} {min(new)} became {new[min(new)]} by step {step}, and "
                f"config.on_nonfinite='stop'; {results.remedy(self._method, self._state)}"
            )
        if self._failed.issuperset(status) and not self._may_all_fail:
            raise results.all_failed(self._method, self._state, status, step)
