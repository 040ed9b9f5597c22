"""Whether what a model reads begins with BOS, and why: the tokenizer's habit, a GGUF header, or what was asked for.

The tokenizer that transformers makes of a GGUF file may drop what the header says of BOS (Gemma 3: `add_bos_token` is
true, and nothing is added), so the header decides where it speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import refuse_unknown_bos
from attnscope.trace.beginning import Beginning

_SAMPLE = "a"


def beginning_of(loaded: Loaded, asked: str = "auto") -> Beginning:
    """How the sequences of a text begin. `asked`: "yes" and "no" as said, "auto" as the model wants it."""
    refuse_unknown_bos(asked)
    token = bos_of(loaded)
    if token is None:
        if asked == "yes":
            raise RefusalError(f"{loaded.name} has no BOS token, so nothing can begin with it: leave --bos out.")
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
    """What batches that were made elsewhere begin with; None where they hold no token."""
    refuse_unknown_bos(asked)
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
    """The tokenizer's token, that of a GGUF header, or that of the configuration, if the vocabulary has it."""
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
    """What the tokenizer puts before a text."""
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
