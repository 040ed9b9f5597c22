"""Turn a corpus into token sequences: cut long documents into windows, and draw a sample of them.

A document longer than `max_tokens` is cut in consecutive windows, and each window gets the special tokens that the
tokenizer puts around one text (BOS, [CLS] ... [SEP], </s>); a shorter document stays one sequence. A window with fewer
than two tokens of text is dropped: there is nothing to attend to.

`samples` windows are drawn from all over the corpus. A large corpus is not tokenized as a whole for a few windows: very
long documents are cut into stretches at the end of a line or word, stretches are tokenized in random order until there
are several times as many windows as wanted, and the windows are drawn from those. The result depends only on the
corpus, the tokenizer and the seed.

With `spread`, windows are drawn from as many documents as possible: one of every document, then a second one of every
document, and so on. Numbers that are judged over documents need this: 32 windows of 4 articles are 4 samples.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.data.corpus import Corpus, cut_text


@dataclass(frozen=True)
class Beginning:
    """Whether sequences begin with `token` (BOS), and `why`, a reason that reports print in brackets.

    Models trained with BOS put their attention sinks and massive activations on it and behave differently without it,
    so reports must say whether it was used.
    """

    begins: bool
    token: int | None  # None: the vocabulary has no BOS
    why: str
    word: str | None = None  # the text of the token in the vocabulary

    def __call__(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Add or remove BOS at the beginning of a sequence."""
        there = self.token is not None and tuple(ids[:1]) == (self.token,)
        if self.begins and self.token is not None and not there:
            return (self.token, *ids)
        return tuple(ids[1:]) if there and not self.begins else tuple(ids)

    def to_json(self) -> dict[str, Any]:
        fields = {"begins": self.begins, "token": self.word, "why": self.why}
        return {name: value for name, value in fields.items() if value is not None}


DEFAULT_TOKENS = 256
Tokenizer = Callable[..., Mapping[str, Any]]

_STRETCH = 1 << 16  # characters tokenized at once, or more for long windows:
_STRETCH_PER_TOKEN = 64  # characters per token of a window: a stretch has about 16 windows of English, so few are short
_DRAW_FROM = 4  # windows tokenized for each window that is drawn
_SPREAD = 8  # least number of stretches to tokenize, so that a few windows come from several parts of the corpus
_MOST_RANDOM = 1 << 24  # at most this many random tokens are drawn
_FEWEST = 2  # tokens of text in a window


@dataclass(frozen=True)
class Window:
    """One sequence. It begins at token `start` of a stretch of text from `document`."""

    ids: tuple[int, ...]
    types: tuple[int, ...] | None = None
    document: int = 0
    start: int = 0


@dataclass(frozen=True)
class Windows:
    """The sequences of a scan, in corpus order: a sample's number is its index here."""

    name: str
    sha256: str
    sequences: tuple[Window, ...]
    max_tokens: int
    targets: tuple[tuple[int, ...], ...] | None = None  # what a decoder writes for each; None: the sequence itself

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def tokens(self) -> int:
        return sum(len(window.ids) for window in self.sequences)

    @classmethod
    def drawn(cls, name: str, sequences: Sequence[Window], limit: int) -> Windows:
        digest = hashlib.sha256(repr([window.ids for window in sequences]).encode()).hexdigest()
        return cls(name, digest, tuple(sequences), limit)


def windows(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None = None,
    positions: int | None = None,
    vocab_size: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    beginning: Beginning | None = None,
    short: bool = False,
    spread: bool = False,
) -> Windows:
    """Return all sequences of `corpus`, or `samples` of them drawn with `seed`. Refuse a corpus of fewer than
    `max_tokens` tokens in all unless `short` is true.

    `positions` is the longest sequence the model accepts, and `vocab_size` the number of tokens it knows. Without
    `beginning`, windows begin with the special tokens that the tokenizer adds.
    """
    limit = window_length(max_tokens, positions)
    refuse_fewer_than_one(samples)
    longest = max(_STRETCH, _STRETCH_PER_TOKEN * limit)
    stretches = [(number, piece) for number, text in enumerate(corpus.documents) for piece in cut_text(text, longest)]
    surround = _surround(tokenizer, corpus)
    if beginning is not None:
        surround = surround.beginning(beginning)
    room = limit - surround.length  # tokens of text in a window
    if room < _FEWEST:
        raise RefusalError(
            f"Sequences of {limit} tokens leave no room for text beside {surround.length} special tokens: "
            f"ask for at least {surround.length + _FEWEST} with `max_tokens=`."
        )
    order = list(range(len(stretches)))
    if samples is not None:
        random.Random(seed).shuffle(order)
    least = _SPREAD
    if samples is not None and spread:
        order = _in_turns(order, [stretches[index][0] for index in order])
        least = max(_SPREAD, min(samples, len(corpus.documents)))
    cut: dict[int, list[int]] = {}
    seen = made = 0
    for index in order:
        cut[index] = _token_ids(tokenizer, stretches[index][1])
        seen += len(cut[index])
        made += len(_starts(cut[index], room))
        if samples is not None and made >= _DRAW_FROM * samples and len(cut) >= least:
            break
    # Build only the windows that are drawn: there can be very many short ones.
    places = [(index, start) for index in sorted(cut) for start in _starts(cut[index], room)]
    if not places:
        raise RefusalError(
            f"The corpus {corpus.name} gives no sequence of {_FEWEST} tokens or more ({seen} in all) with "
            "this tokenizer: give it more text, or text that the tokenizer knows."
        )
    if max_tokens is not None and not short and len(cut) == len(stretches) and seen < room:
        raise RefusalError(
            f"The corpus ({corpus.name}) has {seen + surround.length} tokens, fewer than one window of "
            f"{max_tokens}: give it more text, or pass `max_tokens={seen + surround.length}` or less."
        )
    if samples is not None and samples < len(places):
        drawn = random.Random(seed).sample(range(len(places)), len(places) if spread else samples)
        if spread:
            drawn = _in_turns(drawn, [stretches[places[i][0]][0] for i in drawn])[:samples]
        places = [places[i] for i in sorted(drawn)]
    chosen = [surround(tuple(cut[index][a : a + room]), stretches[index][0], a) for index, a in places]
    refuse_unknown_tokens([window.ids for window in chosen], vocab_size)
    return Windows(corpus.name, corpus.sha256, tuple(chosen), limit)


