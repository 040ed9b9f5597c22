"""Choose the first token of sequences (BOS), and the text that a decoder reads.

In normal use the decoder of an encoder-decoder reads its own output, so measuring it on the source text would not be
realistic. It reads the target of a pair if there is one. Otherwise the model first writes a short target, greedily, and
then reads that. If the model cannot write, its decoder reads the source, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError, one_of
from attnscope.core.words import count
from attnscope.data.batches import batches
from attnscope.data.windows import Beginning, Windows
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.loading.loaded import Loaded
from attnscope.hf.loading.options import BOS
from attnscope.hf.loading.quiet import quiet

# Whether sequences begin with BOS is decided by the caller, then by the GGUF header, then by the tokenizer. The header
# goes before the tokenizer, because transformers may drop its flag (for Gemma 3 `add_bos_token` is true, and the
# tokenizer adds nothing).

_SAMPLE = "a"


def beginning_of(loaded: Loaded, bos: str = "auto") -> Beginning:
    """Return whether sequences begin with BOS; "auto" follows the GGUF header or the tokenizer."""
    one_of(bos, BOS, "bos")
    token = bos_of(loaded)
    if token is None:
        if bos == "yes":
            raise RefusalError(f"{loaded.name} has no BOS token: leave `bos=` out.")
        return Beginning(False, None, _none(loaded))
    word = _word(loaded, token)
    if bos != "auto":
        return Beginning(bos == "yes", token, f"--bos {bos}", word)
    if loaded.header.adds_bos is not None:
        adds = loaded.header.adds_bos
        return Beginning(adds, token, f"the GGUF header asks for {'it' if adds else 'none'}", word)
    if loaded.tokenizer is None:
        return Beginning(True, token, "random tokens are put behind it", word)
    if getattr(loaded.tokenizer, "bos_token_id", None) is None:
        return Beginning(False, token, _none(loaded), word)
    adds = _opening(loaded.tokenizer)[:1] == [token]
    return Beginning(adds, token, f"the tokenizer {'adds it' if adds else 'does not add it'}", word)


def beginning_of_ready(loaded: Loaded, ready: Iterable[Mapping[str, Any]], bos: str = "auto") -> Beginning | None:
    """Return whether ready batches begin with BOS, or None if they hold no tokens."""
    one_of(bos, BOS, "bos")
    if bos != "auto":
        raise RefusalError(
            "Ready batches are not changed, so `bos=` has no effect: leave it out, and put BOS into the batches."
        )
    rows = [row for inputs in ready for row in _first_tokens(inputs)]
    if not rows:
        return None
    token = bos_of(loaded)
    if token is None:
        return Beginning(False, None, _none(loaded))
    begins = [row == token for row in rows]
    why = "the batches were given ready" if all(begins) or not any(begins) else "only some of the ready sequences do"
    return Beginning(all(begins), token, why, _word(loaded, token))


def bos_of(loaded: Loaded) -> int | None:
    """Return the BOS token of the tokenizer, the GGUF header or the configuration, if the vocabulary has it."""
    for token in (getattr(loaded.tokenizer, "bos_token_id", None), loaded.header.bos, loaded.bos):
        if isinstance(token, int) and (loaded.vocab_size is None or 0 <= token < loaded.vocab_size):
            return token
    return None


def _none(loaded: Loaded) -> str:
    if loaded.tokenizer is None:
        return "the model has none"
    opening = _opening(loaded.tokenizer)
    first = _word(loaded, opening[0]) if opening else None
    return "the tokenizer has none" + (f", and begins with {first}" if first else "")


def _opening(tokenizer: Any) -> list[int]:
    """Return the tokens that the tokenizer puts before a text."""
    bare, dressed = (list(tokenizer(_SAMPLE, add_special_tokens=add)["input_ids"]) for add in (False, True))
    if not bare:
        return dressed
    for before in range(len(dressed) - len(bare) + 1):
        if dressed[before : before + len(bare)] == bare:
            return dressed[:before]
    return []


def _word(loaded: Loaded, token: int) -> str | None:
    name = getattr(loaded.tokenizer, "convert_ids_to_tokens", None)
    return str(name(token)) if callable(name) else None


def _first_tokens(inputs: Mapping[str, Any]) -> list[int]:
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        return []
    places = [0] * len(ids)
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        places = mask.bool().int().argmax(dim=1).tolist()
    return [int(row[place]) for row, place in zip(ids, places, strict=True)]


# Placeholder tokens mark the positions of pictures, sound or video in the text of a language model.
_NAMES = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def placeholder_tokens(model: nn.Module) -> dict[str, int]:
    """Return the placeholder token of each medium; empty for a model that reads only text."""
    config = getattr(model, "config", None)
    tokens = {
        sense: next((t for name in names if isinstance(t := getattr(config, name, None), int)), None)
        for sense, names in _NAMES.items()
    }
    return {sense: token for sense, token in tokens.items() if token is not None}


def holds_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> bool:
    """Return whether the batches hold placeholder tokens."""
    tokens = tuple(placeholder_tokens(model).values())
    ids = (inputs["input_ids"] for inputs in batches if "input_ids" in inputs)
    return bool(tokens) and any(bool(torch.isin(row, row.new_tensor(tokens)).any()) for row in ids)


def notes_on_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """Return a note on the share of placeholder tokens. Most measures of the language stack do not separate them."""
    ids = [inputs["input_ids"] for inputs in batches if "input_ids" in inputs]
    total = sum(row.numel() for row in ids)
    notes = []
    for sense, token in placeholder_tokens(model).items():
        held = sum(int((row == token).sum()) for row in ids)
        if held:
            notes.append(
                f"{held:,} of {count(total, 'token')} of the language stack stand for {sense} features: its numbers "
                "cover both kinds together, except attention to media and the most received by kind, which separate "
                "them."
            )
    return tuple(notes)


LONGEST = 64  # most tokens that a model writes; every batch takes as many steps
_SHORTEST = 2
_OF_PAIRS = "The decoder read the targets of the pairs, shifted by one token."


def with_targets(loaded: Loaded, sequences: Windows, batch_size: int = 8, seed: int = 0) -> tuple[Windows, str]:
    """Return the sequences with targets that the decoder writes, and a note about them."""
    if sequences.targets is not None:
        return sequences, _OF_PAIRS
    why = _why_not(loaded)
    if why is None:
        longest = min(LONGEST, sequences.max_tokens)
        try:
            written = _written(loaded, sequences, longest, batch_size, seed)
            note = (
                "The decoder read the output of the model for each text (greedy, at most "
                f"{longest} tokens), shifted by one token."
            )
            return replace(sequences, targets=written), note
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            why = f"{loaded.class_name} fails to generate for this text ({type(error).__name__})"
    return sequences, (
        f"The decoder read the source, shifted by one token, because {why}: its numbers may differ on real targets. "
        "Give pairs of source and target to measure those."
    )


def _why_not(loaded: Loaded) -> str | None:
    """Return why the model cannot write a target, or None if it can."""
    can = getattr(loaded.model, "can_generate", None)
    if not callable(can) or not can():
        return f"{loaded.class_name} cannot generate text"
    if loaded.provenance.get("weights") == "random":
        return "random weights generate nothing meaningful"
    if loaded.tokenizer is None:
        return "the source is random tokens"
    return None


def _written(
    loaded: Loaded, sequences: Windows, longest: int, batch_size: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Return greedy outputs. The seed matters only if the model itself draws random numbers.

    No inference mode: tensors that the model caches must stay usable in training.
    """
    model: Any = loaded.model
    device = next(model.parameters()).device
    targets: dict[int, tuple[int, ...]] = {}
    with evaluating(model), quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches(sequences, batch_size=batch_size, pad=loaded.pad, accepts=loaded.accepts):
            assert batch.mask is not None
            rows = model.generate(
                input_ids=batch.inputs["input_ids"].to(device),
                attention_mask=batch.mask.long().to(device),
                decoder_start_token_id=loaded.decoder_start,
                do_sample=False,
                num_beams=1,
                min_new_tokens=_SHORTEST,
                max_new_tokens=max(longest, _SHORTEST),
            )
            ends = _ends(model)
            targets |= {n: _until_the_end(row[1:], ends) for n, row in zip(batch.samples, rows, strict=True)}
    return tuple(targets[number] for number in range(len(sequences)))


def _ends(model: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of a model."""
    end = getattr(model.generation_config, "eos_token_id", None)
    return tuple(end) if isinstance(end, Sequence) else () if end is None else (int(end),)


def _until_the_end(row: Int[Tensor, " token"], ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens up to the end token, without the padding after it."""
    ids = tuple(int(token) for token in row)
    done = next(
        (position for position, token in enumerate(ids) if token in ends and position >= _SHORTEST - 1), len(ids) - 1
    )
    return ids[: done + 1]
