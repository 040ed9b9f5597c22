"""A linear head on an embedding: classes for a backbone that has none.

    head.safetensors        weight [class, width], bias [class] (0 where there is none), in its metadata labels as JSON
    {"weight": ..., "bias": ..., "labels": ["nominal", "defect"]}       nn.Linear(width, classes)       an array

Such a head is trained in seconds on embeddings, and `explain --head` shows which part of an input it answers to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.outputs import Entries


@dataclass(frozen=True)
class LinearHead:
    weight: Float[Tensor, "classes width"]
    bias: Float[Tensor, " classes"]
    labels: tuple[str, ...]

    def entries(self) -> Entries:
        return Entries("classes", len(self.weight), False, dict(enumerate(self.labels)), None)


def linear_head(given: Any) -> LinearHead:
    """The head that `given` is, or that the file of that name holds."""
    if isinstance(given, LinearHead):
        return given
    if isinstance(given, str | Path):
        return _made(*_of_file(Path(given)))
    if isinstance(given, nn.Linear):
        return _made(given.weight.detach(), None if given.bias is None else given.bias.detach(), ())
    if isinstance(given, Mapping):
        if "weight" not in given:
            raise RefusalError("A head is a mapping with weight, bias and labels, and weight is missing: give it.")
        return _made(given["weight"], given.get("bias"), tuple(map(str, given.get("labels", ()))))
    return _made(given, None, ())


def _of_file(path: Path) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise RefusalError(f"There is no file '{path}': give a .safetensors file with weight and bias to --head.")
    try:
        with safe_open(str(path), framework="pt") as stored:
            named = {name: stored.get_tensor(name) for name in stored.keys() if name in ("weight", "bias")}  # noqa: SIM118
            labels = json.loads((stored.metadata() or {}).get("labels", "[]"))
    except (SafetensorError, OSError, ValueError) as error:
        raise RefusalError(
            f"'{path}' is not a safetensors file of a head ({type(error).__name__}): save weight and bias in one."
        ) from None
    if "weight" not in named:
        raise RefusalError(f"'{path}' holds no weight: a head is weight [class, width] and bias [class].")
    return named["weight"], named.get("bias"), tuple(map(str, labels)) if isinstance(labels, list) else ()


def _made(weight: Any, bias: Any, labels: tuple[str, ...]) -> LinearHead:
    try:
        made = torch.as_tensor(weight).detach().double()
        shift = torch.zeros(len(made)) if bias is None else torch.as_tensor(bias).detach().flatten()
    except (TypeError, ValueError, RuntimeError):
        raise RefusalError(f"A head is an array of numbers [class, width], not a {type(weight).__name__}.") from None
    made = made[None] if made.ndim == 1 else made
    if made.ndim != 2 or len(shift) != len(made) or not bool(made.isfinite().all() & shift.isfinite().all()):
        raise RefusalError(
            "A head is a finite weight [class, width] with a bias for every class: check the shapes of what was given."
        )
    if labels and len(labels) != len(made):
        raise RefusalError(f"The head has {len(made)} classes and {len(labels)} labels: give a label for each.")
    return LinearHead(made, shift.double(), labels or tuple(f"class {n}" for n in range(len(made))))
