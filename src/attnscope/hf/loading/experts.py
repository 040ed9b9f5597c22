"""Mixtures of experts in float64: their grouped product knows no such numbers; their plain loop computes the same."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from torch import nn


def with_plain_experts(model: Any) -> None:
    """Lets a model that is not the caller's own run its experts one after the other."""
    choose = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        with suppress(ValueError):  # transformers says so of models that have no choice
            choose("eager")


def experts_in(model: nn.Module) -> str | None:
    """The class that holds a model's experts, where it has any: what a refusal has to name."""
    names = (type(module).__name__ for module in model.modules())
    return next((name for name in names if re.search(r"Experts$|SparseMoe|MoE$|Moe$|SparseMLP", name)), None)
