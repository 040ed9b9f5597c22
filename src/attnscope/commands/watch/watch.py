"""Watch: the context manager that looks at a model in training.

The training does not change: weights, optimiser, random state and losses are bit-equal with and without the watch.
Looks happen before the first update (step 0), after the first step, after every `every` steps, and when a loss stops
being finite (with several processes: at the next look). A model that cannot be watched is refused at the first forward
pass. Afterwards a look that fails is logged and skipped, and the training goes on.
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

from attnscope.commands.watch.alarm_judge import LOG, AlarmJudge, log_alarm
from attnscope.commands.watch.clipping import ClippedHead, QKClip
from attnscope.commands.watch.forward_capture import AutocastState, ForwardCapture, Inputs, checked_probe
from attnscope.commands.watch.look import Alarm, Look
from attnscope.commands.watch.look_runner import LookRunner, compiled_in_place, unwrapped
from attnscope.commands.watch.look_totals import (
    LookTotals,
    distributed,
    from_first,
    gather_mean,
    gather_totals,
    is_writer,
)
from attnscope.commands.watch.nonfinite_origin import ForwardCheck, NonfiniteOrigin
from attnscope.commands.watch.run_folder import RunLog, RunLogStopped
from attnscope.commands.watch.settings import WatchSettings
from attnscope.commands.watch.training_capture import TrainingCapture
from attnscope.commands.watch.writers import Writers
from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.restoring import Restoring


class TrainingStoppedError(Exception):
    """Raised by `step` when an alarm reaches `stop_on`; the `with` block of the watch suppresses it."""


class Watch:
    """A watch over a model in training, made by `attnscope.watch`.

    `alarms` holds every alarm that began, was renewed or ended; `stopped` the one that ended the training; `clipped`
    the heads that QK-Clip scaled; `looks` counts the looks.
    """

    def __init__(
        self, model: nn.Module, folder: str | Path, settings: WatchSettings, probe: Mapping[str, Any] | None = None
    ) -> None:
        settings.chosen_measures()  # refuses unknown measures
        self.settings = settings
        self.raises = True  # frameworks stop the training themselves
        self.alarms: list[Alarm] = []
        self.clipped: list[ClippedHead] = []
        self.looks = 0
        self.stopped: Alarm | None = None
        self._called, self._model, self._folder = model, unwrapped(model), folder
        self._probe, self._probe_labels = checked_probe(self._model, probe)
        self._changes = Restoring()
        self._capture = ForwardCapture()
        self._training = TrainingCapture()
        self._check = ForwardCheck(self._model)
        self._judge = AlarmJudge(settings.thresholds)
        self._writers = Writers.of(settings.writers, folder)
        # Set at the first batch.
        self._runner: LookRunner | None = None
        self._log: RunLog | None = None
        self._clip: QKClip | None = None
        self._initial: tuple[LookTotals, float, float] | None = None  # totals, time and cost of the look at step 0
        # Counters. `_steps` counts the steps of this process, `_step` those of the run.
        self._steps, self._step = 0, settings.resume_from or 0
        self._started, self._earlier_seconds, self._earlier_tokens = time.monotonic(), 0.0, 0
        self._nonfinite_reported, self._gradients_missed = False, False
        # State of the current step.
        self._totals = LookTotals()
        self._weights_before: dict[str, Tensor] | None = None
        self._has_gradient = False

    def __enter__(self) -> Watch:
        compiled = compiled_in_place(self._called)  # its hooks would be compiled too
        self._training.install(self._changes, self._model, lambda: self._due(self._step + 1))
        if not compiled:
            self._capture.install(self._changes, self._called, self._model, self._before_forward, self._after_forward)
        try:
            if compiled and self._probe is None:
                raise RefusalError(
                    "The model was compiled in place (model.compile()), so its batches cannot be seen: give probe=, a "
                    "batch to look at, or wrap it instead (model = torch.compile(model))."
                )
            if self._probe is not None:
                self._open(self._probe)
                if compiled:  # otherwise the first forward takes this look, when the precision is known
                    self._take_initial_look(self._probe)
        except BaseException:
            self._changes.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.close()
        if kind is None and not self._steps and self._capture.forwards:
            raise RefusalError(
                f"The model ran {self._capture.forwards} training forwards but watch.step() was never called, so "
                "nothing was watched: call watch.step(loss=loss) after every optimizer.step()."
            )
        return isinstance(error, TrainingStoppedError)

    def close(self) -> None:
        """Remove the hooks and end the record. Calling it twice is safe."""
        self._changes.close()
        if self._log is not None:
            self._log.close()
        self._writers.close()

    def before_update(self) -> None:
        """Measure gradients now, for frameworks that clear them before `step` can be called."""
        if self._runner is not None and self._due(self._step + 1):
            self._has_gradient = self._runner.measure_training(self._totals, None)
            self._copy_weights()  # a compiled model has no forward hook that would do it

    def step(self, loss: Tensor | float | int | None = None, batch: Mapping[str, Any] | None = None) -> None:
        """Report one optimiser step. If given, `batch` replaces the inputs of the last forward in a look."""
        self._steps += 1
        self._step += 1
        if self._runner is None and batch is None and self._capture.inputs is None:
            raise RefusalError(
                "The watch has seen no training forward of its model (it runs inside compiled code, or another module "
                "is trained): give probe=, a batch to look at, or watch the module that is called."
            )
        if self._runner is None:
            self._open(dict(batch) if batch is not None else self._capture.inputs or {})
        if self._clip is not None:
            self._clip_heads(self._clip, batch)
        value = self._loss_value(loss)
        self._training.add_loss(value)
        lost = (value is not None and not math.isfinite(value)) or self._check.origin is not None
        # With several processes an extra look would deadlock, because the other processes do not join it.
        lost = lost and not self._nonfinite_reported and not distributed()
        try:
            if self._due(self._step) or lost:
                self._take_look(value, batch)
            else:
                self._judge.history.add_loss(value)
        finally:
            self._totals, self._weights_before, self._has_gradient = LookTotals(), None, False
            self._capture.forget()
            self._training.optimizer.forget()
            self._check.forget()
        if self.stopped is not None and self.raises:
            raise TrainingStoppedError(self.stopped.sentence)

    def _due(self, step: int) -> bool:
        return step % self.settings.every == 0 or step == (self.settings.resume_from or 0) + 1

    def _loss_value(self, loss: Tensor | float | int | None) -> float | None:
        """Return the loss. On an accelerator, return it only for a look, because reading it waits for the device."""
        if loss is None:
            return self._capture.loss()
        if isinstance(loss, Tensor) and loss.device.type != "cpu" and not self._due(self._step):
            return None
        return float(loss.detach() if isinstance(loss, Tensor) else loss)

    def _autocast(self) -> AutocastState:
        return self._capture.autocast or AutocastState.current(self._model)

    def _before_forward(self, inputs: Inputs) -> None:
        if self._runner is None:
            self._open(inputs)
        self._take_initial_look(self._probe or inputs)
        self._training.batches.add(inputs, self._capture.labels)
        if self._due(self._step + 1):
            self._copy_weights()

    def _after_forward(self, output: Any) -> None:
        if self._runner is not None and self._capture.inputs is not None:
            due = self._due(self._step + 1)
            self._check.check(output, self._runner.anatomy, self._capture.inputs, self._autocast(), due=due)

    def _copy_weights(self) -> None:
        if self._weights_before is None and self._runner is not None and self._runner.reads("weight_before"):
            self._weights_before = self._runner.copied_weights()

    def _open(self, inputs: Inputs) -> None:
        """Find attention on the first batch, and create or resume the record."""
        probed = self._probe is not None
        labels = self._probe_labels if probed else self._capture.labels
        self._runner = LookRunner.start(self._model, self.settings, inputs, labels, probed=probed)
        if self._runner.needs_labels:
            inputs |= labels
            self._capture.required = tuple(labels)
        if self.settings.qk_clip is not None:
            self._clip = QKClip(self._model, self._runner.anatomy, self.settings.qk_clip)
        if not is_writer():
            return
        header = self._runner.header(self._judge.limits)
        if self.settings.resume_from is None:
            self._log = RunLog.create(self._folder, header)
        else:
            self._log = RunLog.resume(self._folder, header, self.settings.resume_from)
            for look in self._log.kept:
                self._judge(look)
                self._earlier_seconds, self._earlier_tokens = look.seconds, look.tokens
        self._writers.open(self._log.header)

    def _take_initial_look(self, inputs: Inputs) -> None:
        """Look before the first update. All later looks are compared with this one."""
        if self._initial is None and not self._steps and self._runner is not None:
            totals, start = LookTotals(), time.monotonic()
            self._runner.look(totals, inputs, self._autocast())
            self._initial = (totals, start - self._started, time.monotonic() - start)

    def _enter_initial_look(self) -> None:
        """Record the initial look together with the first look, when processes exchange totals. A resumed run already
        has one."""
        if self._initial is None or self._steps > 1:
            return
        totals, seconds, cost = self._initial
        values = gather_totals(totals, same_batch=self._probe is not None).values()
        if not self._judge.history.looks:
            seconds += self._earlier_seconds
            look = Look(self._step - 1, None, seconds, self._earlier_tokens, cost, values)
            self._record(look, self._judge(look))

    def _take_look(self, loss: float | None, batch: Mapping[str, Any] | None) -> None:
        assert self._runner is not None
        self._enter_initial_look()
        start = time.monotonic()
        inputs = self._probe or (dict(batch) if batch is not None else self._capture.inputs)
        try:
            gradients = not self._has_gradient
            self._has_gradient |= self._runner.measure_training(self._totals, self._weights_before, gradients=gradients)
            if not self._has_gradient and not self._gradients_missed and self._runner.reads("gradient"):
                self._gradients_missed = True
                self._report_missing_gradients()
            if inputs is not None:
                self._runner.look(self._totals, inputs, self._autocast())
        except (RefusalError, RuntimeError, MemoryError) as error:
            if self._steps <= 1:
                raise
            LOG.warning("The look at step %d is skipped: %s", self._step, str(error).splitlines()[0])
        self._totals.tokens = self._capture.tokens
        totals = gather_totals(self._totals, same_batch=self._probe is not None)
        loss = gather_mean(loss)
        seconds = self._earlier_seconds + start - self._started
        tokens, training = self._earlier_tokens + totals.tokens, from_first(self._training.state())
        look = Look(self._step, loss, seconds, tokens, 0.0, totals.values(), training=training)
        origin = self._find_origin(look, inputs)
        alarms = self._judge(look, None if origin is None else str(origin))
        finite_loss = loss if loss is not None and math.isfinite(loss) else None
        self._record(replace(look, loss=finite_loss, cost=time.monotonic() - start), alarms)

    def _report_missing_gradients(self) -> None:
        """Log that there are no gradients; refuse if the caller named a measure of gradients."""
        names = ", ".join(self.settings.gradient_measures())
        if names:
            raise RefusalError(
                f"{names} reads gradients, and there are none when watch.step() is called: call it after "
                "loss.backward() and before optimizer.zero_grad(), or leave the measure out."
            )
        LOG.warning("There are no gradients at watch.step(): call it before optimizer.zero_grad() to watch them.")

    def _find_origin(self, look: Look, inputs: Inputs | None) -> NonfiniteOrigin | None:
        """Search for the origin once, each time that something stops being finite."""
        loss_lost = look.loss is not None and not math.isfinite(look.loss)
        lost = loss_lost or self._check.origin is not None or bool(self._judge.history.lost(look))
        reported, self._nonfinite_reported = self._nonfinite_reported, lost
        if not lost or self._runner is None or reported:
            return None
        rows = self._runner.slice(inputs) if inputs else None
        return self._check.find_after_step(self._runner.anatomy, rows, self._autocast(), loss_lost=loss_lost)

    def _record(self, look: Look, alarms: tuple[Alarm, ...]) -> None:
        look = replace(look, alarms=alarms)
        if is_writer():
            self._writers.write(look)
        if self._log is not None:
            try:
                self._log.append(look)
            except RunLogStopped as error:
                self._log = None
                LOG.error("%s The training goes on, and alarms still appear here.", error)
        self.looks += 1
        for alarm in alarms:
            self.alarms.append(alarm)
            if is_writer():
                log_alarm(alarm, self.settings.on_alarm)
            stop = self.settings.stop_on
            if stop is not None and not alarm.ended and alarm.at_least(stop) and self.stopped is None:
                self.stopped = alarm

    def _clip_heads(self, clip: QKClip, batch: Mapping[str, Any] | None) -> None:
        if not clip.installed:
            clip.repeat_first_step(self._probe or batch or self._capture.inputs or {}, self._autocast())
            clip.install(self._changes)
        clipped = clip.after_step()
        self.clipped += clipped
        for head in clipped if is_writer() else ():
            LOG.info(
                "Step %d: head %d of block %d reached a logit of %.3g and was scaled by %.3g.",
                *(self._step, head.head, head.layer, head.largest, head.factor),
            )
