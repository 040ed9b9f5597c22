"""Settings of `attnscope collapse`, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.hf.loading.options import CorpusOptions


@dataclass(frozen=True)
class CollapseSettings:
    """See `attnscope.collapse` for the meaning of each field."""

    seeds: int | Sequence[int] = 1
    variants: str | Sequence[str] = "san,san+mlp,san+skip,whole"
    norm: str = "1,inf"
    mlp_skip: bool = True
    bounds: bool = True
    bound_samples: int = 4
    stack: str | None = None


class CollapseOptions(CorpusOptions, total=False):
    """The keywords of `attnscope.collapse`."""

    seeds: int | Sequence[int]
    variants: str | Sequence[str]
    norm: str
    mlp_skip: bool
    bounds: bool
    bound_samples: int
    stack: str | None
