"""Tokens that stand for something else: pictures, sound or video among the words of a language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from attnscope.core.words import count

_NAMES = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def placeholder_tokens(model: nn.Module) -> dict[str, int]:
    """By sense, the token that stands for features of it; a language model without eyes and ears has none."""
    config = getattr(model, "config", None)
    found = {
        sense: next((t for name in names if isinstance(t := getattr(config, name, None), int)), None)
        for sense, names in _NAMES.items()
    }
    return {sense: token for sense, token in found.items() if token is not None}


def holds_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> bool:
    """Whether any token of the batches stands for something else than a word."""
    tokens = tuple(placeholder_tokens(model).values())
    ids = (inputs["input_ids"] for inputs in batches if "input_ids" in inputs)
    return bool(tokens) and any(bool(torch.isin(one, one.new_tensor(tokens)).any()) for one in ids)


def notes_on_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """How many tokens of the batches stand for pictures or sound, which most numbers of the language stack mix in."""
    ids = [inputs["input_ids"] for inputs in batches if "input_ids" in inputs]
    total = sum(one.numel() for one in ids)
    notes = []
    for sense, token in placeholder_tokens(model).items():
        held = sum(int((one == token).sum()) for one in ids)
        if held:
            notes.append(
                f"{held:,} of {count(total, 'token')} of the language stack stand for {sense} features: its numbers "
                "are over both kinds together, but for attention to media and the most received by kind, which tell "
                "them apart."
            )
    return tuple(notes)
