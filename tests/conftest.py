"""Shapes and types are checked at run time in tests only: the hook must be in place before attnscope is imported."""

from __future__ import annotations

import os

from tests.checking import install

install("attnscope")

from attnscope.core.narrow_products import LIMIT, LIMITED_TO, narrow_products_are_deadly  # noqa: E402

if narrow_products_are_deadly():
    os.environ[LIMIT] = LIMITED_TO  # before torch's first product, here and in every child

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)
settings.register_profile(
    "attnscope",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("attnscope")
