"""Choose what to put in the place of a word: words of the same kind that are similar, or likely in its place.

Deleting a word would shift all later positions, and a neutral token makes a text that nobody would write. Two sources
of replacements keep the text a text:

    nearest     words with similar vectors in the model's own embedding table: 'France' becomes 'Spain'. Vectors are
                compared by their cosine, without their mean.
    likeliest   words that the model itself expects there, after the tokens before it: 'man' becomes 'government'

Nearest words alone are often inflections, and all of one gender or number, so both sources take turns.

Same kind: with or without a leading space, letters or digits or signs, capitalised or not. A word of several tokens is
replaced by a word of as many tokens from the embedded book, so that no position moves; if the book has none, piece by
piece.

Models that do not predict their text expect nothing, and the nearest words are often synonyms, which change no class.
There, those of the NEIGHBOURS nearest words come first for which the gradient promises the largest fall of the answer:

    (vector of the replacement - vector of the word) . gradient of the answer at the word    as low as possible

The promise only chooses; the model decides. For MiniLM with a sentiment head, the nearest words name the cause in 2 of
21 texts, and words chosen by the gradient in 21. For language models the gradient is the worse choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.explain.tried import PIECE, joined
from attnscope.data.read import read
from attnscope.hf.loading.outputs import word

SPACES = ("Ġ", "▁", " ")  # how vocabularies write a leading space
NEIGHBOURS = 64  # words among which a gradient chooses
FIRST_LOOKED_AT = 64  # nearest tokens among which a replacement is looked for first

Kind = tuple[bool, str]


def words_of(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return begin and end of every word, from tokens as text: ' Mad', 'rid' is one word.

    In a text with leading spaces, a token without one continues a word if it and the token before it consist of
    letters and digits. A token that is marked as a piece (##ing) continues a word too. Every other token begins one.
    """
    spaced = any(token[:1].isspace() for token in tokens[1:])
    spans: list[tuple[int, int]] = []
    for place, token in enumerate(tokens):
        continues = token.startswith(PIECE) or (spaced and token.isalnum() and tokens[place - 1].strip().isalnum())
        if place and continues:
            spans[-1] = spans[-1][0], place + 1
        else:
            spans.append((place, place + 1))
    return spans


def kind_of(token: str) -> Kind:
    """Return whether a token of a vocabulary has a leading space, and what it consists of."""
    spaced = token.startswith(SPACES)
    text = token.removeprefix(PIECE).lstrip("".join(SPACES))
    if not text.isascii() or not text:
        return spaced, "other"
    if text.isdigit():
        return spaced, "digits"
    if not text.isalpha():
        return spaced, "signs" if not any(letter.isalnum() for letter in text) else "mixed"
    return spaced or token.startswith(PIECE), "capitalised" if text[0].isupper() else "lower"


