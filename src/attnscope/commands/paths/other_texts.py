"""The other texts on which outputs of heads replace a head: the caller's, the embedded book, or the model's own kind.

Without texts of the caller, these are windows of the embedded book, if the model reads English. It does not if it has
no tokenizer, if more than `UNKNOWN` of the book's tokens are unknown to the tokenizer, if the tokenizer drops more than
`DROPPED` of the book's letters, or if the book surprises the model: its loss there is above `SURPRISED` of that of a
uniform guess, log(vocabulary), and more than `APART` nats above its loss on the text. Models of proteins, molecules or
microbes are like that. Then a causal language model writes the other texts itself, token after token by its own
probabilities. For all other models they are the text's own tokens in other orders; special tokens stay where they are.

All texts have as many tokens as the text, so that special tokens are at the same places. Texts of the caller may be
shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.data.corpus import Corpus
from attnscope.data.read import read as read_corpus
from attnscope.data.windows import Beginning, windows
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import first_output
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading, reading

TOKENS = 512  # tokens of other texts, in
FEWEST, MOST = 4, 32  # windows
SHORTEST = 8  # tokens of a window
UNKNOWN, DROPPED = 0.1, 0.3  # shares of tokens, and of letters
PASSAGE = 500  # characters of the book whose letters are counted
SURPRISED, APART = 0.75, 2.0
TRIED = 64  # tokens of the book whose loss is computed

Source = str | Path | Iterable[str]


@dataclass(frozen=True, eq=False)
class OtherTexts:
    """Token numbers of other texts. `words` say where they come from; `note` says why it is not the book."""

    rows: tuple[Int[Tensor, " token"], ...]
    words: str
    note: str = ""


def other_texts(loaded: Loaded, read: Reading, output: Tensor, source: Source | None, seed: int) -> OtherTexts:
    """Return texts of the caller's `source`, or else of a kind that the model reads. `output` is that on the text."""
    assert read.ids is not None
    if source is not None:
        try:
            return _given(loaded, read, source, seed)
        except RefusalError as error:
            raise RefusalError(error.sentence, "reference") from error
    book = _book(loaded, read, seed)
    why = "the model has no tokenizer" if loaded.tokenizer is None else "its tokenizer cannot read the embedded book"
    if book is not None:
        why = _strange(loaded, read.ids, book, output)
        if not why:
            return OtherTexts(tuple(book), f"{len(book)} windows of {book.shape[1]} tokens from the embedded book")
    generator = torch.Generator().manual_seed(seed)
    rows = _written(loaded, read.ids, generator) if loaded.kind == "causal" else None
    if rows is not None:
        words = f"{len(rows)} sequences of {rows.shape[1]} tokens that the model wrote itself"
    else:
        rows = _shuffled(loaded, read.ids, read.beginning, generator)
        words = f"{len(rows)} other orders of the {rows.shape[1]} tokens of the text"
    note = (
        f"Heads are not replaced by their outputs on English texts, because {why}, but by those on {words}: give texts "
        "of its kind with `reference=` to use these."
    )
    return OtherTexts(tuple(rows), words, note)


