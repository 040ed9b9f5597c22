"""`python -m bench.kills --kills 50`: kill a scan with two workers at random moments; it must always end in the same
survey.

Each round starts a scan of a small model in a new store, waits for a random number of shards and a random moment more,
kills (SIGKILL) a worker, the driver or a node of a Ray cluster, and starts it again if needed. It counts surveys that
differ from that of one process, finished shards that were done again (there must be none), and workers that lost the
shard they were working on. Rounds are saved to bench/kills.json as they end, and a second call continues there.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.scale_tables import write

RESULTS = Path(__file__).with_name("kills.json")
VICTIMS = ("worker", "driver", "node")
SCAN = """
import sys
from attnscope.commands.scan.run import scan
model, corpus, store, out, hands = sys.argv[1:]
ray = {"engine": "ray", "address": hands}
by = {"0": {}, "2": {"workers": 2}}.get(hands, ray)
options = dict(samples=1024, max_tokens=64, batch_size=32, measures="entropy,spike")
scan(model, corpus, store=store, keep_text=False, **by, **options).save(out)
"""


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    quiet = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **quiet, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def _start(*words: str | Path, errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", SCAN, *map(str, words)], stdout=said, stderr=said, env=_environment()
        )


def _workers(driver: int) -> list[int]:
    children = Path(f"/proc/{driver}/task/{driver}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


def _files(store: Path) -> dict[str, tuple[int, int]]:
    """Return the identity of each shard file, which changes if the shard is written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in store.glob("*.shard")}


class Cluster:
    """Two Ray nodes on this machine, started at first use. The second one can be killed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: Any = None

    def with_node(self) -> tuple[Any, Any]:
        if self._made is None:
            os.environ.update(_environment())
            from ray.cluster_utils import Cluster as Made

            head = {"num_cpus": 1, "include_dashboard": False}
            self._made = _patiently(lambda: Made(initialize_head=True, head_node_args=head))
            self._stack.callback(self._made.shutdown)
        return self._made, _patiently(lambda: self._made.add_node(num_cpus=1))


def _patiently(start: Callable[[], Any], times: int = 4) -> Any:
    """Retry starting a node: Ray allows 30 s, which is too short on a machine under load."""
    for left in reversed(range(times)):
        try:
            return start()
        except Exception:
            if not left:
                raise
    raise AssertionError


def one_round(
    given: tuple[Path, Path], folder: Path, whole: Any, victim: str, draw: random.Random, cluster: Cluster
) -> dict[str, Any]:
    """Kill a scan once, and restart it until there is a survey."""
    from attnscope.commands.scan.survey.survey import Survey

    store, out, errors = folder / "store", folder / "survey.json", folder / "errors.txt"
    made, node = cluster.with_node() if victim == "node" else (None, None)
    hands = "2" if made is None else str(made.address)
    driver = _start(*given, store, out, hands, errors=errors)
    wanted, moment = draw.randint(1, 5), draw.random() / 2
    while driver.poll() is None and len(_files(store)) < wanted:
        time.sleep(0.01)
    time.sleep(moment)
    too_late, before = driver.poll() is not None, _files(store)
    if made is not None:
        made.remove_node(node, allow_graceful=False)
    elif not too_late:
        living = _workers(driver.pid)
        os.kill(draw.choice(living) if victim == "worker" and living else driver.pid, signal.SIGKILL)
    starts = 1
    while driver.wait() != 0 and starts < 3:
        before = _files(store) | before
        driver = _start(*given, store, out, hands, errors=errors)
        starts += 1
    after = _files(store)
    return {
        "killed": victim,
        "too_late": too_late,
        "shards_at_the_kill": len(before),
        "shards": len(after),
        "workers_killed": 0 if too_late else {"worker": 1, "driver": 2, "node": 1}[victim],
        "starts": starts,
        "finished_shards_redone": sum(after.get(name) != file for name, file in before.items()),
        "same": out.exists() and Survey.load(out).cells == whole.cells,
        "said": "" if out.exists() else errors.read_text()[-400:],
    }


def kills(number: int, minutes: float, victims: Sequence[str] = VICTIMS) -> None:
    from attnscope.commands.scan.survey.survey import Survey
    from tests.specimens import TEXT, save_specimen

    rounds: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rounds"] if RESULTS.exists() else []
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, cluster = Path(name), Cluster(stack)
        corpus = folder / "corpus.txt"
        corpus.write_text("".join(f"{n} {TEXT}" for n in range(80_000 // len(TEXT))))
        given = (save_specimen(folder / "model"), corpus)
        _start(*given, folder / "alone", folder / "whole.json", "0", errors=folder / "errors.txt").wait()
        whole = Survey.load(folder / "whole.json")
        while len(rounds) < number and time.monotonic() < until:
            draw = random.Random(len(rounds))
            victim = victims[len(rounds) % len(victims)]
            (folder / str(len(rounds))).mkdir()
            rounds.append(one_round(given, folder / str(len(rounds)), whole, victim, draw, cluster))
            RESULTS.write_text(json.dumps(summary(rounds), indent=1) + "\n")


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    killed = [one for one in rounds if not one["too_late"]]
    return {
        "kills": len(killed),
        "identical": sum(one["same"] for one in killed),
        "finished_shards_redone": sum(one["finished_shards_redone"] for one in killed),
        "by_victim": {who: sum(one["killed"] == who for one in killed) for who in VICTIMS},
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="rounds in total, including those on record")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no round after this time")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="nodes need Ray")
    asked = parser.parse_args()
    kills(asked.kills, asked.minutes, asked.victims)
    write()
    found = json.loads(RESULTS.read_text())
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}))


if __name__ == "__main__":
    main()
