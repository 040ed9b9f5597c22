"""One input for one model: a text, a picture, a sound, or a text with one of those.

read = reading_of(loaded, "photo.png")                         a picture, for classifiers and encoders of pictures
read = reading_of(loaded, ("photo.png", "a text"))             both, for models that read pictures and text
read = reading_of(loaded, "speech.wav")                        a sound; the decoder reads the text that the model writes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.data.formats import refuse_half_characters
from attnscope.data.medium import Medium, Picture, Sound, medium
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.one_text import Reading, Scene, on_its_device, reading
from attnscope.hf.loading.outputs import word
from attnscope.hf.loading.processing import HEARD, PIXELS, grid_of, picture_batch, sound_batch
from attnscope.hf.loading.quiet import quiet


def before_patches(model: Any, count: int) -> tuple[str, ...]:
    """Return names for the `count` tokens before the patches of a picture: [CLS] or a prefix, then registers."""
    config: Any = getattr(model, "config", None)
    vision = getattr(config, "vision_config", None) or config
    registers = getattr(vision, "num_register_tokens", 0) or 0
    plain = count - registers if 0 <= registers <= count else count
    names = ["[CLS]", "[distillation]"] if plain <= 2 else [f"[prefix {n}]" for n in range(plain)]
    return (*names[:plain], *(f"[register {n + 1}]" for n in range(count - plain)))


LONGEST = 128  # most tokens that a model writes for a sound
EMBEDDED = "image_embeddings"  # a picture after its encoder: channels, rows, columns
OBJECTS = "visual_feats"  # objects that a detector found in a picture
NOT_TIMED = "<|notimestamps|>"


def reading_of(
    loaded: Loaded, source: Any, bos: str = "auto", *, processor: Any | None = None, what: str = "Explanations"
) -> Reading:
    """Return an input (a text, a file, an array, a ready batch, or a pair) as a batch of one sequence.

    `what` names the task in refusals.
    """
    source = _token_ids(loaded, source)
    if isinstance(source, Tensor):
        source = source.detach().cpu().numpy()
    if isinstance(source, Mapping):
        return _with_scenes(loaded, reading(loaded, source, bos, what=what))
    sides = list(source) if isinstance(source, tuple) else [source]
    known = [(side, medium(side)) for side in sides]
    media = [side_medium for _, side_medium in known if side_medium is not None]
    texts = [side for side, side_medium in known if side_medium is None]
    if not media:
        if not loaded.reads_text:
            raise RefusalError(f"{loaded.name} ({loaded.class_name}) reads {_reads(loaded)}: give {_to_give(loaded)}.")
        return reading(loaded, source, bos, what=what)
    if len(media) > 1 or len(texts) > 1 or not all(isinstance(text, str) for text in texts):
        raise RefusalError(f"{what} take one picture or one sound, with or without a text: give only these.")
    return _of_medium(loaded, media[0], texts[0] if texts else None, processor)


def _token_ids(loaded: Loaded, source: Any) -> Any:
    """Turn a list or tensor of token ids into a batch if the model reads only text; return other sources unchanged."""
    if not loaded.reads_text or {PIXELS, *HEARD} & loaded.accepts:
        return source
    if isinstance(source, list) and source and all(type(number) is int for number in source):
        source = torch.tensor(source)
    if not isinstance(source, Tensor) or source.dtype not in (torch.int64, torch.int32):
        return source
    return {"input_ids": source[None]} if source.ndim == 1 else {"input_ids": source} if source.ndim == 2 else source


def _of_medium(loaded: Loaded, source: Medium, text: str | None, processor: Any | None) -> Reading:
    kind = "pictures" if isinstance(source, Picture) else "sounds"
    wanted = {PIXELS} if isinstance(source, Picture) else set(HEARD)
    if not wanted & loaded.accepts:
        raise RefusalError(
            f"{loaded.name} ({loaded.class_name}) reads {_reads(loaded)} and no {kind}: give {_to_give(loaded)}, or "
            f"choose a model that reads {kind}."
        )
    make: Any = picture_batch if isinstance(source, Picture) else sound_batch
    batch, scene, note = make(loaded, source, processor)
    notes = (note,) if note else ()
    placed = on_its_device(loaded, batch)
    if isinstance(source, Sound) and loaded.decoder_start is not None:
        ids, heard_note = _heard(loaded, placed, text)
        placed["decoder_input_ids"] = ids
        notes = (*notes, heard_note)
        opening = len(opening_of(loaded))
        return _with_words(loaded, Reading(placed, None, (), notes=notes, scenes=(scene,), opening=opening), ids)
    if text is None:
        if "input_ids" in loaded.accepts and loaded.kind == "multimodal":
            raise RefusalError(
                f"{loaded.name} ({loaded.class_name}) reads a picture and a text together: give both, "
                f'attnscope explain MODEL {scene.name} "a text".'
            )
        return Reading(placed, None, (), notes=notes, scenes=(scene,))
    if "input_ids" not in loaded.accepts:
        raise RefusalError(f"{loaded.name} ({loaded.class_name}) reads {_reads(loaded)} alone: leave the text out.")
    ids = _tokens(loaded, text)
    placed["input_ids"] = ids
    if "attention_mask" in loaded.accepts:
        placed["attention_mask"] = torch.ones_like(ids)
    return _with_words(loaded, Reading(placed, None, (), notes=notes, scenes=(scene,)), ids)


def _with_words(loaded: Loaded, read: Reading, ids: Tensor) -> Reading:
    return replace(read, ids=ids[0], words=tuple(word(loaded.tokenizer, int(i)) for i in ids[0]))


def _with_scenes(loaded: Loaded, read: Reading) -> Reading:
    """Add the pictures and sounds of a ready batch. Pages do not show them, because their colours are unknown."""
    scenes = []
    for name in (PIXELS, EMBEDDED, OBJECTS, *HEARD):
        tensor = read.batch.get(name)
        if isinstance(tensor, Tensor):
            kind: Any = "sound" if name in HEARD else "image"
            grid = grid_of(loaded, tensor) if name == PIXELS else None
            if name == EMBEDDED and tensor.ndim == 4:
                grid = int(tensor.shape[2]), int(tensor.shape[3])
            scenes.append(Scene(name, kind, name, grid=grid))
    return replace(read, scenes=tuple(scenes)) if scenes else read


def _tokens(loaded: Loaded, text: str) -> Tensor:
    """Return the tokens of the text that accompanies a picture, with special tokens."""
    refuse_half_characters(text, "The text")
    if loaded.tokenizer is None:
        if not text.replace(",", " ").split() or not all(w.isdecimal() for w in text.replace(",", " ").split()):
            raise RefusalError(
                f"{loaded.name} has no tokenizer, so it cannot read text: give token numbers instead ('5 17 3'), or in "
                "Python pass tokenizer=."
            )
        ids = [int(number) for number in text.replace(",", " ").split()]
    else:
        ids = list(loaded.tokenizer(text)["input_ids"])
    if not text.strip() or not ids:
        raise RefusalError("The text is empty: give at least one word.")
    if loaded.positions is not None and len(ids) > loaded.positions:
        raise RefusalError(
            f"The text has {len(ids)} tokens and {loaded.name} reads {loaded.positions} at most: shorten the text."
        )
    if loaded.vocab_size is not None and max(ids) >= loaded.vocab_size:
        raise RefusalError(
            f"The text has token {max(ids)}, but {loaded.name} knows only {loaded.vocab_size} tokens: give the "
            "tokenizer that belongs to the model."
        )
    return torch.tensor([ids], device=next(loaded.model.parameters()).device)


def _heard(loaded: Loaded, batch: dict[str, Tensor], text: str | None) -> tuple[Tensor, str]:
    """Return the text that the decoder reads with a sound: the given text, or the model's greedy output."""
    begin = opening_of(loaded)
    device = next(loaded.model.parameters()).device
    if text is not None:
        refuse_half_characters(text, "The text")
        if loaded.tokenizer is None:
            ids = [int(number) for number in text.replace(",", " ").split() if number.isdecimal()]
        else:
            ids = list(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        if not ids:
            raise RefusalError("The text of the sound is empty: give the spoken words, or leave it out.")
        return torch.tensor([[*begin, *ids]], device=device), "The decoder read the text that was given."
    model: Any = loaded.model
    end = getattr(model.config, "eos_token_id", None)
    ends = set(end) if isinstance(end, list | tuple) else {end}
    ids = list(begin)
    most = min(LONGEST, (loaded.positions or LONGEST) - 1)
    with evaluating(model), torch.no_grad(), quiet():
        encoded = model.get_encoder()(next(iter(batch.values())))
        while len(ids) < most:
            rows = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([ids], device=device)).logits
            token = int(rows[0, -1].argmax())
            if token in ends:
                break
            ids.append(token)
    written = len(ids) - len(begin)
    if not written:
        raise RefusalError(f"{loaded.name} hears no word in this sound: give the spoken text with it.")
    return torch.tensor([ids], device=device), f"The decoder read what the model itself wrote, {written} tokens."


