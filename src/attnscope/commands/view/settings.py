"""Settings of `attnscope view`, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.hf.loading.options import TextOptions

Words = str | int | Sequence[int] | range | None


@dataclass(frozen=True)
class ViewSettings:
    """See `attnscope.view` for the meaning of each field."""

    block: Words = None
    head: Words = None
    max_mb: float = 64.0


class ViewOptions(TextOptions, total=False):
    """Keywords of `attnscope.view`."""

    block: Words
    head: Words
    max_mb: float
