"""Looking at a model's anatomy costs more than all else here, and is the same each time: it is looked at once."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.exchanging import exchange
from tests.hf.exchanging.treatable import FAMILIES, kept

_SEEN: dict[int, Anatomy] = {}


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the shared models alone; any other is looked at anew."""

    def looked(model: nn.Module, example: Any = None) -> Anatomy:
        if example is not None or not any(kept.cache_info().currsize and model is kept(name) for name in FAMILIES):
            return anatomy(model, example)
        if id(model) not in _SEEN:
            _SEEN[id(model)] = anatomy(model)
        return _SEEN[id(model)]

    monkeypatch.setattr(exchange, "anatomy", looked)
