"""Tokens that nobody can foretell, and triggers after which an earlier token comes again: heads that mostly rest.

A head that copies has something to say behind a trigger and nothing anywhere else, and softmax makes it attend to
something all the same. So this is where attention sinks appear in the smallest models. It is the bigram-backcopy task
of arXiv:2410.13835 with a flat bigram: where the tokens before say something about the next one, resting on the own
token does as little harm as resting on the first.

    text = copying(CopyTask(), rows=4096, seed=0)
    text.ids        [row, token + 1], a model reads all but the last and answers all but the first
    text.floor      nats per token that no model can go below: what was drawn had this surprise
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.corpus.read import read

BOS = 0


@dataclass(frozen=True)
class CopyTask:
    """Symbols 1 to `triggers` are triggers; behind one stands what stood `back` places before it."""

    symbols: int = 32
    triggers: int = 4
    back: int = 1
    tokens: int = 64
    bos: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.triggers < self.symbols or not 0 < self.back < self.tokens:
            raise RefusalError("A copying task needs fewer triggers than symbols, and a place inside the text to copy.")


@dataclass(frozen=True)
class Text:
    """Rows to learn from or to be judged on; `floor` is 0 where the least possible loss is not known."""

    ids: Int[Tensor, "row token"]
    vocabulary: int
    floor: float = 0.0


def copying(task: CopyTask, rows: int, seed: int) -> Text:
    """A trigger is never copied: it would start a copy of its own, and two of them would go on for ever."""
    rng = torch.Generator().manual_seed(seed)
    shape = (rows, task.tokens + 1)  # as many are answered with BOS in front as without
    drawn = torch.randint(1, task.symbols + 1, shape, generator=rng)
    ids = torch.full(shape, BOS)
    surprise = torch.full(shape, math.log(task.symbols), dtype=torch.float64)
    first = int(task.bos)
    for place in range(first, ids.shape[1]):
        fresh = drawn[:, place]
        if place - 1 - task.back < first:
            ids[:, place] = fresh
            continue
        before, source = ids[:, place - 1], ids[:, place - 1 - task.back]
        copied = (before <= task.triggers) & (source > task.triggers)
        ids[:, place] = torch.where(copied, source, fresh)
        surprise[:, place].masked_fill_(copied, 0.0)
    return Text(ids, task.symbols + 1, float(surprise[:, 1:].mean()))


def characters(
    tokens: int, rows: int, seed: int, *, bos: bool = True, held_out: bool = False, half: int | None = None
) -> Text:
    """Windows of the embedded book, letter by letter; the last tenth of it is held out. `half` 0 or 1: only that half
    of what is taken, so that what was chosen on the one can be judged on the other."""
    book = "".join(read().documents)
    letters = {letter: place for place, letter in enumerate(sorted(set(book)), start=1)}
    stream = torch.tensor([letters[letter] for letter in book])
    cut = len(stream) * 9 // 10
    stream = stream[cut:] if held_out else stream[:cut]
    if half is not None:
        stream = stream[: len(stream) // 2] if half == 0 else stream[len(stream) // 2 :]
    length = tokens + 1 - bos
    starts = torch.randint(0, len(stream) - length, (rows,), generator=torch.Generator().manual_seed(seed))
    ids = stream[starts[:, None] + torch.arange(length)]
    return Text(torch.nn.functional.pad(ids, (1, 0), value=BOS) if bos else ids, len(letters) + 1)
