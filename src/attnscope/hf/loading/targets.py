"""What the decoder of an encoder-decoder reads: the target of a pair, what the model writes, or the source again.

In use a decoder reads what it has written so far. Shown the source (the other language, the text to be summed up) its
cross-attention and its streams are those of a state in which nobody runs it. So where only sources are given, the model
writes first, greedily and not long, and then reads that; where it cannot write, the source is read again, and this is
said.
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

# Whether sequences begin with BOS: the caller decides, then the GGUF header, then the tokenizer. The tokenizer that
# transformers makes of a GGUF file may drop the flag of the header (Gemma 3: `add_bos_token` is true, and nothing is
# added), so the header comes first.

_SAMPLE = "a"


def beginning_of(loaded: Loaded, asked: str = "auto") -> Beginning:
    """Return whether sequences begin with BOS; "auto" does as the tokenizer or the GGUF header wants it."""
    one_of(asked, BOS, "bos")
    token = bos_of(loaded)
    if token is None:
        if asked == "yes":
            raise RefusalError(f"{loaded.name} has no BOS token, so nothing can begin with it: leave `bos=` out.")
        return Beginning(False, None, _none(loaded))
    word = _word(loaded, token)
    if asked != "auto":
        return Beginning(asked == "yes", token, f"--bos {asked}", word)
    if loaded.header.adds_bos is not None:
        adds = loaded.header.adds_bos
        return Beginning(adds, token, f"the GGUF header asks for {'it' if adds else 'none'}", word)
    if loaded.tokenizer is None:
        return Beginning(True, token, "random tokens are put behind it", word)
    if getattr(loaded.tokenizer, "bos_token_id", None) is None:
        return Beginning(False, token, _none(loaded), word)
    adds = _opening(loaded.tokenizer)[:1] == [token]
    return Beginning(adds, token, f"the tokenizer {'adds it' if adds else 'does not add it'}", word)


def beginning_of_ready(loaded: Loaded, ready: Iterable[Mapping[str, Any]], asked: str = "auto") -> Beginning | None:
    """Return whether ready batches begin with BOS, or None if they hold no tokens."""
    one_of(asked, BOS, "bos")
    if asked != "auto":
        raise RefusalError(
            "Batches that are ready are read as they are: leave bos out, and begin their sequences as you want them."
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


# Placeholder tokens: positions of pictures, sound or video among the words of a language model.

_NAMES = {
    "image": ("image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_token_id", "audio_token_index"),
}


def placeholder_tokens(model: nn.Module) -> dict[str, int]:
    """Return the placeholder token of each medium; empty for a model that reads only text."""
    config = getattr(model, "config", None)
    found = {
        sense: next((t for name in names if isinstance(t := getattr(config, name, None), int)), None)
        for sense, names in _NAMES.items()
    }
    return {sense: token for sense, token in found.items() if token is not None}


def holds_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> bool:
    """Return whether the batches hold placeholder tokens."""
    tokens = tuple(placeholder_tokens(model).values())
    ids = (inputs["input_ids"] for inputs in batches if "input_ids" in inputs)
    return bool(tokens) and any(bool(torch.isin(one, one.new_tensor(tokens)).any()) for one in ids)


def notes_on_placeholders(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> tuple[str, ...]:
    """Return a note with the share of placeholder tokens: most numbers of the language stack include them."""
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


LONGEST = 64  # tokens that a model writes, at most: as many steps for every batch
_SHORTEST = 2
_OF_PAIRS = "The decoder read the targets of the pairs, one token behind."


def with_targets(loaded: Loaded, sequences: Windows, batch_size: int = 8, seed: int = 0) -> tuple[Windows, str]:
    """Return the sequences with targets that the decoder writes, and a note about them."""
    if sequences.targets is not None:
        return sequences, _OF_PAIRS
    why = _why_not(loaded)
    if why is None:
        longest = min(LONGEST, sequences.max_tokens)
        try:
            written = _written(loaded, sequences, longest, batch_size, seed)
            said = (
                "The decoder read what the model itself writes for each text, one token behind: greedy, at most "
                f"{longest} tokens."
            )
            return replace(sequences, targets=written), said
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            why = f"{loaded.class_name} does not write for this text ({type(error).__name__})"
    return sequences, (
        f"The decoder read the source again, one token behind, since {why}: what it does with a target of its own may "
        "be something else. Give pairs of source and target for that."
    )


def _why_not(loaded: Loaded) -> str | None:
    """Return why the model cannot write a target, or None if it can."""
    can = getattr(loaded.model, "can_generate", None)
    if not callable(can) or not can():
        return f"{loaded.class_name} writes no text"
    if loaded.provenance.get("weights") == "random":
        return "random weights write nothing of meaning"
    if loaded.tokenizer is None:
        return "the source is random tokens"
    return None


def _written(
    loaded: Loaded, sequences: Windows, longest: int, batch_size: int, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Greedy, so that a seed decides nothing unless a model draws by itself. No inference mode: tensors that a model
    keeps must stay usable in training."""
    model: Any = loaded.model
    place = next(model.parameters()).device
    found: dict[int, tuple[int, ...]] = {}
    with evaluating(model), quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for batch in batches(sequences, batch_size=batch_size, pad=loaded.pad, accepts=loaded.accepts):
            assert batch.mask is not None
            rows = model.generate(
                input_ids=batch.inputs["input_ids"].to(place),
                attention_mask=batch.mask.long().to(place),
                decoder_start_token_id=loaded.decoder_start,
                do_sample=False,
                num_beams=1,
                min_new_tokens=_SHORTEST,
                max_new_tokens=max(longest, _SHORTEST),
            )
            ends = _ends(model)
            found |= {n: _until_the_end(row[1:], ends) for n, row in zip(batch.samples, rows, strict=True)}
    return tuple(found[number] for number in range(len(sequences)))


def _ends(model: Any) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of a model."""
    end = getattr(model.generation_config, "eos_token_id", None)
    return tuple(end) if isinstance(end, Sequence) else () if end is None else (int(end),)


def _until_the_end(row: Int[Tensor, " token"], ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return the written tokens up to the end token; padding follows it."""
    ids = tuple(int(token) for token in row)
    done = next((place for place, token in enumerate(ids) if token in ends and place >= _SHORTEST - 1), len(ids) - 1)
    return ids[: done + 1]
