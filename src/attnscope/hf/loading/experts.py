"""Mixtures of experts: their grouped product knows no float64 and shows no single expert; their plain loop computes the
same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import nn

from attnscope.hf.seeing.restoring import Restoring


def with_plain_experts(model: Any) -> None:
    """Lets a model that is not the caller's own run its experts one after the other."""
    choose = getattr(model, "set_experts_implementation", None)
    if callable(choose):
        with suppress(ValueError):  # transformers says so of models that have no choice
            choose("eager")


@contextmanager
def one_after_another(module: nn.Module) -> Iterator[None]:
    """Inside, experts run as a loop over those that tokens were sent to, of which every step is a plain product."""
    configs = {id(c): c for m in module.modules() if (c := getattr(m, "config", None)) is not None}
    with Restoring() as changes:
        for config in configs.values():
            chosen = getattr(config, "_experts_implementation_internal", None)
            if chosen not in (None, "eager"):
                changes.callback(setattr, config, "_experts_implementation_internal", chosen)
                config._experts_implementation_internal = "eager"
        yield


def experts_in(model: nn.Module) -> str | None:
    """The class that holds a model's experts, where it has any: what a refusal has to name."""
    names = (type(module).__name__ for module in model.modules())
    return next((name for name in names if re.search(r"Experts$|SparseMoe|MoE$|Moe$|SparseMLP", name)), None)
