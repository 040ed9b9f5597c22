"""Sequences that are not cut from texts: pairs of source and target, and repeated random tokens.

A pair is never cut, since half a source does not belong to its target. Both sides get the special tokens that the
tokenizer puts around them; tokenizers that treat targets differently from sources (Marian, mBART) are told which
texts are targets.

A sequence of random tokens that is repeated once can only be predicted by induction: in the second half every token has
occurred before, and what followed it then follows it now, while grammar, meaning and frequency are of no help
(arXiv:2209.11895). Tokens are drawn without replacement if there are enough, so that no token occurs twice in the first
half.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.data.corpus import Corpus
from attnscope.data.windows import (
    Beginning,
    Tokenizer,
    Window,
    Windows,
    refuse_fewer_than_one,
    refuse_too_many_random,
    refuse_unknown_tokens,
    window_length,
)

_FEWEST = 2  # tokens on either side


def pair_windows(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    max_tokens: int | None = None,
    positions: int | None = None,
    vocab_size: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    beginning: Beginning | None = None,
) -> tuple[Windows, tuple[str, ...]]:
    """Return the pairs of `corpus` whose sides fit into a window, and a note on the others. The result depends only on
    the corpus, the tokenizer, `samples` and the seed."""
    limit = window_length(max_tokens, positions)
    refuse_fewer_than_one(samples)
    order = list(range(len(corpus.documents)))
    if samples is not None:
        random.Random(seed).shuffle(order)
    fitting: dict[int, tuple[Window, tuple[int, ...]]] = {}
    unfit = 0
    for number in order:
        window, target = _sides(corpus, number, tokenizer, beginning)
        if all(_FEWEST <= len(side) <= limit for side in (window.ids, target)):
            fitting[number] = (window, target)
        else:
            unfit += 1
        if len(fitting) == samples:
            break
    if not fitting:
        raise RefusalError(
            f"None of the {count(len(corpus.documents), 'pair')} of {corpus.name} has {_FEWEST} to {limit} tokens on "
            "either side: give shorter pairs, or a larger `max_tokens=`."
        )
    sequences, targets = (tuple(side) for side in zip(*(fitting[n] for n in sorted(fitting)), strict=True))
    refuse_unknown_tokens([*(window.ids for window in sequences), *targets], vocab_size)
    left_out = f"{count(unfit, 'pair')} left out: one side has more than {limit} tokens, or fewer than {_FEWEST}."
    return Windows(corpus.name, corpus.sha256, sequences, limit, targets), (left_out,) if unfit else ()


def _sides(
    corpus: Corpus, number: int, tokenizer: Tokenizer, beginning: Beginning | None
) -> tuple[Window, tuple[int, ...]]:
    assert corpus.targets is not None
    source = _ids(tokenizer(corpus.documents[number], add_special_tokens=True))
    begun = source if beginning is None else beginning(source)
    return Window(begun, None, number), target_ids(tokenizer, corpus.targets[number])


def target_ids(tokenizer: Tokenizer, target: str) -> tuple[int, ...]:
    """Return the tokens of a target, as a decoder should write them."""
    try:
        return _ids(tokenizer(text_target=target))
    except TypeError:  # a tokenizer that treats both sides alike
        return _ids(tokenizer(target, add_special_tokens=True))


def _ids(made: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(token) for token in made["input_ids"])


def repeated_windows(
    vocabulary: Sequence[int],
    *,
    max_tokens: int | None = None,
    positions: int | None = None,
    samples: int = 64,
    seed: int = 0,
    first: int | None = None,
) -> Windows:
    """Return sequences of `first` (a BOS token), random tokens, and the same tokens again, as long as `max_tokens`
    allows."""
    limit = window_length(max_tokens, positions)
    opening = () if first is None else (first,)
    half = (limit - len(opening)) // 2
    if half < 2 or len(vocabulary) < 2:
        raise RefusalError(
            "Repeated random tokens need at least two tokens and two positions for each, but there are "
            f"{len(vocabulary)} tokens"
            f" and {limit} places: pass `max_tokens={4 + len(opening)}` or more."
        )
    refuse_too_many_random(samples, limit)
    draw = random.Random(seed)
    made = []
    for _ in range(samples):
        once = draw.sample(vocabulary, half) if half <= len(vocabulary) else draw.choices(vocabulary, k=half)
        made.append(Window((*opening, *once, *once)))
    return Windows.drawn(f"random tokens, twice over (seed {seed})", made, limit)
