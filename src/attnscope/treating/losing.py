"""What a language model loses on a batch: nats per token of each sequence, and which tokens count.

A causal model predicts every token from those before it. A masked model predicts a share of its tokens that were
hidden (arXiv:1810.04805; all of them behind the mask token); which ones depends on the sequence and the seed alone, so
that every arm of a treatment is asked the same questions. A decoder behind an encoder predicts its own next token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.outputs import mask_token_of
from attnscope.trace.batches import Batch

HIDDEN = 0.15  # share of the tokens that a masked model has to guess

GivenLoss = Callable[[nn.Module, Mapping[str, Any]], Tensor]
"""`loss(model, inputs)`, one number for each sequence: what a caller gives for models that are no language models."""


@dataclass(frozen=True)
class Losing:
    """How one model loses. Call it with a batch: the mean loss of every sequence, with gradients where they are on."""

    loaded: Loaded
    seed: int = 0
    given: GivenLoss | None = None
    skip_first: int = 0  # tokens at the beginning of a sequence that are not asked for

    def __call__(self, batch: Batch) -> Float[Tensor, " batch"]:
        if self.given is not None:
            return self._checked(self.given(self.loaded.model, batch.inputs), len(batch))
        inputs, wanted, counts = self._asked(batch)
        options = {"use_cache": False} if "use_cache" in self.loaded.accepts else {}
        logits = getattr(self.loaded.model(**inputs, **options), "logits", None)
        self._refuse_without_logits(logits, wanted)
        assert isinstance(logits, Tensor)
        if self.loaded.kind != "masked":
            logits = logits[:, :-1]
        each = nn.functional.cross_entropy(logits.transpose(1, 2).float(), wanted, reduction="none")
        return (each * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(1)

    def _asked(self, batch: Batch) -> tuple[dict[str, Any], Int[Tensor, "batch token"], Bool[Tensor, "batch token"]]:
        """What the model is given, what it should say, and where that counts."""
        inputs = dict(batch.inputs)
        if self.loaded.kind == "masked":
            hidden = self._hidden(batch)
            ids = inputs["input_ids"]
            inputs["input_ids"] = ids.masked_fill(hidden, self._mask_token())
            return inputs, ids, hidden
        own = self.loaded.kind == "encoder-decoder"
        ids = inputs["decoder_input_ids" if own else "input_ids"]
        mask = batch.decoder_mask if own else batch.mask
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(ids.device)
        counts = real[:, 1:] & real[:, :-1]
        if self.skip_first:
            counts = counts & (counts.cumsum(dim=1) > self.skip_first)
        return inputs, ids[:, 1:], counts

    def _hidden(self, batch: Batch) -> Bool[Tensor, "batch token"]:
        ids = batch.inputs["input_ids"]
        rows = []
        for place, number in enumerate(batch.samples):
            draw = torch.Generator().manual_seed((self.seed << 31) + number)
            length = ids.shape[1] if batch.mask is None else int(batch.mask[place].sum())
            chosen = torch.zeros(ids.shape[1], dtype=torch.bool)
            real = torch.arange(ids.shape[1]) if batch.mask is None else batch.mask[place].cpu().nonzero().flatten()
            inner = real[1:-1] if length > 2 else real  # what stands at the ends is no text
            order = torch.randperm(len(inner), generator=draw)
            chosen[inner[order[: max(1, round(HIDDEN * len(inner)))]]] = True
            rows.append(chosen)
        return torch.stack(rows).to(ids.device)

    def _mask_token(self) -> int:
        token = mask_token_of(self.loaded.tokenizer)
        if token is None:
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) reads both ways and its tokenizer has no mask token, so"
                " there is nothing it could be asked: in Python, give loss=."
            )
        return token

    def _refuse_without_logits(self, logits: object, wanted: Tensor) -> None:
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[-1] <= int(wanted.max()):
            raise RefusalError(
                f"{self.loaded.name} ({self.loaded.class_name}) predicts no tokens, so it has no loss on a text: give "
                "a language model, or in Python a loss=(model, inputs) -> one number for each sequence."
            )

    def _checked(self, losses: object, sequences: int) -> Float[Tensor, " batch"]:
        if not isinstance(losses, Tensor) or losses.shape != (sequences,):
            told = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise RefusalError(f"loss= gave {told} for {sequences} sequences: give one number for each of them.")
        return losses
