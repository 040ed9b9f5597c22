"""A workplace: a model that is loaded, a corpus that is cut and a plan; and the shards that are done there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.commands.scan.by_block import AfterBlock, rounds
from attnscope.commands.scan.plan import Plan, Subject
from attnscope.commands.scan.shard import Checkpoint, Shard
from attnscope.commands.scan.survey.ledger import Each
from attnscope.commands.scan.survey.shards import Store
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.progress import AdvanceReading, silent, uninterrupted
from attnscope.data.batches import Batch
from attnscope.data.shards import Cut
from attnscope.data.windows import Tokenizer
from attnscope.hf.loading.batches import Ready, Text
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet


@dataclass(frozen=True)
class Request:
    """What is to be scanned, before anything is loaded."""

    model: str | Path | nn.Module | Loaded
    corpus: Text | Ready | None
    tokenizer: Tokenizer | None
    measures: tuple[str, ...]
    loading: Loading
    sampling: Sampling
    accumulate: torch.dtype | None


@dataclass(frozen=True)
class Workplace:
    """All that it takes to do any shard of a scan."""

    loaded: Loaded
    cut: Cut
    plan: Plan
    subject: Subject
    origin: dict[str, Any]
    stream_weights: bool = False  # block by block

    def by_block(self, tell: AdvanceReading) -> AfterBlock | None:
        """Who is told of blocks, where sequences go through them one after the other."""
        return (lambda done, of: tell(f"block {done} of {of}", 0, 0, 0)) if self.stream_weights else None


def one_by_one(
    place: Workplace,
    store: Store,
    numbers: Sequence[int],
    keeper: Checkpoint,
    before: Survey | None = None,
    each: Each | None = None,
    tell: AdvanceReading = silent,
) -> tuple[int, int]:
    """Do those of these shards that are not in the store; how many sequences and tokens they were."""
    # A worker asks for one shard at a time, and of very many it would spend its time on listing them.
    done = store.done() if len(numbers) > 1 else {number for number in numbers if store.has(number)}
    sequences, tokens = sum(place.cut.sizes[number] for number in numbers if number in done), 0
    total = sum(place.cut.sizes[number] for number in numbers)
    begun = None if before is None else before.provenance.get("shard", 0)
    for number in numbers:
        if number in done:
            continue
        weights = number == 0  # which every shard would read alike
        earlier = before if begun == number else None
        shard = Shard(place.plan, place.subject, place.origin, earlier, each, weights=weights)

        def told(shard: Shard = shard, sequences: int = sequences, tokens: int = tokens) -> None:
            tell("scanning", sequences + shard.sequences, total, tokens + shard.tokens)

        observe(shard, place.cut.shard(number), keeper, number, told, place.by_block(tell))
        with uninterrupted():
            store.write(number, shard.survey(), shard.missing())
            keeper.finished()
        sequences, tokens = sequences + shard.sequences, tokens + shard.tokens
    return sequences, tokens


def observe(
    shard: Shard,
    batches: Iterable[Batch],
    keeper: Checkpoint,
    number: int,
    told: Callable[[], None],
    by_block: AfterBlock | None = None,
) -> None:
    """What of the shard is not done yet. Where it is interrupted, the batches that are done are kept."""
    try:
        told()
        left = remaining(batches, shard.sequences)
        with quiet():  # once for all batches: to begin and end silence costs as much as a small batch
            for together in ((batch,) for batch in left) if by_block is None else rounds(shard.subject, left):
                if by_block is None:
                    shard.observe(together[0])
                else:
                    shard.observe_by_block(together, by_block)
                told()
                if keeper.due or by_block is not None:
                    keeper.save(shard.survey(), number)
    except BaseException:
        with uninterrupted():
            if shard.sequences and shard.whole and (partial := shard.survey()).cells:
                keeper.save(partial, number)
        raise


def remaining(batches: Iterable[Batch], done: int) -> Iterator[Batch]:
    """The batches after the first `done` sequences. Checkpoints are only made between batches."""
    passed = 0
    for batch in batches:
        if passed >= done:
            yield batch
        passed += len(batch)
