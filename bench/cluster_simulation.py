"""Estimate what large surveys need, by a formula and by a simulation: `python -m bench.cluster_simulation`.

Two halves. A cost model of measured numbers: arithmetic of one core (bench/results.json: SmolLM2-135M under a scan),
the bytes of a shard's file and the seconds that reading and adding one take (measured here, on made-up shards of
four blocks with as many heads as the model has; both grow with the blocks). And a simulation, event by event, of
workers that start, read weights over a shared store, take shards, die, lose the shard they had, and start again, of a
driver that dies, and of mergers that fold finished shards. Everything that is not measured is in `Assumptions`.

Writes bench/cluster_simulation.json, and the tables of docs/capacity_planning.md from it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("cluster_simulation.json")
MEASURED = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[1] / "docs" / "capacity_planning.md"
SMOLLM2 = 106_200_000  # parameters that a token passes in SmolLM2-135M: without its table of tokens


@dataclass(frozen=True)
class Assumptions:
    """Values that were not measured: change them to those of your cluster."""

    cores_a_machine: int = 64  # each as fast as the measured one, working on its own sequences
    accelerator_flops: float = 2e14  # sustained, in bfloat16; the ratio of scan to forward taken from the CPU
    store_bytes_a_second: float = 20e9  # of the shared store, for all workers together
    reader_bytes_a_second: float = 1e9  # of one worker
    start_seconds: float = 60.0  # process, imports, probe and verification, without reading weights
    worker_days_to_failure: float = 30.0  # mean, exponential, of one worker
    driver_days_to_failure: float = 14.0  # mean, exponential, of the driver, whose failure stops all workers
    notice_seconds: float = 120.0  # until a dead worker is replaced
    spread: float = 0.1  # standard deviation of the logarithm of a shard's duration
    stragglers: float = 0.02  # share of shards that take three times as long
    mergers: int = 8


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    layers: int
    heads: int
    bytes_a_parameter: int = 2


MODELS = (Model("1B", 1.24e9, 16, 32), Model("70B", 7.06e10, 80, 64))
TOKENS = (10**9, 10**12)
WORKERS = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Job:
    """The simulated work: shards of equal size, and the costs around them. All in seconds."""

    shards: int
    shard_seconds: float
    workers: int
    start_seconds: float
    load_seconds: float  # if one worker reads alone
    loads_at_once: int  # readers that the store serves at full speed
    merge_seconds: float


@dataclass
class Outcome:
    hours: float = 0.0
    busy: float = 0.0  # share of worker time spent on shards that counted
    redone: int = 0
    worker_deaths: int = 0
    driver_deaths: int = 0
    largest_loss: int = 0  # most shards that one death cost
    starts: int = 0
    merge_tail_hours: float = 0.0  # after the last shard was done
    done: list[int] = field(default_factory=list, repr=False)  # how often each shard was counted


class Cluster:
    """One run. Events are (time, number, what, worker, life); `life` counts the restarts of a worker."""

    def __init__(self, job: Job, given: Assumptions, seed: int) -> None:
        self.job, self.given, self.chance = job, given, random.Random(seed)
        self.queue = list(range(job.shards - 1, -1, -1))
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number = 0
        self.life = [0] * job.workers
        self.has: list[int | None] = [None] * job.workers
        self.waiting: list[tuple[int, int]] = []  # for the store
        self.reading: set[int] = set()
        self.idle: set[int] = set()
        self.merge_free = [0.0] * given.mergers
        self.left = job.shards
        self.useful = 0.0
        self.outcome = Outcome(done=[0] * job.shards)

    def run(self) -> Outcome:
        for worker in range(self.job.workers):
            self._start(worker, 0.0)
        self._at(self._until(self.given.driver_days_to_failure), "driver dies", -1)
        now = 0.0
        while self.left:
            now, _, what, worker, life = heapq.heappop(self.events)
            if worker < 0:
                self._driver_dies(now)
            elif life == self.life[worker]:
                getattr(self, f"_{what.replace(' ', '_')}")(worker, now)
        last = max(*self.merge_free, now)
        self.outcome.merge_tail_hours = (last - now) / 3600
        self.outcome.hours = last / 3600
        self.outcome.busy = self.useful / (now * self.job.workers)
        return self.outcome

    def _at(self, when: float, what: str, worker: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (when, self.number, what, worker, self.life[worker] if worker >= 0 else 0))

    def _until(self, days: float) -> float:
        return self.chance.expovariate(1 / (days * 86400))

    def _start(self, worker: int, now: float) -> None:
        self.outcome.starts += 1
        self._at(now + self.job.start_seconds, "asks the store", worker)
        self._at(now + self._until(self.given.worker_days_to_failure), "dies", worker)

    def _asks_the_store(self, worker: int, now: float) -> None:
        if len(self.reading) < self.job.loads_at_once:
            self.reading.add(worker)
            self._at(now + self.job.load_seconds, "has read", worker)
        else:
            self.waiting.append((worker, self.life[worker]))

    def _has_read(self, worker: int, now: float) -> None:
        self._leaves_the_store(worker, now)
        self._takes(worker, now)

    def _leaves_the_store(self, worker: int, now: float) -> None:
        self.reading.discard(worker)
        while self.waiting and len(self.reading) < self.job.loads_at_once:
            next_one, life = self.waiting.pop(0)
            if life == self.life[next_one]:
                self._asks_the_store(next_one, now)

    def _takes(self, worker: int, now: float) -> None:
        if not self.queue:
            self.idle.add(worker)
            return
        self.has[worker] = self.queue.pop()
        slow = 3.0 if self.chance.random() < self.given.stragglers else 1.0
        duration = self.job.shard_seconds * slow * math.exp(self.chance.gauss(0.0, self.given.spread))
        self._at(now + duration, "has done", worker)

    def _has_done(self, worker: int, now: float) -> None:
        shard = self.has[worker]
        assert shard is not None
        self.has[worker] = None
        self.outcome.done[shard] += 1
        self.useful += self.job.shard_seconds
        self.left -= 1
        free = heapq.heappop(self.merge_free)
        heapq.heappush(self.merge_free, max(free, now) + self.job.merge_seconds)
        self._takes(worker, now)

    def _dies(self, worker: int, now: float) -> None:
        self.outcome.worker_deaths += 1
        lost = self._lose(worker)
        self._leaves_the_store(worker, now)
        self.outcome.largest_loss = max(self.outcome.largest_loss, lost)
        self._start(worker, now + self.given.notice_seconds)
        while self.queue and self.idle:  # lost tasks go to an idle worker
            self._takes(self.idle.pop(), now)

    def _lose(self, worker: int) -> int:
        """Put the shard of a worker that died back into the queue; return how many shards were lost."""
        self.life[worker] += 1
        self.idle.discard(worker)
        shard, self.has[worker] = self.has[worker], None
        if shard is None:
            return 0
        self.queue.append(shard)
        self.outcome.redone += 1
        return 1

    def _driver_dies(self, now: float) -> None:
        self.outcome.driver_deaths += 1
        for worker in range(self.job.workers):
            self._lose(worker)
        self.reading, self.waiting = set(), []
        for worker in range(self.job.workers):
            self._start(worker, now + self.given.notice_seconds)
        self._at(now + self._until(self.given.driver_days_to_failure), "driver dies", -1)


def on_paper(job: Job, given: Assumptions) -> float:
    """Return the hours by formula: all workers start, the store serves one after the other, work is shared evenly, each
    death costs a start and half a shard, and the slowest shards end last."""
    slow = (1 + 2 * given.stragglers) * math.exp(given.spread**2 / 2)
    begin = job.start_seconds + job.load_seconds * (1 + (math.ceil(job.workers / job.loads_at_once) - 1) / 2)
    deaths = 1 / (given.worker_days_to_failure * 86400) + 1 / (given.driver_days_to_failure * 86400)
    a_death = given.notice_seconds + begin + job.shard_seconds * slow / 2
    work = job.shards * job.shard_seconds * slow / min(job.workers, job.shards)
    tail = 0.0 if job.workers == 1 else 1.5 * job.shard_seconds
    merging = max(0.0, job.shards * job.merge_seconds / given.mergers - work)
    return (begin + (work + tail) / max(1 - deaths * a_death, 0.01) + merging) / 3600


# the measured part


def core_flops() -> tuple[float, float]:
    """Return the FLOP/s of one core in a bare forward pass, and the cost of a scan relative to it."""
    rows = {(r["subject"], r["way"]): r for r in json.loads(MEASURED.read_text())["rows"]}
    bare, scan = rows["smollm2", "bare"], rows["smollm2", "scan"]
    return 2 * SMOLLM2 * bare["tokens_per_second"], scan["time_ratio"]


def merge_cost(model: Model, shards: int = 6, sequences: int = 64, layers: int = 4) -> dict[str, float]:
    """Return the size of a shard's file in bytes, and the processor seconds to read it and add it to a sum."""
    import numpy as np

    from attnscope.commands.scan.survey.builder import NotMeasured, SurveyBuilder
    from attnscope.commands.scan.survey.shard_sums import ShardMerger
    from attnscope.commands.scan.survey.shards import ShardId, from_bytes, to_bytes
    from attnscope.core.registry import choose

    cards = {measure.card.name: measure.card for measure in choose(["default"]) if measure.card.scope != "weights"}
    cards = {name: card for name, card in cards.items() if not name.startswith(("media", "gate"))}
    chance = np.random.default_rng(0)
    files = []
    for shard in range(shards):
        ledger = SurveyBuilder(cards)
        samples = np.arange(sequences) + shard * sequences
        for name, card in cards.items():
            for part in card.parts:
                for layer in range(layers):
                    for site in card.sites if card.scope == "stream" else card.sites[:1]:
                        shape = (sequences,) if card.scope == "stream" else (sequences, model.heads)
                        ledger.observe(name, part, "decoder", site, layer, chance.lognormal(size=shape), {}, samples)
        corpus = {"name": "made up", "sequences": sequences, "tokens": 0}
        survey = ledger.survey({"model": {"name": model.name, "hash": "0", "stacks": []}, "corpus": corpus})
        files.append(to_bytes(ShardId({}, "0" * 64, shard, shards), survey, NotMeasured()))
    fold = ShardMerger()
    fold.add(from_bytes(files[0], "made up"))
    start = time.process_time()
    for data in files[1:]:
        fold.add(from_bytes(data, "made up"))
    seconds = (time.process_time() - start) / (shards - 1)
    deeper = model.layers / layers
    return {"shard_bytes": sum(map(len, files)) / shards * deeper, "merge_seconds": seconds * deeper}


