"""What a watch says while it looks, in the log of Python and to whoever asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from attnscope.commands.watch.clipping import Clipped
from attnscope.commands.watch.look import Alarm
from attnscope.core.errors import RefusalError

LOG = logging.getLogger("attnscope.watch")
_LEVELS = {"note": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


@contextmanager
def unheard() -> Iterator[None]:
    """Alarms go into the record alone: for runs that are made to fail."""
    before, LOG.disabled = LOG.disabled, True
    try:
        yield
    finally:
        LOG.disabled = before


def tell(alarm: Alarm, on_alarm: Callable[[Alarm], None] | None) -> None:
    LOG.log(logging.INFO if alarm.ended else _LEVELS[alarm.severity], "%s %s", alarm.sentence, alarm.advice)
    if on_alarm is not None:
        try:
            on_alarm(alarm)
        except Exception:
            LOG.exception("on_alarm failed; the training goes on.")


def tell_clipped(step: int, clipped: Iterable[Clipped]) -> None:
    for one in clipped:
        LOG.info(
            "Step %d: head %d of layer %d reached a logit of %.3g and was scaled by %.3g.",
            *(step, one.head, one.layer, one.largest, one.factor),
        )


def no_gradients(asked_for: Iterable[str]) -> None:
    """None are there at a step: refused where measures that read them were asked for by name."""
    what = ", ".join(asked_for)
    if what:
        raise RefusalError(
            f"{what} reads gradients, and none are there when watch.step() is called: call it after "
            "loss.backward() and before optimizer.zero_grad(), or leave the measure out."
        )
    LOG.warning("There are no gradients at watch.step(): call it before optimizer.zero_grad() to have them watched.")