def _in_turns(numbers: Sequence[int], documents: Sequence[int]) -> list[int]:
    """Return the first number of every document, then the second of every document, and so on."""
    turns: Counter[int] = Counter()
    keys = []
    for place, document in enumerate(documents):
        keys.append((turns[document], place))
        turns[document] += 1
    return [numbers[place] for _, place in sorted(keys)]


def random_windows(
    vocab_size: int,
    *,
    max_tokens: int | None = None,
    positions: int | None = None,
    samples: int = 64,
    seed: int = 0,
    first: int | None = None,
) -> Windows:
    """Return sequences of uniformly drawn tokens, for a model without a tokenizer, each after `first` (a BOS token)."""
    limit = window_length(max_tokens, positions)
    if vocab_size < 1:
        raise RefusalError(
            "This model does not read tokens, so no random ones can be drawn: give ready batches in Python."
        )
    refuse_too_many_random(samples, limit)
    draw = random.Random(seed)
    opening = () if first is None else (first,)
    rest = range(limit - len(opening))
    made = [Window((*opening, *(draw.randrange(vocab_size) for _ in rest))) for _ in range(samples)]
    return Windows.drawn(f"random tokens (seed {seed})", made, limit)


def refuse_too_many_random(samples: int, limit: int) -> None:
    refuse_fewer_than_one(samples)
    if samples * limit > _MOST_RANDOM:
        raise RefusalError(
            f"{samples:,} sequences of {limit:,} random tokens are {samples * limit:,} tokens, too many to hold in "
            "memory: ask for "
            f"`samples={max(1, _MOST_RANDOM // limit)}` or fewer, or for shorter ones with `max_tokens=`."
        )


def window_length(max_tokens: int | None, positions: int | None) -> int:
    """Return `max_tokens` if the model accepts it; by default 256, or fewer if the model has fewer positions."""
    if max_tokens is None:
        return DEFAULT_TOKENS if positions is None else min(DEFAULT_TOKENS, positions)
    if max_tokens < _FEWEST:
        raise RefusalError(
            f"A sequence of {max_tokens} tokens is too short for attention: pass `max_tokens={_FEWEST}` or more."
        )
    if positions is not None and max_tokens > positions:
        raise RefusalError(
            f"Sequences of {max_tokens} tokens are longer than the {positions} positions of this model: "
            f"pass `max_tokens={positions}` or less."
        )
    return max_tokens


def refuse_fewer_than_one(samples: int | None) -> None:
    if samples is not None and samples < 1:
        raise RefusalError(f"`samples=` cannot be {samples}: pass 1 or more.")


def refuse_unknown_tokens(sequences: Sequence[tuple[int, ...]], vocab_size: int | None) -> None:
    largest = max(map(max, sequences))
    if vocab_size is not None and largest >= vocab_size:
        raise RefusalError(
            f"The tokenizer gives token {largest}, and this model knows {vocab_size} tokens: "
            "use the tokenizer that belongs to the model."
        )


def _starts(ids: Sequence[int], room: int) -> range:
    """Return where consecutive windows of at most `room` tokens begin; skip a last window of one token."""
    return range(0, len(ids) - _FEWEST + 1, room)


@dataclass(frozen=True)
class _Surround:
    """The tokens that the tokenizer puts before and after a text, and the token types of the three parts."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...]] | None

    @property
    def length(self) -> int:
        return len(self.before) + len(self.after)

    def beginning(self, beginning: Beginning) -> _Surround:
        """Return the same tokens with or without BOS in front. BOS gets the token type of the token after it."""
        before = beginning(self.before)
        if self.types is None or before == self.before:
            return replace(self, before=before)
        first, text, after = self.types
        added = len(before) > len(self.before)
        return replace(self, before=before, types=((first or (text,))[:1] + first if added else first[1:], text, after))

    def __call__(self, ids: tuple[int, ...], document: int, start: int) -> Window:
        types = None
        if self.types is not None:
            before, text, after = self.types
            types = (*before, *(text,) * len(ids), *after)
        return Window((*self.before, *ids, *self.after), types, document, start)


def _surround(tokenizer: Tokenizer, corpus: Corpus) -> _Surround:
    """Return the special tokens that the tokenizer adds, found by tokenizing a text with and without them."""
    for document in corpus.documents:
        sample = document[:200]
        bare = _token_ids(tokenizer, sample)
        if not bare:
            continue
        special = tokenizer(sample, add_special_tokens=True)
        ids = list(special["input_ids"])
        for before in range(len(ids) - len(bare) + 1):
            end = before + len(bare)
            if ids[before:end] == bare:
                types = special.get("token_type_ids")
                split = types and (tuple(types[:before]), int(types[before]), tuple(types[end:]))
                return _Surround(tuple(ids[:before]), tuple(ids[end:]), split or None)
        raise RefusalError(
            "This tokenizer encodes a text differently with special tokens, so windows cannot be cut: "
            "give ready batches in Python."
        )
    return _Surround((), (), None)


def _token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
