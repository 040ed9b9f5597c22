"""One text for one model: a batch of a single sequence, and its tokens as words.

    read = reading(load("pocket"), "The dog saw the dog")
    read.batch, read.words

An encoder-decoder also takes a pair of source and target. Given only the source, it writes the target itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.batches import batches
from attnscope.data.formats import refuse_half_characters
from attnscope.data.sequences import target_ids
from attnscope.data.windows import Beginning, Window, Windows
from attnscope.hf.anatomy.anatomy import marks_padding
from attnscope.hf.intercepting.restoring import outside_inference
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.outputs import Entries, also_with_space, mask_token_of, word
from attnscope.hf.loading.targets import LONGEST, beginning_of, beginning_of_ready, with_targets


@dataclass(frozen=True)
class Reading:
    """A batch of one sequence. `ids` are the tokens that the chosen stack reads, or None for pictures and sounds."""

    batch: dict[str, Any]
    ids: Int[Tensor, " token"] | None
    words: tuple[str, ...]
    beginning: Beginning | None = None  # with or without BOS; None if unknown
    notes: tuple[str, ...] = ()  # notes, for example on the text that a decoder read
    scenes: tuple[Scene, ...] = ()  # the pictures and sounds
    continued: tuple[int, ...] = ()  # tokens that follow; the model reads all but the last
    opening: int = 1  # number of decoder tokens before the first one that it wrote

    def bos_note(self) -> dict[str, Any]:
        """Return a note for the provenance: whether the sequence begins with BOS, and why."""
        return {} if self.beginning is None else {"bos": self.beginning.to_json()}

    def blank(self) -> dict[str, Any]:
        """Return the same batch with blank pictures (the mean colour) and sounds (the lowest value in the sound)."""
        empty = {scene.argument: scene.blank(self.batch[scene.argument]) for scene in self.scenes}
        return {**self.batch, **empty}


@dataclass(frozen=True)
class Scene:
    """A picture or a sound: the argument of forward that takes it, and how it is shown."""

    argument: str
    kind: Literal["image", "sound"]
    name: str  # name of the file
    grid: tuple[int, int] | None = None  # rows and columns of patches
    shown: str | None = None  # the picture as the model reads it, as a data: address
    seconds: float | None = None  # how long the sound is
    window: float | None = None  # seconds that the model's tokens span, with the silence after the sound

    def blank(self, given: Tensor) -> Tensor:
        return torch.zeros_like(given) if self.kind == "image" else torch.full_like(given, float(given.min()))


def reading(
    loaded: Loaded, text: str | tuple[str, str] | Mapping[str, Any], bos: str = "auto", *, what: str = "Paths"
) -> Reading:
    """Return `text` (or a pair of source and target) as tokens, with BOS as `bos` says, or a ready batch unchanged.

    `what` names the task in refusals.
    """
    notes: tuple[str, ...] = ()
    pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(side, str) for side in text)
    if not pair and not isinstance(text, str | Mapping):
        raise RefusalError(
            f"{what} take one text, not a {type(text).__name__}: give a string, or a batch such as "
            '{"input_ids": ids}.'
        )
    if isinstance(text, Mapping):
        batch = dict(text)
        for name, value in batch.items():
            if name.endswith("input_ids") and isinstance(value, Tensor) and value.ndim > 1 and not value.shape[1]:
                raise RefusalError(f"The batch holds no tokens ({name} is empty): give at least two tokens.")
        beginning = beginning_of_ready(loaded, [batch], bos)
        if "decoder_input_ids" in batch:
            notes = ("The decoder read the decoder_input_ids that were given.",)
    else:
        source, target = (text, None) if isinstance(text, str) else text
        batch, beginning, notes = _batch(loaded, source, target, bos)
    placed = on_its_device(loaded, batch)
    # Pictures may be given as rows of patches, so only the rows of tokens are counted if there are tokens.
    counted = [t for name, t in placed.items() if name.endswith("input_ids")] or list(placed.values())
    if not counted or any(tensor.ndim == 0 or tensor.shape[0] != 1 for tensor in counted):
        raise RefusalError(f"{what} take one sequence: give a text, or a batch of tensors with a single row.")
    padded = [name for name, tensor in placed.items() if marks_padding(name, tensor) and not bool(tensor.all())]
    if padded:
        raise RefusalError(f"{padded[0]} marks some tokens as padding: give only the tokens that are not padding.")
    ids = placed.get("decoder_input_ids", placed.get("input_ids"))
    row = None if ids is None else ids[0]
    if row is not None and loaded.positions is not None and len(row) > loaded.positions:
        raise RefusalError(_too_long(loaded, len(row)))
    words = () if row is None else tuple(word(loaded.tokenizer, int(i)) for i in row)
    return Reading({**batch, **placed}, row, words, beginning, notes)


def on_its_device(loaded: Loaded, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Move a batch to the device of the model, and floating-point tensors to its precision."""
    weight = next(loaded.model.parameters())
    return {
        name: outside_inference(value).to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in batch.items()
        if isinstance(value, Tensor)
    }