@dataclass(frozen=True)
class Vocabulary:
    """The embedding table of one input, with the text of its tokens (none without a tokenizer)."""

    table: nn.Embedding
    tokenizer: Any | None

    @cached_property
    def vectors(self) -> Float[Tensor, "token width"]:
        return self.table.weight.detach().float().cpu()

    @cached_property
    def mean(self) -> Float[Tensor, " width"]:
        return self.vectors.mean(0)

    @cached_property
    def lengths(self) -> Float[Tensor, " token"]:
        """|v - m| for every token's vector v and their mean m, from |v|^2 - 2 v.m + |m|^2: no copy of the table."""
        squared: Tensor = self.vectors.norm(dim=-1).square() - 2 * (self.vectors @ self.mean) + self.mean.square().sum()
        return squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()

    @cached_property
    def specials(self) -> frozenset[int]:
        return frozenset(() if self.tokenizer is None else self.tokenizer.all_special_ids)

    def near(self, ids: Int[Tensor, " *shape"]) -> Float[Tensor, " *shape width"]:
        """Return the vectors of tokens without the mean of all, of length 1."""
        return nn.functional.normalize(self.vectors[ids] - self.mean, dim=-1)

    def text(self, token: int) -> str:
        """Return a token as the vocabulary writes it; empty without a tokenizer, or beyond it."""
        known = 0 if self.tokenizer is None else len(self.tokenizer)
        return str(self.tokenizer.convert_ids_to_tokens(token)) if self.tokenizer and token < known else ""

    def kind(self, token: int) -> Kind | None:
        """Return the kind of a token. Special tokens, and tokens beyond the tokenizer, have none."""
        if self.tokenizer is None:
            return False, "other"
        text = self.text(token)
        return None if token in self.specials or not text else kind_of(text)

    def special(self, token: int) -> bool:
        return self.kind(token) is None

    def spelt(self, ids: Sequence[int]) -> str:
        return joined([word(self.tokenizer, token) for token in ids])

    def nearest(
        self, ids: Sequence[int], most: int, gradient: Float[Tensor, "token width"] | None = None
    ) -> list[tuple[int, ...]]:
        """Return up to `most` replacements of a word, each of as many tokens, nearest first.

        With a `gradient` (of the answer, at the vectors of the word) the largest promised fall comes first.
        """
        pool_size = most if gradient is None else NEIGHBOURS
        if len(ids) > 1 and (pool := self._nearest_in_book(ids, pool_size)):
            return self._lowest(ids, pool, gradient)[:most]
        columns = []
        for place, token in enumerate(ids):
            pool = [(other,) for other in self._alike(token, self._likeness(token), pool_size)]
            slope = None if gradient is None else gradient[place : place + 1]
            columns.append([row[0] for row in self._lowest([token], pool, slope)[:most]])
        return [tuple(row) for row in zip(*columns, strict=False)]

    def likeliest(self, ids: Sequence[int], most: int, logits: Float[Tensor, " token"] | None) -> list[tuple[int, ...]]:
        """Return up to `most` replacements, the most likely first by the model's `logits` at the place of the word.

        A word of several tokens is judged by its first token. The first word of a text has no logits.
        """
        if logits is None:
            return []
        if len(ids) == 1:
            return [(other,) for other in self._alike(ids[0], logits.float().cpu(), most)]
        return sorted(self._in_book(ids), key=lambda row: -float(logits[row[0]]))[:most]

    def _lowest(
        self, ids: Sequence[int], pool: list[tuple[int, ...]], gradient: Float[Tensor, "token width"] | None
    ) -> list[tuple[int, ...]]:
        """Return the pool in the order of the promised answer, lowest first; without a gradient as it is."""
        if not pool or gradient is None:
            return pool
        vectors = self.table.weight.detach()
        moves = vectors[torch.tensor(pool)] - vectors[list(ids)]
        return [pool[place] for place in (moves * gradient.to(moves)).sum((1, 2)).argsort().tolist()]

    def _likeness(self, token: int) -> Float[Tensor, " token"]:
        """Return the cosine of every token's vector with that of one token."""
        own = self.near(torch.tensor(token))
        likeness: Tensor = (self.vectors @ own - self.mean @ own) / self.lengths
        return likeness

    def _alike(self, token: int, ranks: Float[Tensor, " token"], most: int) -> list[int]:
        """Go through all tokens, the highest rank first, until enough are of the same kind and another word."""
        kind, word_of = self.kind(token), _plain(self.text(token))
        found: list[int] = []
        looked, size = 0, len(ranks)
        while looked < size and len(found) < most:
            upto = min(size, max(FIRST_LOOKED_AT, 8 * looked))
            for other in ranks.topk(upto).indices[looked:].tolist():
                differs = other != token and (not word_of or _plain(self.text(other)) != word_of)
                if differs and self.kind(other) == kind:
                    found.append(other)
            looked = upto
        return found[:most]

    def _nearest_in_book(self, ids: Sequence[int], most: int) -> list[tuple[int, ...]]:
        pool = self._in_book(ids)
        if not pool:
            return []
        means = nn.functional.normalize(self.near(torch.tensor(pool)).mean(1), dim=-1)
        best = (means @ self.near(torch.tensor(ids)).mean(0)).topk(min(most, len(pool))).indices.tolist()
        return [pool[place] for place in best]

    def _in_book(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the words of the embedded book of the same kind and of as many tokens."""
        wanted = kind_of(self.text(ids[0]))
        pool = [row for row in self._book.get(len(ids), []) if kind_of(self.text(row[0])) == wanted]
        return [row for row in pool if row != tuple(ids)]

    @cached_property
    def _book(self) -> dict[int, list[tuple[int, ...]]]:
        """The words of the embedded book as tokens, by how many tokens they have."""
        if self.tokenizer is None:
            return {}
        words = sorted(set(re.findall(r"[A-Za-z]+", str(read().documents[0]))))
        found: dict[int, list[tuple[int, ...]]] = {}
        for spelling in (words, [f" {text}" for text in words]):
            for row in self.tokenizer(spelling, add_special_tokens=False)["input_ids"]:
                if len(row) > 1:
                    found.setdefault(len(row), []).append(tuple(row))
        return {length: list(dict.fromkeys(rows)) for length, rows in found.items()}


def _plain(token: str) -> str:
    return token.removeprefix(PIECE).lstrip("".join(SPACES)).lower()
