"""Ctrl-C and SIGTERM, sent to this process: raised once, delayed, or left for the next step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from attnscope.core import progress as interrupts
from attnscope.core.progress import Stepwise, Terminated, exit_code, ignore_signals, stoppable, uninterrupted
from tests.interrupting import hearing_signals

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])


@pytest.fixture(autouse=True)
def _hearing() -> Iterator[None]:
    with hearing_signals():
        yield


@pytest.fixture
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every signal arrive long after the previous one."""
    monkeypatch.setattr(interrupts, "SAME_STOP_SECONDS", 0.0)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def stopped_while_stopping(first: int, second: int, kept: list[str]) -> None:
    """Send the first signal during the work, and the second before finished work is saved."""
    try:
        send(first)
    finally:
        send(second)
        kept.append("what is done")


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in interrupts.SIGNALS]


@BOTH
def test_stopped_command_has_the_exit_code_of_its_signal(number: int) -> None:
    before = handlers()
    with pytest.raises(KeyboardInterrupt) as stop, stoppable():
        send(number)
    assert isinstance(stop.value, Terminated) == (number == signal.SIGTERM)
    assert exit_code() == 128 + number
    assert handlers() == before


@BOTH
def test_repeated_signal_is_ignored(number: int) -> None:
    kept: list[str] = []
    with pytest.raises(KeyboardInterrupt), stoppable():
        stopped_while_stopping(signal.SIGINT, number, kept)
    assert kept
    assert exit_code() == 130  # the first signal stopped it


@pytest.mark.usefixtures("_later")
def test_a_later_signal_interrupts_again() -> None:
    kept: list[str] = []
    with pytest.raises(Terminated), stoppable():
        stopped_while_stopping(signal.SIGINT, signal.SIGTERM, kept)
    assert not kept
    assert exit_code() == 130


@BOTH
@pytest.mark.usefixtures("_later")
def test_uninterrupted_block_finishes_before_the_signal(number: int) -> None:
    done = []

    def saving() -> None:
        try:
            send(number)
        finally:
            with uninterrupted():
                send(number)
                with uninterrupted():
                    send(number)
                    done.append("inner")
                done.append("outer")

    with pytest.raises(KeyboardInterrupt), stoppable():
        saving()
    assert done == ["inner", "outer"]


def test_delayed_signal_is_delivered_after_the_block_even_if_it_raised() -> None:
    @uninterrupted()
    def failing() -> None:
        send(signal.SIGINT)
        raise ZeroDivisionError

    with pytest.raises(KeyboardInterrupt) as stop:
        failing()
    assert isinstance(stop.value.__context__, ZeroDivisionError)


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable(), uninterrupted():
        send(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with pytest.raises(Terminated), stoppable():
        send(signal.SIGTERM)


@BOTH
def test_first_signal_waits_for_the_end_of_the_step(number: int) -> None:
    told = []
    stop = Stepwise(lambda: told.append("stopping"))
    before = handlers()
    with stoppable(), stop.waiting():
        stop.check()
        send(number)
        send(signal.SIGINT)  # 50 ms later or less: the user does not want to lose the step
        assert told == ["stopping"]
        with pytest.raises(KeyboardInterrupt) as raised:
            stop.check()
        assert isinstance(raised.value, Terminated) == (number == signal.SIGTERM)
    assert exit_code() == 128 + number
    assert handlers() == before


@pytest.mark.usefixtures("_later")
def test_later_signal_interrupts_the_step() -> None:
    stop = Stepwise(lambda: None)
    with stop.waiting():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_signal_contexts_do_nothing_outside_the_main_thread() -> None:
    done = []

    def work() -> None:
        with stoppable(), uninterrupted(), Stepwise(lambda: None).waiting():
            done.append(handlers())

    before = handlers()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]


@BOTH
def test_no_signal_can_raise_between_the_end_of_a_stopped_command_and_the_end_of_its_process(number: int) -> None:
    """The previous handlers are never restored, so a late signal has no effect."""

    @stoppable()
    def command() -> None:
        try:
            send(signal.SIGINT)
        finally:
            ignore_signals()

    with pytest.raises(KeyboardInterrupt):
        command()
    assert handlers() == [signal.SIG_IGN, signal.SIG_IGN]
    send(number)
