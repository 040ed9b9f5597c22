"""A scan request, the scan that is opened from it, and the runner of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.commands.scan.by_block import rounds
from attnscope.commands.scan.plan import ScanPlan, Subject
from attnscope.commands.scan.shard import Checkpoint, Shard
from attnscope.commands.scan.survey.builder import Each
from attnscope.commands.scan.survey.shards import Store
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.progress import AdvanceReading, silent, uninterrupted
from attnscope.data.batches import Batch
from attnscope.data.shards import Cut
from attnscope.data.windows import Tokenizer
from attnscope.hf.loading.load import Loaded, Ready, Text
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet


@dataclass(frozen=True)
class ScanRequest:
    """The arguments of a scan, before anything is loaded."""

    model: str | Path | nn.Module | Loaded
    corpus: Text | Ready | None
    tokenizer: Tokenizer | None
    measures: tuple[str, ...]
    loading: Loading
    sampling: Sampling
    accumulate: torch.dtype | None


@dataclass(frozen=True)
class OpenedScan:
    """A loaded model, a corpus cut into shards, and the plan."""

    loaded: Loaded
    cut: Cut
    plan: ScanPlan
    subject: Subject
    origin: dict[str, Any]
    stream_weights: bool = False  # run block by block, each on all sequences


@dataclass(frozen=True)
class ShardRunner:
    """Runs shards. If interrupted, it saves the finished batches of the current shard to the checkpoint."""

    scan: OpenedScan
    checkpoint: Checkpoint
    each: Each | None = None
    tell: AdvanceReading = silent

    def run_whole(self, before: Survey | None = None) -> Survey:
        """Run all shards as one; `before` is the survey of an interrupted run."""
        plan, cut = self.scan.plan, self.scan.cut
        shard = Shard(plan, self.scan.subject, self.scan.origin, before, self.each)
        batches = (batch for number in range(plan.shards) for batch in cut.shard(number))
        self._observe(shard, batches, 0, lambda: self.tell("scanning", shard.sequences, plan.samples, shard.tokens))
        with uninterrupted():
            return shard.finished()

    def run_into(self, store: Store, numbers: Sequence[int], before: Survey | None = None) -> tuple[int, int]:
        """Run the shards that the store lacks. Return how many sequences and tokens are done."""
        # A worker runs one shard at a time. Listing a store of many shards would cost more than the shard itself.
        done = store.done() if len(numbers) > 1 else {number for number in numbers if store.has(number)}
        sizes = self.scan.cut.sizes
        sequences, tokens = sum(sizes[number] for number in numbers if number in done), 0
        total = sum(sizes[number] for number in numbers)
        interrupted = None if before is None else before.provenance.get("shard", 0)
        for number in numbers:
            if number in done:
                continue
            earlier = before if interrupted == number else None
            # Measures of weights are equal for all shards: only the first shard takes them.
            shard = Shard(self.scan.plan, self.scan.subject, self.scan.origin, earlier, self.each, weights=number == 0)

            def report(shard: Shard = shard, sequences: int = sequences, tokens: int = tokens) -> None:
                self.tell("scanning", sequences + shard.sequences, total, tokens + shard.tokens)

            self._observe(shard, self.scan.cut.shard(number), number, report)
            with uninterrupted():
                store.write(number, shard.survey(), shard.not_measured())
                self.checkpoint.finished()
            sequences, tokens = sequences + shard.sequences, tokens + shard.tokens
        return sequences, tokens

    def _observe(self, shard: Shard, batches: Iterable[Batch], number: int, report: Callable[[], None]) -> None:
        """Observe the batches that the shard does not hold yet."""
        by_block = self.scan.stream_weights
        try:
            report()
            remaining = _after(batches, shard.sequences)
            with quiet():  # entered once for all batches: entering costs as much as a small batch
                for group in rounds(shard.subject, remaining) if by_block else ((batch,) for batch in remaining):
                    if by_block:
                        shard.observe_by_block(group, lambda done, of: self.tell(f"block {done} of {of}", 0, 0, 0))
                    else:
                        shard.observe(group[0])
                    report()
                    if self.checkpoint.due or by_block:
                        self.checkpoint.save(shard.survey(), number)
        except BaseException:
            with uninterrupted():
                if shard.sequences and shard.whole and (partial := shard.survey()).cells:
                    self.checkpoint.save(partial, number)
            raise


def _after(batches: Iterable[Batch], done: int) -> Iterable[Batch]:
    """Skip the batches of the first `done` sequences. Checkpoints fall between batches."""
    passed = 0
    for batch in batches:
        if passed >= done:
            yield batch
        passed += len(batch)
