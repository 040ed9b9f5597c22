"""Watch: a model in training, looked at every so many steps.

    with attnscope.watch(model, "run/", every=50) as watch:
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            watch.step(loss=loss)                   # before optimizer.zero_grad(), so that gradients are there
            optimizer.zero_grad()

Nothing of the training changes: weights, optimiser, random state and losses are the same to the bit with and without
the watch. The model is looked at as it came, before its first update (step 0), after the first step, and after every
step that `every` divides; a loss that is no number is looked at where it appears (by several processes together, at the
next look). What cannot be looked at is refused at the first forward
pass; afterwards training comes first: a look that fails is left out, and said so in the log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from attnscope.commands.watch.broken import Broken, Forwards, broken_place
from attnscope.commands.watch.catching import Caught, Inputs, Precision, catch, checked_probe
from attnscope.commands.watch.clipping import Clip, Clipped, mean_of_all, of_all, together, writes
from attnscope.commands.watch.eye import Eye, compiled_in_place, eye_for, header_of, inside
from attnscope.commands.watch.judge import Judge
from attnscope.commands.watch.look import Alarm, Look
from attnscope.commands.watch.run_folder import RunLog, RunLogStopped
from attnscope.commands.watch.settings import Page, Settings
from attnscope.commands.watch.telling import LOG, no_gradients, tell, tell_clipped
from attnscope.commands.watch.writer import Writers
from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.restoring import Restoring


class TrainingStoppedError(Exception):
    """Raised by `step` where `stop_on` asks for it; the `with` block of the watch ends quietly."""


class Watch:
    """A context manager; `alarms` are all that began or ended, `stopped` the one that ended the training."""

    def __init__(
        self, model: nn.Module, folder: str | Path, settings: Settings, probe: Mapping[str, Any] | None = None
    ) -> None:
        self.settings = settings
        self._outer, self._model = model, inside(model)
        self._folder = folder
        self._measures = settings.chosen()
        self._probe, self._probe_labels = checked_probe(self._model, probe)
        self._changes = Restoring()
        self._caught = Caught()
        self._eye: Eye | None = None
        self._log: RunLog | None = None
        self._clip: Clip | None = None
        self._judge = Judge(settings.thresholds)
        self._writers = Writers.of(settings.writers, folder)
        self._step = settings.resume_from or 0
        self._begun, self._seconds, self._tokens = time.monotonic(), 0.0, 0
        self._before: dict[str, Tensor] | None = None
        self._page = Page()
        self._as_it_came: tuple[Page, float, float] | None = None  # with when it was looked at, and what that took
        self._forwards = Forwards(self._model)
        self._seen_gradient = False
        self._steps, self._said_broken, self._told_gradients = 0, False, False
        self.raises = True  # frameworks have their own way to stop
        self.alarms: list[Alarm] = []
        self.clipped: list[Clipped] = []
        self.looks = 0
        self.stopped: Alarm | None = None

    # the context

    def __enter__(self) -> Watch:
        compiled = compiled_in_place(self._outer)  # its hooks would be compiled with it
        if not compiled:
            catch(self._changes, self._outer, self._model, self._caught, self._forward_begins, self._forward_ended)
        try:
            if compiled and self._probe is None:
                raise RefusalError(
                    "The model was compiled in place (model.compile()), so its batches cannot be seen: give probe=, a "
                    "batch to look at, or wrap it instead (model = torch.compile(model))."
                )
            if self._probe is not None:
                self._open(self._probe)
                if compiled:  # else the first forward tells in which precision
                    self._look_as_it_came(self._probe)
        except BaseException:
            self._changes.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.close()
        if kind is None and not self._steps and self._caught.forwards:
            raise RefusalError(
                f"The model ran {self._caught.forwards} training forwards and watch.step() was never called, so "
                "nothing was watched: call watch.step(loss=loss) after every optimizer.step()."
            )
        return isinstance(error, TrainingStoppedError)

    def close(self) -> None:
        """Take the hooks out and end the record. Twice does no harm."""
        self._changes.close()
        if self._log is not None:
            self._log.close()
        self._writers.close()

    # what the loop tells

    def before_update(self) -> None:
        """Gradients are there, and the optimiser has not used them: frameworks that throw them away call this."""
        if self._eye is not None and self._due(self._step + 1):
            self._seen_gradient = self._eye.training(self._page, None)
            self._copy_weights()  # where no forward was seen (a compiled model), it was not done yet

    def step(self, loss: Tensor | float | int | None = None, batch: Mapping[str, Any] | None = None) -> None:
        """A step of the optimiser is done. `batch` is looked at in place of what the model was last given."""
        self._steps += 1
        self._step += 1
        if self._eye is None and batch is None and self._caught.inputs is None:
            raise RefusalError(
                "The watch has seen no training forward of the model that it was given (it runs inside compiled code, "
                "or another module is trained): give probe=, a batch to look at, or the module that is called."
            )
        if self._eye is None:
            self._open(dict(batch) if batch is not None else self._caught.inputs or {})
        if self._clip is not None:
            if not self._clip.installed:  # the forward in which attention was found was half over
                self._clip.first(self._probe or batch or self._caught.inputs or {}, self._precision())
                self._clip.install(self._changes)
            self._clipped(self._clip.after_step())
        value = self._loss(loss)
        # All processes look at the same steps: one that waits for the others at a step of its own waits for ever.
        lost = (value is not None and not math.isfinite(value)) or self._forwards.broken is not None
        lost = lost and not self._said_broken and not together()
        try:
            if self._due(self._step) or lost:
                self._look(value, batch)
            else:
                self._judge.told(value)
        finally:
            self._page, self._before, self._seen_gradient = Page(), None, False
            self._caught.forget()
            self._forwards.forget()
        if self.stopped is not None and self.raises:
            raise TrainingStoppedError(self.stopped.sentence)

    # inside

    def _due(self, step: int) -> bool:
        return step % self.settings.every == 0 or step == (self.settings.resume_from or 0) + 1

    def _loss(self, told: Tensor | float | int | None) -> float | None:
        """Of a tensor on an accelerator only where it is looked at: reading it waits for the device."""
        if told is None:
            return self._caught.loss()
        if isinstance(told, Tensor) and told.device.type != "cpu" and not self._due(self._step):
            return None
        return float(told.detach() if isinstance(told, Tensor) else told)

    def _precision(self) -> Precision:
        return self._caught.precision or Precision.now(next(self._model.parameters()).device.type)

    def _forward_begins(self, inputs: Inputs) -> None:
        """Before a training forward. The first one shows the watch where attention is."""
        if self._eye is None:
            self._open(inputs)
        self._look_as_it_came(self._probe or inputs)
        if self._due(self._step + 1):
            self._copy_weights()

    def _forward_ended(self, output: Any) -> None:
        """After a training forward: where it went wrong can be found out now, and not when the optimiser is done."""
        if self._eye is not None and self._caught.inputs is not None:
            due = self._due(self._step + 1)
            self._forwards.ended(output, self._eye.anatomy, self._caught.inputs, self._precision(), looked_at=due)

    def _copy_weights(self) -> None:
        if self._before is None and self._eye is not None and self._eye.reads("weight_before"):
            self._before = self._eye.copied_weights()

    def _open(self, inputs: Inputs) -> None:
        probed = self._probe is not None
        labels, rows = (self._probe_labels, None) if probed else (self._caught.labels, self.settings.rows)
        self._eye, kept = eye_for(self._model, self._measures, inputs, labels, rows=rows, probed=probed)
        if kept:
            inputs |= labels
            self._caught.keeps = tuple(labels)
        if self.settings.qk_clip is not None:
            self._clip = Clip(self._model, self._eye.anatomy, self.settings.qk_clip)
        if not writes():
            return
        limits = self._judge.limits
        header = header_of(self._model, self._eye, self._measures, self.settings, limits, probed=probed)
        if self.settings.resume_from is None:
            self._log = RunLog.create(self._folder, header)
        else:
            self._log = RunLog.resume(self._folder, header, self.settings.resume_from)
            for look in self._log.kept:
                self._judge(look)
                self._seconds, self._tokens = look.seconds, look.tokens
        self._writers.open(self._log.header)

    def _look_as_it_came(self, inputs: Inputs) -> None:
        """Before the first update, which can do harm too: all later looks are compared with this one."""
        if self._as_it_came is None and not self._steps and self._eye is not None:
            page, begun = Page(), time.monotonic()
            self._eye.look(page, inputs, self._precision())
            self._as_it_came = (page, begun - self._begun, time.monotonic() - begun)

    def _enter_as_it_came(self) -> None:
        """With the first look, where processes meet; a run that is resumed has its own beginning."""
        if self._as_it_came is None or self._steps > 1:
            return
        page, seconds, cost = self._as_it_came
        values = of_all(page, same=self._probe is not None).values()
        if not self._judge.history.looks:
            bare = Look(self._step - 1, None, self._seconds + seconds, self._tokens, cost, values)
            self._told(bare, self._judge(bare))

    def _told(self, look: Look, alarms: tuple[Alarm, ...]) -> None:
        self._write(replace(look, alarms=alarms))
        self.looks += 1
        for alarm in alarms:
            self._tell(alarm)

    def _look(self, loss: float | None, batch: Mapping[str, Any] | None) -> None:
        assert self._eye is not None
        self._enter_as_it_came()
        begun = time.monotonic()
        inputs = self._probe or (dict(batch) if batch is not None else self._caught.inputs)
        precision = self._precision()
        try:
            had = self._eye.training(self._page, self._before, gradients=not self._seen_gradient)
            self._mind_gradients(had or self._seen_gradient)
            if inputs is not None:
                self._eye.look(self._page, inputs, precision)
        except (RefusalError, RuntimeError, MemoryError) as error:
            if self._steps <= 1:
                raise
            LOG.warning("The look at step %d is left out: %s", self._step, str(error).splitlines()[0])
        self._page.tokens = self._caught.tokens
        page = of_all(self._page, same=self._probe is not None)
        loss = mean_of_all(loss)
        values = page.values()
        bare = Look(self._step, loss, self._seconds + begun - self._begun, self._tokens + page.tokens, 0.0, values)
        broken = self._broken(bare, inputs, precision)
        alarms = self._judge(bare, None if broken is None else str(broken))
        cost = time.monotonic() - begun
        self._told(replace(bare, loss=_finite(loss), cost=cost), alarms)

    def _mind_gradients(self, had: bool) -> None:
        if had or self._told_gradients or not self._eye or not self._eye.reads("gradient"):
            return
        self._told_gradients = True
        no_gradients(self.settings.needs_gradients())

    def _broken(self, look: Look, inputs: Inputs | None, precision: Precision) -> Broken | None:
        """Only where something is not finite, and once until all is finite again."""
        loss_lost = look.loss is not None and not math.isfinite(look.loss)
        lost = loss_lost or self._forwards.broken is not None or bool(self._judge.history.lost(look))
        told, self._said_broken = self._said_broken, lost
        if not lost or self._eye is None or told:
            return None
        return self._forwards.broken or broken_place(
            self._model,
            self._eye.anatomy,
            self._eye.slice(inputs) if inputs else None,
            precision,
            gave_numbers=self._forwards.gave_numbers,
            loss_lost=loss_lost,
        )

    def _write(self, look: Look) -> None:
        if writes():
            self._writers.write(look)
        if self._log is None:
            return
        try:
            self._log.append(look)
        except RunLogStopped as error:
            self._log = None
            LOG.error("%s The training goes on, and alarms are still told here.", error)

    def _tell(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        if writes():
            tell(alarm, self.settings.on_alarm)
        stop = self.settings.stop_on
        if stop is not None and not alarm.ended and alarm.at_least(stop) and self.stopped is None:
            self.stopped = alarm

    def _clipped(self, clipped: tuple[Clipped, ...]) -> None:
        self.clipped += clipped
        if writes():
            tell_clipped(self._step, clipped)


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None
