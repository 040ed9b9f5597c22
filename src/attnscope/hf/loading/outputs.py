"""Find out what the entries of an output stand for: tokens of a vocabulary, classes, or channels of a state."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.formats import refuse_half_characters
from attnscope.hf.loading.loaded import Loaded

Output = Literal["tokens", "classes", "states"]
_SPACES = ("▁", "Ġ")  # a space in the vocabularies of SentencePiece and byte-level tokenizers


@dataclass(frozen=True)
class Entries:
    """The last axis of an output. `token_axis`: whether there is a row for every token."""

    output: Output
    size: int
    token_axis: bool
    names: dict[int, str]
    tokenizer: Any | None

    def word(self, entry: int) -> str:
        if self.output == "tokens":
            return word(self.tokenizer, entry)
        return self.names.get(entry, str(entry))

    def number(self, asked: str | int) -> int:
        """Return the entry for a word or number; refuse unknown words, and words of several tokens."""
        if isinstance(asked, int):
            if not 0 <= asked < self.size:
                raise RefusalError(f"The output has entries 0 to {self.size - 1}, not {asked}: choose one of them.")
            return asked
        return self._token(asked) if self.output == "tokens" else self._class(asked)

    def _token(self, text: str) -> int:
        if self.tokenizer is None:
            if text.strip().isdecimal():
                return self.number(int(text))
            raise RefusalError(f"'{text}' cannot be looked up without a tokenizer: give the number of the token.")
        refuse_half_characters(text, "The target")
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
            # It may be a special token, or a word piece in the spelling of the vocabulary.
            raw = self.tokenizer.get_vocab().get(text)
            if raw is None:
                raise RefusalError(self._several(text, ids) + self._nearest(text))
            ids = [raw]
        if ids[0] >= self.size:
            raise RefusalError(f"'{text}' is token {ids[0]}, which the model cannot predict: choose another.")
        return int(ids[0])

    def _several(self, asked: str, ids: list[int]) -> str:
        if len(ids) > 1 and self.tokenizer is not None and self.tokenizer.unk_token_id not in ids:
            pieces = ", ".join(f"'{word(self.tokenizer, i)}'" for i in ids[:6]) + (", ..." if len(ids) > 6 else "")
            return (
                f"'{asked}' is {len(ids)} tokens ({pieces}) and the target must be a single one: choose one of these."
            )
        return f"'{asked}' is not in the vocabulary: choose another token."

    def _nearest(self, asked: str) -> str:
        assert self.tokenizer is not None
        spelt = {_spelt(token): None for token, i in self.tokenizer.get_vocab().items() if i < self.size}
        close = get_close_matches(asked, spelt, n=3, cutoff=0.6)
        return f" Nearest tokens: {', '.join(repr(token) for token in close)}." if close else ""

    def _class(self, asked: str) -> int:
        named = {name.lower(): entry for entry, name in self.names.items()}
        if asked.lower() in named:
            return named[asked.lower()]
        if asked.isdigit():
            return self.number(int(asked))
        known = ", ".join(f"{i} ({name})" for i, name in sorted(self.names.items())[:12])
        raise RefusalError(f"There is no class '{asked}': choose one of {known or f'0 to {self.size - 1}'}.")


def entries(loaded: Loaded, output: Tensor) -> Entries:
    """Return the entries of an output: a vocabulary, the labels of the configuration, or states."""
    model: Any = loaded.model
    size, token_axis = int(output.shape[-1]), output.ndim == 3
    config = getattr(model, "config", None)
    labels = {int(i): str(name) for i, name in (getattr(config, "id2label", None) or {}).items()}
    kind: Output = "states"
    if token_axis and _projects_to_vocabulary(model, size):
        kind = "tokens"
    elif size == len(labels) and (not token_axis or "Classification" in type(model).__name__):
        kind = "classes"
    return Entries(kind, size, token_axis, labels if kind == "classes" else {}, loaded.tokenizer)


def fills_masks(loaded: Loaded) -> bool:
    """Return whether this is a masked language model with its head."""
    ask = getattr(loaded.model, "get_output_embeddings", None)
    return loaded.kind == "masked" and callable(ask) and ask() is not None


def _projects_to_vocabulary(model: nn.Module, size: int) -> bool:
    ask = getattr(model, "get_output_embeddings", None)
    last = ask() if callable(ask) else None
    weight = getattr(last, "weight", None)
    return isinstance(weight, Tensor) and int(weight.shape[0]) == size


def word(tokenizer: Any | None, token: int) -> str:
    """Return a token as text with its leading space, or its raw name if it is only part of a character."""
    if tokenizer is None:
        return str(token)
    raw = tokenizer.convert_ids_to_tokens(int(token))
    if raw is None:
        return f"<{token}>"
    text = str(tokenizer.decode([int(token)]))
    if not text or "\ufffd" in text:
        return str(raw)
    return f" {text}" if str(raw).startswith(_SPACES) and not text.startswith(" ") else text


def _spelt(raw: str) -> str:
    for mark in _SPACES:
        raw = raw.replace(mark, " ")
    return raw


def also_with_space(tokenizer: Any | None, asked: str) -> int | None:
    """Return the token of the same word with a leading space, or None if there is no such token."""
    if tokenizer is None or asked.startswith(" "):
        return None
    plain = list(tokenizer(asked, add_special_tokens=False)["input_ids"])
    spaced = list(tokenizer(f" {asked}", add_special_tokens=False)["input_ids"])
    return int(spaced[0]) if len(spaced) == 1 and spaced != plain else None


def mask_token_of(tokenizer: Any | None) -> int | None:
    token = getattr(tokenizer, "mask_token_id", None)
    return token if isinstance(token, int) else None
