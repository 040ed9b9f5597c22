"""Small inputs for a probe run, made from the model's configuration or cut out of a caller's batch.

All lengths differ so that axes can be recognised: two sequences, seven tokens, five decoder tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError

BATCH, TOKENS, DECODER_TOKENS = 2, 7, 5
LONG = 2048  # tokens; before a model runs on a longer text, its memory and its page are estimated
Batch = Mapping[str, Any] | Sequence[Any]


def run(model: nn.Module, batch: Batch) -> Any:
    """Call a model with a batch: a mapping of named arguments, or a sequence of positional ones."""
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Seed torch inside this context, so that a model draws the same random numbers. Restore the generators on exit."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        yield


def rows_of(batch: Batch) -> int | None:
    """Return the number of sequences in a batch, or None if its tensors disagree."""
    if isinstance(batch, Mapping) and isinstance(ids := batch.get("input_ids"), Tensor) and ids.ndim:
        return len(ids)
    values = batch.values() if isinstance(batch, Mapping) else batch
    counts = {len(value) for value in values if isinstance(value, Tensor) and value.ndim}
    return counts.pop() if len(counts) == 1 else None


def example_batch(model: nn.Module) -> dict[str, Tensor]:
    """Make inputs for a transformers model from the arguments of its forward and its configuration."""
    takes = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    if config is None:
        raise RefusalError(
            f"{type(model).__name__} has no configuration to make a probe input from: "
            "pass `example_inputs=`, a small batch that it can run on."
        )
    generator = torch.Generator().manual_seed(0)
    main = getattr(model, "main_input_name", "input_ids")
    required = {n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    towers = {"vision_config", "text_config"} <= set(vars(config)) and "logit_scale" in dict(model.named_parameters())

    def wanted(name: str) -> bool:
        return name in takes and (main == name or name in required or towers)

    batch: dict[str, Tensor] = {}
    if wanted("input_ids"):
        batch["input_ids"] = _ids(config, TOKENS, generator)
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones(BATCH, TOKENS, dtype=torch.long)
    if wanted("pixel_values"):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(vision, "num_channels", 3)
        batch["pixel_values"] = torch.randn(BATCH, channels, height, width, generator=generator)
    if "input_features" in takes and main == "input_features":
        length = 2 * getattr(config, "max_source_positions", 500)
        bins = getattr(config, "num_mel_bins", 80)
        batch["input_features"] = torch.randn(BATCH, bins, length, generator=generator)
    if "input_values" in takes and main == "input_values":
        batch["input_values"] = torch.randn(BATCH, 4000, generator=generator)
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = _ids(config, DECODER_TOKENS, generator)
        if "decoder_attention_mask" in takes:
            batch["decoder_attention_mask"] = torch.ones(BATCH, DECODER_TOKENS, dtype=torch.long)
    if not batch:
        raise RefusalError(
            f"No probe input could be made for {type(model).__name__} (it takes {', '.join(takes)}): "
            "pass `example_inputs=`, a small batch that it can run on."
        )
    weights = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weights is None:
        return batch
    return {n: t.to(weights.device, weights.dtype if t.is_floating_point() else None) for n, t in batch.items()}


def _ids(config: Any, length: int, generator: torch.Generator) -> Tensor:
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    vocabulary = int(getattr(text, "vocab_size", 0) or getattr(config, "vocab_size", 0) or 100)
    # Avoid the padding token, because some models derive positions and masks from it.
    padding = getattr(text, "pad_token_id", None)
    ids = torch.randint(0, vocabulary, (BATCH, length), generator=generator)
    return torch.where(ids == padding, (ids + 1) % vocabulary, ids) if isinstance(padding, int) else ids


def cut_down(model: nn.Module, batch: Batch) -> Batch:
    """Cut a caller's batch to two sequences of seven tokens; images and sounds keep their size.

    A shorter sequence is repeated: one token cannot show causality, and lengths help to recognise cross-attention. A
    decoder gets five tokens; these are the labels if the batch has no decoder_input_ids. Batches of models other than
    transformers' are not cut, because the meaning of their axes is unknown.
    """
    if not isinstance(batch, Mapping) or getattr(model, "config", None) is None:
        return batch
    takes = inspect.signature(model.forward).parameters
    two = "decoder_input_ids" in takes and bool(getattr(model.config, "is_encoder_decoder", False))
    second = {name for name in batch if name.startswith("decoder") or (two and name == "labels")}
    lengths = [_length(batch, "input_ids"), _length(batch, "decoder_input_ids") or _length(batch, "labels")]
    small: dict[str, Any] = {}
    for name, value in batch.items():
        tokens = DECODER_TOKENS if name in second else TOKENS
        small[name] = _cut(name, value, tokens, repeat=_length(batch, name) == lengths[name in second])
    for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if ids in small and mask in takes and small.get(mask) is None:
            small[mask] = torch.ones_like(small[ids])
    return small


def of_tokens_only(batch: Batch) -> bool:
    """Return whether all tensors of a batch are tables of token ids or masks, so that `cut_down` shortens all of
    them."""
    if not isinstance(batch, Mapping):
        return False
    return all(_length(batch, name) > 0 for name, value in batch.items() if isinstance(value, Tensor))


def few_rows(model: nn.Module, batch: Batch) -> Batch:
    """Return two sequences of a caller's batch, at full length."""
    if not isinstance(batch, Mapping) or getattr(model, "config", None) is None:
        return batch
    rows = {len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim}
    if len(rows) != 1 or rows == {1}:
        return batch
    return {n: v[:BATCH] if isinstance(v, Tensor) and v.ndim else v for n, v in batch.items()}


def _cut(name: str, value: Any, tokens: int, repeat: bool) -> Any:
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    few = value[:BATCH] if value.shape[0] >= BATCH else torch.cat([value] * BATCH)[:BATCH]
    if few.ndim == 2 and not few.is_floating_point():
        if repeat and 0 < few.shape[1] < tokens:
            few = torch.cat([few] * tokens, dim=1)
        few = few[:, :tokens].contiguous()
    return torch.ones_like(few) if name.endswith("attention_mask") else few


def _length(batch: Mapping[str, Any], name: str) -> int:
    """Return the number of tokens in an argument, or 0 if it is not a table of integers."""
    value = batch.get(name)
    if not isinstance(value, Tensor) or value.ndim != 2 or value.is_floating_point():
        return 0
    return value.shape[1]
