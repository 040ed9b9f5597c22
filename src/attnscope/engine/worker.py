"""`python -m attnscope.engine.worker`: a worker process. It opens a job and does tasks until the driver exits.

Messages go through standard input and output; other output is redirected to standard error. A thread listens: when the
driver dies, the worker exits at once, since nobody waits for its result and the next driver needs its cores.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from typing import Any, BinaryIO

from attnscope.core.errors import RefusalError
from attnscope.engine.crew import receive, send


def main() -> None:
    inbox, outbox = _take_streams()
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(inbox, waiting), daemon=True).start()
    try:
        job = pickle.loads(waiting.get())
        with job.open() as opened:
            send(outbox, ("hello", (opened.agreed, opened.hello)))
            while True:
                send(outbox, ("done", opened.do(waiting.get())))
    except RefusalError as refusal:
        send(outbox, ("refused", refusal.sentence))
    except BrokenPipeError:
        pass
    except Exception as error:
        import traceback

        traceback.print_exc()
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
        send(outbox, ("failed", f"{type(error).__name__}: {reason}"))


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return private copies of standard input and output, and redirect the originals."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
    return inbox, outbox


def _listen(inbox: BinaryIO, waiting: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            waiting.put(receive(inbox))
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main()
