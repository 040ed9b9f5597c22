"""scan(model, corpus) -> Survey: measure every layer and head of a model over a corpus.

    survey = attnscope.scan("pocket")
    survey = attnscope.scan(my_model, ["a text", "another"], tokenizer=my_tokenizer, measures=["default", "deep"])
    survey = attnscope.scan(vision_model, [{"pixel_values": images}])

The model runs its own forward pass with its own fused attention; a tap hands out frames as layers finish, measures turn
frames into numbers, and nothing larger than one layer of one batch is ever kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.core.registry import choose
from attnscope.hf.anatomy import Anatomy, anatomy
from attnscope.hf.load import Loaded, load
from attnscope.hf.tap import tap
from attnscope.hf.verify import verify
from attnscope.scanning.checkpoint import Checkpoint
from attnscope.scanning.observer import Observer
from attnscope.survey.ledger import Ledger
from attnscope.survey.survey import Survey
from attnscope.trace.batches import Batch

Progress = Callable[[str, int, int, int], None]
