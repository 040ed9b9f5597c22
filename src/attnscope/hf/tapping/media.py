"""Which tokens of a language model stand for pictures, video or sound, during one forward pass.

Models that read both put placeholders among the words, which their configuration names, and lay the features of the
picture over them. The stack that reads words is the one beside the table of their embeddings: a vision tower has as
many tokens as it likes, and they are all of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.placeholders import placeholder_tokens


class Media:
    """Masks of tokens that are no words, settled once a forward pass."""

    def __init__(self, model: nn.Module, found: Anatomy) -> None:
        self._tokens = tuple(placeholder_tokens(model).values())
        self._stacks = reading_words(model, found) if self._tokens else frozenset[str]()
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._mask: Bool[Tensor, "batch token"] | None = None
        ids = arguments.get("input_ids")
        if self._tokens and isinstance(ids, Tensor) and ids.ndim == 2:
            self._mask = torch.isin(ids, ids.new_tensor(self._tokens))

    def of(self, stack: str, real: Bool[Tensor, "batch token"]) -> Bool[Tensor, "batch token"] | None:
        """The tokens of a stack that are no words; None where it reads none, or where a sequence holds one kind only,
        which has no part between the two."""
        mask = self._mask
        if mask is None or stack not in self._stacks or mask.shape != real.shape:
            return None
        both = (mask & real).any(dim=1) & (~mask & real).any(dim=1)
        return mask.to(real.device) if bool(both.all()) else None


def reading_words(model: Any, found: Anatomy) -> frozenset[str]:
    """The stacks beside the table of words."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return frozenset()
    path = next((path for path, module in model.named_modules() if module is table), "")
    beside = path.rpartition(".")[0]
    if not beside:
        return frozenset({found.stacks[-1].name}) if found.stacks else frozenset()
    return frozenset(s.name for s in found.stacks if s.blocks[0].path.startswith(f"{beside}."))
