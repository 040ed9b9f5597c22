"""How sequences begin: with the token that says "here a text begins" (BOS), or without it, and why.

Models that were trained with BOS put their attention sinks and massive activations on it, and without it they say
other things than in use: whoever reads the numbers of a model must know which of the two was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Beginning:
    """`begins`: whether the first token of every sequence is `token`. `why` is the rest of a sentence in brackets."""

    begins: bool
    token: int | None  # None: there is no such token
    why: str
    word: str | None = None  # the token as the vocabulary writes it

    def __call__(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A sequence, or what stands before one, as it should begin."""
        there = self.token is not None and tuple(ids[:1]) == (self.token,)
        if self.begins and self.token is not None and not there:
            return (self.token, *ids)
        return tuple(ids[1:]) if there and not self.begins else tuple(ids)

    def to_json(self) -> dict[str, Any]:
        said = {"begins": self.begins, "token": self.word, "why": self.why}
        return {name: value for name, value in said.items() if value is not None}
