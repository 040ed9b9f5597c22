"""Batches for any model of transformers: `batches_for(model)` yields candidates, the most likely first.

A batch is made from the arguments of the model's forward. The format of pictures (whole, one of several, rows of
patches) and sounds (time first or last) is not documented, so each one is tried.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

BATCH, TOKENS, DECODER_TOKENS, VOCABULARY = 2, 12, 7, 96
Batch = dict[str, Tensor]
_MOST = 24  # ways of putting pictures and sounds together


def batches_for(model: Any) -> Iterator[Batch]:
    """Yield batches made from the main input and the required arguments of the model's forward."""
    takes = inspect.signature(model.forward).parameters
    config = model.config
    needed = {n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    wanted = needed | {getattr(model, "main_input_name", "input_ids")}
    if "text_config" in vars(config):
        wanted |= {"input_ids", "pixel_values", "input_features", "input_values"} & set(takes)
    torch.manual_seed(9)
    ways: list[list[Batch]] = []
    if {"pixel_values", "pixel_values_videos", "grid_thw"} & wanted:
        ways.append(list(pictures(model, takes, wanted)))
    for name in ("input_features", "input_values", "audio_mel"):
        if name in wanted and name in takes:
            ways.append(list(sounds(config, name, takes)))
    text: Batch = {}
    if "input_ids" in wanted and "input_ids" in takes:
        text["input_ids"] = words(config)
        if "attention_mask" in takes:
            text["attention_mask"] = torch.ones_like(text["input_ids"])
        if "bbox" in takes:
            text["bbox"] = torch.tensor([1, 2, 5, 9]).expand(*text["input_ids"].shape, 4).contiguous()
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        text["decoder_input_ids"] = words(config, DECODER_TOKENS)
    for parts in itertools.islice(itertools.product(*ways), _MOST):
        batch = {**text}
        for part in parts:
            batch |= part
        batch |= _whatever_else(config, needed - batch.keys())
        if batch.keys() >= {"input_ids", "pixel_values"}:
            try:
                batch = with_image_tokens(model, batch)
            except Exception:  # pictures of another shape are next
                continue
        yield batch


def batch_for(model: Any) -> Batch:
    return next(batches_for(model))


def words(config: Any, tokens: int = TOKENS) -> Tensor:
    """Return token ids that are not special tokens, which are at both ends of a vocabulary."""
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    vocabulary = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None) or VOCABULARY
    return torch.randint(4, max(5, min(vocabulary, VOCABULARY) - 16), (BATCH, tokens))


def _whatever_else(config: Any, names: set[str]) -> Batch:
    """Return vectors and masks that parts of models get from the rest of the model."""
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", None) or 32
    width = width if isinstance(width, int) else width[0]
    more: Batch = {}
    for name in names:
        if name in ("hidden_states", "inputs_embeds", "query_embeds", "context"):
            more[name] = torch.randn(BATCH, TOKENS, width)
        elif name == "encoder_hidden_states":
            more[name] = torch.randn(BATCH, TOKENS - 3, getattr(config, "encoder_hidden_size", None) or width)
        elif name == "attention_mask":
            more[name] = torch.ones(BATCH, TOKENS, dtype=torch.long)
    return more


# pictures


def pictures(model: Any, takes: Mapping[str, Any], wanted: set[str]) -> Iterator[Batch]:
    config = _of_pictures(model.config)
    size = getattr(config, "image_size", None) or getattr(model.config, "image_size", None) or 32
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    if "pixel_values_videos" in wanted:
        frames = getattr(config, "frames_per_clip", None) or getattr(config, "num_frames", None) or 4
        size = getattr(config, "crop_size", None) or getattr(config, "image_size", None) or 32
        yield {"pixel_values_videos": torch.randn(BATCH, int(frames), 3, int(size), int(size))}
        return
    grid = next((name for name in ("image_grid_thw", "grid_thw") if name in takes), None)
    if grid is not None:
        time, patch = getattr(config, "temporal_patch_size", 1), config.patch_size
        into = "pixel_values" if "pixel_values" in takes else "hidden_states"
        for shape in ((channels * time * patch * patch,), (channels, patch, patch), (channels * patch * patch,)):
            yield {into: torch.randn(BATCH * 16, *shape), grid: torch.tensor([[1, 4, 4]] * BATCH)}
        return
    one = (channels, height, width)
    frames = getattr(config, "num_frames", None)
    shapes = [(frames, *one)] if frames else [one, (1, *one), (2, *one), (3, *one)]
    sizes = {"image_sizes": torch.tensor([[height, width]] * BATCH)} if "image_sizes" in takes else {}
    for shape, more in itertools.product(shapes, [{}, sizes] if sizes else [{}]):
        yield {"pixel_values": torch.randn(BATCH, *shape), **more}


def _of_pictures(config: Any) -> Any:
    names = ("vision_config", "backbone_config", "encoder_config", "image_config")
    return next((inner for name in names if (inner := getattr(config, name, None)) is not None), config)


def with_image_tokens(model: Any, batch: Batch) -> Batch:
    """Put one placeholder before the text for every picture feature of the model."""
    names = ("image_token_id", "image_token_index")
    place = next((token for name in names if isinstance(token := getattr(model.config, name, None), int)), None)
    if place is None or not hasattr(model, "get_image_features"):
        return batch
    picture = {n: v for n, v in batch.items() if n.startswith(("pixel", "image"))}
    takes = inspect.signature(model.get_image_features).parameters
    with torch.no_grad():
        found = model.get_image_features(**{n: v for n, v in picture.items() if n in takes})
    found = getattr(found, "pooler_output", found)
    found = found if isinstance(found, Tensor) else torch.cat([f.flatten(0, -2) for f in found])
    each = found.numel() // found.shape[-1] // BATCH
    ids = torch.cat([torch.full((BATCH, each), place), batch["input_ids"]], dim=1)
    more = {"mm_token_type_ids": (ids == place).long()} if "mm_token_type_ids" in _takes(model) else {}
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


# sounds


def sounds(config: Any, name: str, takes: Mapping[str, Any]) -> Iterator[Batch]:
    own = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
    own = config if isinstance(own, dict) else own
    mask = next((n for n in ("input_features_mask", "feature_attention_mask", "audio_mel_mask") if n in takes), None)
    for shape, length in _shapes_of_sounds(own, name):
        sound = {name: torch.randn(BATCH, *shape)}
        yield sound
        if mask is not None:
            yield {**sound, mask: torch.ones(BATCH, length, dtype=torch.long)}


def _shapes_of_sounds(config: Any, name: str) -> Iterator[tuple[tuple[int, ...], int]]:
    named = ["feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim"]
    named += ["input_feat_size", "n_mels", "mel_bins", "subsampling_num_mel_bins"]
    bins = [value for one in named if isinstance(value := getattr(config, one, None), int) and value > 1] or [16]
    length = 2 * (getattr(config, "max_source_positions", None) or 32)
    longest = getattr(config, "max_length", None)
    if name == "input_values":
        yield (2000,), 2000
        yield (1, 2000), 2000
        length = longest if isinstance(longest, int) and longest < 2000 else length
    for many in bins:
        if hasattr(config, "feature_projection_input_dim"):
            yield (length, many), length
        yield (many, length), length
        yield (length, many), length
    yield (128,), 128


def _takes(model: Any) -> Mapping[str, Any]:
    return inspect.signature(model.forward).parameters