# jobs


def shards_of(tokens: int) -> int:
    """Return the number of shards of a streamed corpus: pieces of 8,192 tokens, grouped to keep the number small."""
    from attnscope.data.shards import MOST_SHARDS, SHARD_TOKENS

    pieces = -(-tokens // SHARD_TOKENS)
    return -(-pieces // -(-pieces // MOST_SHARDS))


def jobs(given: Assumptions, costs: dict[str, dict[str, float]]) -> Iterator[dict[str, Any]]:
    flops, ratio = core_flops()
    speeds = {"CPU machine": flops * given.cores_a_machine, "accelerator": given.accelerator_flops}
    for tokens in TOKENS:
        for model in MODELS:
            for kind, speed in speeds.items():
                a_second = speed / (2 * model.parameters * ratio)
                work = tokens / a_second
                shards = shards_of(tokens)
                weights = model.parameters * model.bytes_a_parameter
                yield {
                    "tokens": tokens,
                    "model": model.name,
                    "worker": kind,
                    "tokens_a_second": a_second,
                    "work_seconds": work,
                    "shards": shards,
                    "shard_bytes": costs[model.name]["shard_bytes"],
                    "all_shards_bytes": shards * costs[model.name]["shard_bytes"],
                    "weight_bytes": weights,
                    "merge_seconds": costs[model.name]["merge_seconds"],
                    "load_seconds": weights / given.reader_bytes_a_second,
                }


def job_of(row: dict[str, Any], workers: int, given: Assumptions) -> Job:
    return Job(
        shards=row["shards"],
        shard_seconds=row["work_seconds"] / row["shards"],
        workers=workers,
        start_seconds=given.start_seconds,
        load_seconds=row["load_seconds"],
        loads_at_once=int(given.store_bytes_a_second / given.reader_bytes_a_second),
        merge_seconds=row["merge_seconds"],
    )


def simulated(row: dict[str, Any], given: Assumptions, seed: int) -> list[dict[str, Any]]:
    found = []
    for workers in WORKERS:
        job = job_of(row, workers, given)
        paper = on_paper(job, given)
        if paper > 24 * 366 * 2:  # longer than anyone would wait
            found.append({"workers": workers, "paper_hours": paper})
            continue
        outcome = Cluster(job, given, seed).run()
        if any(count != 1 for count in outcome.done):
            raise RuntimeError("a shard was counted twice, or never")
        told = {name: value for name, value in asdict(outcome).items() if name != "done"}
        found.append({"workers": workers, "paper_hours": paper, **told})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", action="store_true", help="only write the page's tables again, from the file")
    options = parser.parse_args()
    if not options.page:
        assumptions = Assumptions()
        costs = {model.name: merge_cost(model) for model in MODELS}
        flops, ratio = core_flops()
        rows = [{**row, "runs": simulated(row, assumptions, options.seed)} for row in jobs(assumptions, costs)]
        measured = {"core_flops": flops, "scan_ratio": ratio, "merging": costs}
        results = {"seed": options.seed, "measured": measured, "assumed": asdict(assumptions), "jobs": rows}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    from bench.capacity_tables import with_tables

    PAGE.write_text(with_tables(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
