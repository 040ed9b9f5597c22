"""`python -m bench.kills --kills 50`: a scan by two workers, killed at random moments, must always end in one survey.

Each round starts a scan of a small model in a new store, kills a worker or the driver (SIGKILL) after a random time,
and starts it again until it is done. Counted are surveys that differ from that of one process, and shards that were
written more than once. Writes bench/kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("kills.json")
SCAN = """
import sys, torch
torch.set_num_threads(1)
from attnscope.scanning.scan import scan
if __name__ == "__main__":
    model, corpus, store, out, workers = sys.argv[1:]
    options = dict(samples=48, max_tokens=1024, batch_size=2, measures="entropy,spike")
    found = scan(model, corpus, store=store, workers=int(workers) or None, keep_text=False, **options)
    found.save(out)
"""


def _start(*words: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SCAN, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )


def _workers(driver: int) -> list[int]:
    children = Path(f"/proc/{driver}/task/{driver}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


def _inodes(store: Path) -> dict[str, int]:
    """A shard that is written again is another file."""
    return {path.name: path.stat().st_ino for path in store.glob("*.shard")}


def one_round(given: tuple[Path, Path], folder: Path, whole: Any, draw: random.Random) -> dict[str, Any]:
    """Killed once, as soon as a shard is there and a random time after, then started again."""
    from attnscope.records.survey.survey import Survey

    store, out = folder / "store", folder / "survey.json"
    driver = _start(*given, store, out, "2")
    while driver.poll() is None and not list(store.glob("*.shard")):
        time.sleep(0.01)
    time.sleep(draw.random() * 2)
    victim = draw.choice(["worker", "driver"])
    before = _inodes(store)
    if driver.poll() is None:
        hands = _workers(driver.pid)
        os.kill(draw.choice(hands) if victim == "worker" and hands else driver.pid, signal.SIGKILL)
    else:
        victim = "too late"
    if driver.wait() != 0:
        before |= _inodes(store)
        driver = _start(*given, store, out, "2")
        driver.wait()
    after = _inodes(store)
    redone = sum(after.get(name) != inode for name, inode in before.items())
    same = out.exists() and Survey.load(out).cells == whole.cells
    return {"killed": victim, "shards_at_the_kill": len(before), "finished_shards_redone": redone, "same": same}


def kills(number: int, seed: int = 0) -> dict[str, Any]:
    from attnscope.records.survey.survey import Survey
    from tests.specimens import TEXT, save_specimen

    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus.txt"
        corpus.write_text("".join(f"{n} {TEXT}" for n in range(60_000 // len(TEXT))))
        given = (save_specimen(folder / "model"), corpus)
        _start(*given, folder / "alone", folder / "whole.json", "0").wait()
        whole = Survey.load(folder / "whole.json")
        rounds = []
        for turn in range(number):
            (folder / str(turn)).mkdir()
            rounds.append(one_round(given, folder / str(turn), whole, draw))
    return {
        "kills": number,
        "identical": sum(one["same"] for one in rounds),
        "finished_shards_redone": sum(one["finished_shards_redone"] for one in rounds),
        "by_victim": {who: sum(one["killed"] == who for one in rounds) for who in ("worker", "driver", "too late")},
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    found = kills(parser.parse_args().kills)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))


if __name__ == "__main__":
    main()
