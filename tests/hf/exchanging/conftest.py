"""Probe every shared model only once: the anatomy is the slowest part of these tests and always the same."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.exchanging import exchange
from tests.hf.exchanging.treatable import FAMILIES, kept

_SEEN: dict[int, Anatomy] = {}


@pytest.fixture(autouse=True)
def shared_anatomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the anatomy of the shared models. Other models are probed every time."""

    def cached_anatomy(model: nn.Module, example: Any = None) -> Anatomy:
        if example is not None or not any(kept.cache_info().currsize and model is kept(name) for name in FAMILIES):
            return anatomy(model, example)
        if id(model) not in _SEEN:
            _SEEN[id(model)] = anatomy(model)
        return _SEEN[id(model)]

    monkeypatch.setattr(exchange, "anatomy", cached_anatomy)
