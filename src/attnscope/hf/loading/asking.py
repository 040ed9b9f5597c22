"""What is asked of an output: which entry, at which token, and what should be said about the choice."""

from __future__ import annotations

from operator import index
from typing import Any

from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import Entries, also_with_space, mask_token_of, word


def asked(name: str, given: Any) -> str | int | None:
    if given is None or isinstance(given, str):
        return given
    try:
        return _number(given)
    except TypeError:
        raise RefusalError(
            f"The {name} is one token or class, not a {type(given).__name__}: give text or a number."
        ) from None


def whole_position(position: Any) -> int | None:
    """The number of a token, or None for the usual one."""
    try:
        return None if position is None else _number(position)
    except TypeError:
        raise RefusalError(f"The position is the number of a token, not '{position}': -1 is the last one.") from None


def _number(given: Any) -> int:
    """A whole number; True is one in Python and never meant as one here."""
    if isinstance(given, bool):
        raise TypeError
    return index(given)


def where_said(loaded: Loaded, read: Reading, place: int | None) -> str:
    """Where the model says it, in words."""
    if place is None:
        return ""
    if loaded.kind in ("causal", "encoder-decoder") or loaded.decoder_start is not None:
        return "after the last token" if place == len(read.words) - 1 else f"after token {place}"
    return f"at token {place}"


def place_of(output: Tensor, read: Reading, found: Entries, position: int | None) -> int | None:
    if not found.token_axis:
        if position is not None:
            raise RefusalError("The model gives one answer for the whole text: leave --position out.")
        return None
    count = int(output.shape[1])
    if position is None:
        mask = mask_token_of(found.tokenizer)
        hidden = [] if read.ids is None or mask is None else (read.ids == mask).nonzero().flatten().tolist()
        return int(hidden[0]) if hidden else count - 1
    if not -count <= position < count:
        raise RefusalError(
            f"The text has {count} tokens, and position {position} is not among them: choose one from 0 to {count - 1}."
        )
    return position % count


def unmasked(loaded: Loaded, found: Entries, read: Reading, position: int | None) -> tuple[str, ...]:
    """A masked model that is shown every token says little where nothing is hidden."""
    mask = mask_token_of(found.tokenizer)
    if loaded.kind != "masked" or found.output != "tokens" or position is not None or mask is None or read.ids is None:
        return ()
    if bool((read.ids == mask).any()):
        return ()
    return (
        f"No token is masked, so the model is asked at the last one, '{read.words[-1]}': put "
        f"{word(found.tokenizer, mask)} into the text, or choose a token with --position.",
    )


def spaced(found: Entries, target: str | int | None, row: Tensor) -> tuple[str, ...]:
    """A word typed without the space it has in running text is another token: say so where that one is likelier."""
    if not isinstance(target, str) or found.output != "tokens":
        return ()
    other = also_with_space(found.tokenizer, target)
    if other is None or other >= found.size or row[other] <= row[found.number(target)]:
        return ()
    return (
        f"'{found.word(other)}' with a space before it is another token, and a likelier one here: ask for "
        f"--target '{found.word(other)}' if you mean it.",
    )
