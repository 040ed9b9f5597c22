"""One measurement in one fresh process: `python -m bench.work time minilm bare,scan` or `... memory minilm scan`.

Time is CPU time on one thread (`wall`: wall time, for several threads); the variants take turns, and the smallest of
several turns counts, since disturbances only add time. Memory is the peak of the process during a run minus the memory
in use before it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.subjects import SUBJECTS, Subject


def best_seconds(
    subject: Subject, ways: list[str], turns: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    for way in ways:
        getattr(subject, way)()  # the first run includes allocations and fills caches
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(turns):
        for way in ways:
            start = clock()
            getattr(subject, way)()
            best[way] = min(best[way], clock() - start)
    return best


def peak_megabytes(subject: Subject, way: str) -> dict[str, float]:
    return peak_megabytes_of(getattr(subject, way))


def peak_megabytes_of(call: Callable[[], object]) -> dict[str, float]:
    """Return the peak resident memory of a call, from Linux's high-water mark, which can be reset."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    call()
    return {"peak_mb": _status("VmHWM"), "added_mb": _status("VmHWM") - before}


def _status(name: str) -> float:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["time", "wall", "memory"])
    parser.add_argument("subject", choices=sorted(SUBJECTS))
    parser.add_argument("ways")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(options.threads)
    subject = SUBJECTS[options.subject]()
    ways = options.ways.split(",")
    if options.what in ("time", "wall"):
        clock = time.process_time if options.what == "time" else time.perf_counter
        seconds = best_seconds(subject, ways, options.turns, clock)
        print(json.dumps({"tokens": subject.batches.tokens, "seconds": seconds}))
    else:
        print(json.dumps(peak_megabytes(subject, ways[0])))


if __name__ == "__main__":
    main()