def _batch(
    loaded: Loaded, text: str, target: str | None, bos: str
) -> tuple[dict[str, Any], Beginning, tuple[str, ...]]:
    if not loaded.reads_text:
        raise RefusalError(
            f"{loaded.name} ({loaded.class_name}) cannot read text alone: in Python, give a batch with the arguments "
            'of its forward, such as {"pixel_values": image}.'
        )
    refuse_half_characters(text, "The text")
    ids = _numbers(loaded, text) if loaded.tokenizer is None else tuple(loaded.tokenizer(text)["input_ids"])
    if not text.strip() or not ids:
        raise RefusalError("The text is empty: give at least two tokens.")
    beginning = beginning_of(loaded, bos)
    if loaded.tokenizer is None and bos == "auto":
        beginning = replace(beginning, begins=ids[0] == beginning.token, why="the numbers of the tokens were given")
    ids = beginning(ids)
    if loaded.positions is not None and len(ids) > loaded.positions:
        raise RefusalError(_too_long(loaded, len(ids)))
    written = _written(loaded, target)
    largest = max(*ids, *(written or ids))
    if loaded.vocab_size is not None and largest >= loaded.vocab_size:
        beyond = f"token {largest}, but {loaded.name} knows only {loaded.vocab_size} tokens"
        if loaded.tokenizer is None:
            raise RefusalError(f"The text has {beyond}: give smaller numbers.")
        raise RefusalError(f"The tokenizer gives {beyond}: give the tokenizer that belongs to the model.")
    window = Windows("text", "", (Window(ids),), loaded.positions or LONGEST, None if written is None else (written,))
    notes: tuple[str, ...] = ()
    if loaded.decoder_start is not None:
        window, target_note = with_targets(loaded, window)
        notes = (target_note,)
    made = next(iter(batches(window, decoder_start=loaded.decoder_start, accepts=loaded.accepts)))
    return made.inputs, beginning, notes


def _written(loaded: Loaded, target: str | None) -> tuple[int, ...] | None:
    """Return the tokens of a target; refuse a target if there is no decoder."""
    if target is None:
        return None
    if loaded.decoder_start is None:
        raise RefusalError(f"{loaded.name} ({loaded.class_name}) has no decoder to read a target: give one text.")
    refuse_half_characters(target, "The target text")
    if loaded.tokenizer is not None and target.strip():
        return target_ids(loaded.tokenizer, target)
    ids = _numbers(loaded, target)
    if not ids:
        raise RefusalError("The target text is empty: give a target, or the source alone.")
    return ids


def _too_long(loaded: Loaded, tokens: int) -> str:
    return f"The text has {tokens} tokens and {loaded.name} reads {loaded.positions} at most: shorten the text."


def _numbers(loaded: Loaded, text: str) -> tuple[int, ...]:
    """Read token numbers from a text, for models without a tokenizer."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() for word in words):
        raise RefusalError(
            f"{loaded.name} has no tokenizer, so it cannot read text: give token numbers instead ('5 17 3'), "
            "add tokenizer.json to its folder, or in Python pass tokenizer=."
        )
    return tuple(map(int, words))


def asked(name: str, given: Any) -> str | int | None:
    """Return a requested token or class (`name` is its role) as text or a number, or None for the default."""
    if given is None or isinstance(given, str):
        return given
    try:
        return _number(given)
    except TypeError:
        raise RefusalError(
            f"The {name} is a single token or class, not a {type(given).__name__}: give text or a number."
        ) from None


def whole_position(position: Any) -> int | None:
    """Return a requested position as an int, or None for the default."""
    try:
        return None if position is None else _number(position)
    except TypeError:
        raise RefusalError(f"The position is the number of a token, not '{position}': -1 is the last one.") from None


def _number(given: Any) -> int:
    """Return a whole number as an int; raise TypeError for other values, and for True and False."""
    if isinstance(given, bool):
        raise TypeError
    return index(given)


def where_said(loaded: Loaded, read: Reading, place: int | None) -> str:
    """Return words for the token at which the model answers."""
    if place is None:
        return ""
    if loaded.kind in ("causal", "encoder-decoder") or loaded.decoder_start is not None:
        return "after the last token" if place == len(read.words) - 1 else f"after token {place}"
    return f"at token {place}"


def place_of(output: Tensor, read: Reading, found: Entries, position: int | None) -> int | None:
    """Return the token whose output is explained; the default is the first mask, or else the last token."""
    if not found.token_axis:
        if position is not None:
            raise RefusalError("The model gives one answer for the whole text: leave `position=` out.")
        return None
    count = int(output.shape[1])
    if position is None:
        mask = mask_token_of(found.tokenizer)
        hidden = [] if read.ids is None or mask is None else (read.ids == mask).nonzero().flatten().tolist()
        return int(hidden[0]) if hidden else count - 1
    if not -count <= position < count:
        raise RefusalError(f"The text has {count} tokens and no position {position}: choose one from 0 to {count - 1}.")
    return position % count


def unmasked(loaded: Loaded, found: Entries, read: Reading, position: int | None) -> tuple[str, ...]:
    """Return a note if a masked model reads the very token that it is asked to predict."""
    mask = mask_token_of(found.tokenizer)
    if loaded.kind != "masked" or found.output != "tokens" or position is not None or mask is None or read.ids is None:
        return ()
    if bool((read.ids == mask).any()):
        return ()
    return (
        f"No token is masked, so the prediction for the last one, '{read.words[-1]}', is explained: put "
        f"{word(found.tokenizer, mask)} into the text, or choose a token with --position.",
    )


def spaced(found: Entries, target: str | int | None, row: Tensor) -> tuple[str, ...]:
    """Return a note if the same word with a leading space, which is another token, is more likely."""
    if not isinstance(target, str) or found.output != "tokens":
        return ()
    other = also_with_space(found.tokenizer, target)
    if other is None or other >= found.size or row[other] <= row[found.number(target)]:
        return ()
    return (
        f"'{found.word(other)}' with a leading space is another token, and more likely here: pass "
        f"--target '{found.word(other)}' if you mean it.",
    )