def opening_of(loaded: Loaded) -> list[int]:
    """Return the decoder's tokens before the first word: the tokenizer's prefix, or start and "no timestamps"."""
    config: Any = loaded.model.config
    prefix = getattr(loaded.tokenizer, "prefix_tokens", None)
    if isinstance(prefix, list) and prefix:
        return [int(token) for token in prefix]
    untimed = getattr(getattr(loaded.model, "generation_config", None), "no_timestamps_token_id", None)
    if untimed is None and loaded.tokenizer is not None:
        untimed = loaded.tokenizer.get_vocab().get(NOT_TIMED)
    start = getattr(config, "decoder_start_token_id", None)
    begin = [loaded.decoder_start if start is None else start]
    return [int(token) for token in begin if token is not None] + ([int(untimed)] if untimed is not None else [])


def _reads(loaded: Loaded) -> str:
    """Return the kinds of input that a model reads, in words."""
    senses = []
    if PIXELS in loaded.accepts:
        senses.append("pictures")
    if set(HEARD) & loaded.accepts:
        senses.append("sounds")
    if loaded.reads_text or (loaded.kind == "multimodal" and "input_ids" in loaded.accepts):
        senses.append("text")
    return " and ".join(senses) or "the arguments of its forward"


def _to_give(loaded: Loaded) -> str:
    if loaded.reads_text:
        return "a text"
    if loaded.kind == "multimodal" and PIXELS in loaded.accepts:
        return "the file of a picture and a text"
    if PIXELS in loaded.accepts:
        return "the file of a picture"
    return "a WAV file" if set(HEARD) & loaded.accepts else "a batch of these, in Python"
