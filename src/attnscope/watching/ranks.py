"""Processes that train one model together: each looks at its own part of the batch, and all know of all of it.

Every process comes to the same numbers and so to the same alarms and the same scaled heads; the first writes. What is
exchanged is a few thousand numbers at a look, between steps, by the process group that the training itself uses.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from attnscope.watching.page import Page, merged


def together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def writes() -> bool:
    """Whether this process keeps the record."""
    return not together() or dist.get_rank() == 0


def of_all(page: Page, *, same: bool) -> Page:
    """The page of the whole batch. `same`: all processes looked at the same batch (a probe), and the first counts."""
    if not together():
        return page
    pages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pages, page)
    tokens = sum(one.tokens for one in pages)
    whole: Page = pages[0] if same else merged(pages)
    whole.tokens = tokens
    return whole


def mean_of_all(value: float | None) -> float | None:
    """The loss of the whole batch, where every process knows its own."""
    if not together():
        return value
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, value)
    return None if None in known else sum(known) / len(known)


def largest_of_all(numbers: Tensor) -> Tensor:
    if together():
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return numbers
