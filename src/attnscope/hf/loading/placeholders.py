"""Tokens that stand for something else: pictures, sound or video among the words of a language model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from attnscope.core.words import count

_NAMES = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def notes_on_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """How many tokens of the batches stand for pictures or sound, which every number of the language stack mixes in."""
    config = getattr(model, "config", None)
    ids = [inputs["input_ids"] for inputs in batches if "input_ids" in inputs]
    total = sum(one.numel() for one in ids)
    notes = []
    for sense, names in _NAMES.items():
        token = next((t for name in names if isinstance(t := getattr(config, name, None), int)), None)
        held = 0 if token is None else sum(int((one == token).sum()) for one in ids)
        if held:
            notes.append(
                f"{held:,} of {count(total, 'token')} of the language stack stand for {sense} features: its numbers "
                f"are over both kinds together, and attention between {sense} and text is not shown apart."
            )
    return tuple(notes)
