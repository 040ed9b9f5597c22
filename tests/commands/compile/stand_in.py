"""Stand-ins for constructions, whose smallest widths are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.core.construction import Auto, Construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance
from attnscope.heads.accuracy import Factors
from attnscope.heads.facts import Certificate
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern


def certificate(width: int, *, reached: bool, leak: float | None = None, failing: int = 2) -> Certificate:
    return Certificate(
        n=100, k=1, d=width, dtype="float32", causal=False, ratio_error=0.0, mean_ratio_error=0.0,
        leak=(0.001 if reached else 0.5) if leak is None else leak, mean_leak=0.0, zero_ratio=0.0, max_logit=1.0,
        query_norm=1.0, key_norm=1.0, asked_ratio_error=0.1, asked_leak=0.01, failing=0 if reached else failing,
        failing_rows=() if reached else (1, 3),
    )  # fmt: skip


def head(width: int) -> Head:
    return Head(torch.ones(4, width), torch.ones(4, width), causal=False, method="stand_in")


class Builder:
    """Build heads that are accurate if `reaches(width, seed)`, and record all calls."""

    def __init__(self, reaches: Callable[[int, int], bool], stop_after: int | None = None) -> None:
        self.reaches, self.stop_after = reaches, stop_after
        self.asked: list[tuple[int, int]] = []

    def __call__(self, width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked.append((width, seed))
        advance("building", 1, 2)
        return head(width), certificate(width, reached=self.reaches(width, seed), leak=None)


TAKEN_FOR: dict[str, Auto] = {"joint": "one pattern", "margin": "any pattern", "moment_curve": "ceiling"}


def exact_construction(
    name: str = "joint", *, needs: int = 1, universal: bool = False, fixed: bool = False, first: int = 2
) -> Construction:
    """Return a construction that realises patterns with one key per row from width `needs` on."""

    def build(
        pattern: Pattern, width: int, accuracy: Any, rng: np.random.Generator, advance: Advance = lambda *a: None
    ) -> Factors:
        if width < 1:
            raise RefusalError("Ask for more.")
        advance("standing in", 1, 1)
        queries, keys = np.zeros((pattern.n, width)), np.zeros((pattern.n_keys, width))
        if width >= needs:
            angle = 2 * np.pi * np.arange(pattern.n_keys) / pattern.n_keys
            places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            keys[:, :2], queries[:, :2] = places, 2000.0 * places[pattern.columns[pattern.starts[:-1]]]
        return Factors(queries, keys, {"draws": 1})

    return Construction(
        name=name, title=name, summary="Stands in.", citation="arXiv:2106.03764", universal=universal, function=build,
        first_width=lambda pattern: first, fixed_width=(lambda pattern: 2) if fixed else None,
        auto=TAKEN_FOR.get(name),
    )  # fmt: skip


@contextmanager
def registered(monkeypatch: pytest.MonkeyPatch, *known: Construction) -> Iterator[None]:
    """Replace all constructions by these."""
    table = {one.name: one for one in known}
    with monkeypatch.context() as patch:
        for module in ("attnscope.core.registry", "attnscope.commands.compile.run"):
            patch.setattr(f"{module}.constructions", lambda: table)
        patch.setattr("attnscope.commands.capacity.run.known_constructions", lambda: tuple(table))
        yield
