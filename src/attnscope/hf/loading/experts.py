"""Mixtures of experts in float64: their grouped product knows no such numbers; their plain loop computes the same."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def with_plain_experts(model: Any) -> None:
    """Lets a model that is not the caller's own run its experts one after the other."""
    choose = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        with suppress(ValueError):  # transformers says so of models that have no choice
            choose("eager")
