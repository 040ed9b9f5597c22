"""Keeps transformers quiet."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    # transformers calls a deprecated torch function when it imports this module.
    warnings.simplefilter("ignore", DeprecationWarning)
    import transformers.models.deberta_v2.modeling_deberta_v2  # noqa: F401


@pytest.fixture(autouse=True)
def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