def _number(tokens: int) -> int:
    return min(MOST, max(FEWEST, TOKENS // tokens))


def _given(loaded: Loaded, read: Reading, source: Source, seed: int) -> OtherTexts:
    """Return windows of the caller's texts, as long as the text or shorter."""
    assert read.ids is not None
    corpus, tokens = read_corpus(source), len(read.ids)
    number = _number(tokens)
    if loaded.tokenizer is None:  # a line of token numbers for each text
        lines = [line for document in corpus.documents for line in document.splitlines() if line.strip()]
        rows = [reading(loaded, line).ids for line in lines[:number]]
        found = [row[:tokens].cpu() for row in rows if row is not None]
    else:
        limits: dict[str, Any] = {"positions": loaded.positions, "vocab_size": loaded.vocab_size, "short": True}
        cut = windows(
            corpus,
            loaded.tokenizer,
            max_tokens=max(tokens, SHORTEST),
            samples=number,
            seed=seed,
            beginning=read.beginning,
            **limits,
        )
        found = [torch.tensor(window.ids) for window in cut.sequences]
    if sum(len(row) - 1 for row in found) < SHORTEST:
        raise RefusalError(
            f"The reference ({corpus.name}) has too few tokens to take means over: give at least a few sequences of "
            f"{tokens} tokens."
        )
    return OtherTexts(tuple(found), f"{count(len(found), 'window')} of up to {tokens} tokens from {corpus.name}")


def _book(loaded: Loaded, read: Reading, seed: int) -> Int[Tensor, "window token"] | None:
    """Return windows of the embedded book with as many tokens as the text, spread over the book; None without them."""
    if loaded.tokenizer is None:
        return None
    tokens = max(len(read.words), SHORTEST)
    number = _number(tokens)
    (book,) = read_corpus().documents
    step, length = len(book) // number, 64 + 16 * tokens
    starts = [book.find(" ", place * step) for place in range(number)]
    pieces = Corpus.of("windows of the embedded book", [book[start : start + length] for start in starts])
    limits: dict[str, Any] = {"positions": loaded.positions, "vocab_size": loaded.vocab_size, "short": True}
    try:
        found = windows(pieces, loaded.tokenizer, max_tokens=tokens, seed=seed, beginning=read.beginning, **limits)
    except RefusalError:
        return None  # a tokenizer that cannot read the book
    first = {window.document: window.ids for window in reversed(found.sequences) if len(window.ids) == tokens}
    return torch.tensor(list(first.values())) if len(first) >= FEWEST else None


def _strange(loaded: Loaded, own: Int[Tensor, " token"], book: Int[Tensor, "window token"], output: Tensor) -> str:
    """Say why the book is strange to the model; return an empty string if it is not."""
    unknown = getattr(loaded.tokenizer, "unk_token_id", None)
    share = 0.0 if unknown is None else float((book == unknown).double().mean())
    if share > UNKNOWN:
        return f"{100 * share:.0f}% of their tokens are unknown to its tokenizer"
    lost = _dropped(loaded.tokenizer)
    if lost > DROPPED:
        return f"its tokenizer drops {100 * lost:.0f}% of their letters"
    if loaded.kind != "causal" or output.ndim != 3 or output.shape[1] != len(own):
        return ""
    on_text = _loss(output[0], own)
    tried = book[:1, :TRIED].to(own.device)
    on_book = _loss(_logits(loaded, tried)[0], tried[0])
    if on_book < max(SURPRISED * math.log(output.shape[-1]), on_text + APART):
        return ""
    return f"its loss on them is {on_book:.1f} nats a token, and {on_text:.1f} on the text"


def _dropped(tokenizer: Any) -> float:
    """Return the share of the book's letters that are gone when its tokens are decoded; 0 without a decoder."""
    if not hasattr(tokenizer, "decode"):
        return 0.0
    passage = read_corpus().documents[0][:PASSAGE]
    left = str(tokenizer.decode(tokenizer(passage)["input_ids"], skip_special_tokens=True))
    return 1 - sum(map(str.isalnum, left)) / sum(map(str.isalnum, passage))


def _loss(logits: Float[Tensor, "token vocabulary"], ids: Int[Tensor, " token"]) -> float:
    return float(torch.nn.functional.cross_entropy(logits[:-1].float(), ids[1:].to(logits.device)))


@torch.no_grad()
def _logits(loaded: Loaded, ids: Int[Tensor, "row token"]) -> Float[Tensor, "row token vocabulary"]:
    with evaluating(loaded.model):
        return first_output(run(loaded.model, {"input_ids": ids}))


@torch.no_grad()
def _written(
    loaded: Loaded, own: Int[Tensor, " token"], generator: torch.Generator
) -> Int[Tensor, "sequence token"] | None:
    """Return sequences that the model draws by its own probabilities after the first token of the text.

    Return None if its output has no logits, or if it keeps no cache of earlier tokens.
    """
    ids, cache = own[:1].expand(_number(len(own)), 1), None
    with evaluating(loaded.model):
        while ids.shape[1] < len(own):
            try:
                output = loaded.model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
                cache, logits = output.past_key_values, output.logits[:, -1]
            except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):
                return None
            if cache is None or not bool(logits.isfinite().all()):
                return None
            drawn = torch.multinomial(logits.double().softmax(-1).cpu(), 1, generator=generator)
            ids = torch.cat([ids, drawn.to(ids.device)], 1)
    return ids.cpu()


def _shuffled(
    loaded: Loaded, own: Int[Tensor, " token"], beginning: Beginning | None, generator: torch.Generator
) -> Int[Tensor, "order token"]:
    """Return the tokens of the text in other orders; special tokens stay where they are, and so does BOS."""
    own = own.cpu()
    moves = ~torch.isin(own, torch.tensor(sorted(getattr(loaded.tokenizer, "all_special_ids", ()))))
    moves[: int(beginning is not None and beginning.begins)] = False
    rows = own.repeat(_number(len(own)), 1)
    for row in rows:
        row[moves] = own[moves][torch.randperm(int(moves.sum()), generator=generator)]
    return rows
