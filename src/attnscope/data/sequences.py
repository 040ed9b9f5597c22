"""Random tokens, twice over: sequences that nothing but induction can go on with.

In the second half every token has stood once before, and what followed it then follows it now; grammar, meaning and
frequency say nothing (arXiv:2209.11895). Tokens are drawn without replacement where there are enough, so that the first
half repeats none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.words import count
from attnscope.data.corpus import Corpus
from attnscope.data.windows import Beginning, Tokenizer, Window, Windows, refuse_too_much_chance, window_length

# From pairs of source and target to sequences: a pair is never cut, since half a source does not belong to its target.
#
# Both sides get the special tokens that the tokenizer puts around them; tokenizers that write targets in another way
# than sources (Marian, mBART) are asked for that way.

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
    """The pairs of `corpus` whose sides fit into a window, and a note on those that do not. Which of them, and which
    `samples` are drawn, depends on the corpus, the tokenizer and the seed alone."""
    limit = window_length(max_tokens, positions)
    order = list(range(len(corpus.documents)))
    if samples is not None:
        if samples < 1:
            raise RefusalError(f"{samples} samples leave nothing to measure: pass `samples=1` or more.")
        random.Random(seed).shuffle(order)
    found: dict[int, tuple[Window, tuple[int, ...]]] = {}
    unfit = 0
    for number in order:
        window, target = _sides(corpus, number, tokenizer, beginning)
        if all(_FEWEST <= len(side) <= limit for side in (window.ids, target)):
            found[number] = (window, target)
        else:
            unfit += 1
        if len(found) == samples:
            break
    if not found:
        raise RefusalError(
            f"None of the {count(len(corpus.documents), 'pair')} of {corpus.name} has {_FEWEST} to {limit} tokens on "
            "either side: give shorter pairs, or a larger `max_tokens=`."
        )
    kept = [found[number] for number in sorted(found)]
    largest = max(max(*window.ids, *target) for window, target in kept)
    if vocab_size is not None and largest >= vocab_size:
        raise RefusalError(
            f"The tokenizer gives token {largest}, and this model knows {vocab_size} tokens: "
            "use the tokenizer that belongs to the model."
        )
    left_out = f"{count(unfit, 'pair')} left out: a side of more than {limit} tokens, or of less than {_FEWEST}."
    sequences, targets = (tuple(side) for side in zip(*kept, strict=True))
    return Windows(corpus.name, corpus.sha256, sequences, limit, targets), (left_out,) if unfit else ()


def _sides(
    corpus: Corpus, number: int, tokenizer: Tokenizer, beginning: Beginning | None
) -> tuple[Window, tuple[int, ...]]:
    assert corpus.targets is not None
    source = _ids(tokenizer(corpus.documents[number], add_special_tokens=True))
    begun = source if beginning is None else beginning(source)
    return Window(begun, None, number), target_ids(tokenizer, corpus.targets[number])


def target_ids(tokenizer: Tokenizer, target: str) -> tuple[int, ...]:
    """The tokens that a decoder is to write."""
    try:
        return _ids(tokenizer(text_target=target))
    except TypeError:  # a tokenizer that makes no difference between the two sides
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
    """`first` (a BOS token), random tokens, and the same again; of as many tokens as fit into `max_tokens`."""
    limit = window_length(max_tokens, positions)
    opening = () if first is None else (first,)
    half = (limit - len(opening)) // 2
    if half < 2 or len(vocabulary) < 2:
        raise RefusalError(
            f"Random tokens twice over need two tokens and two places for each, and there are {len(vocabulary)} tokens"
            f" and {limit} places: pass `max_tokens={4 + len(opening)}` or more."
        )
    refuse_too_much_chance(samples, limit)
    draw = random.Random(seed)
    found = []
    for _ in range(samples):
        once = draw.sample(vocabulary, half) if half <= len(vocabulary) else draw.choices(vocabulary, k=half)
        found.append(Window((*opening, *once, *once)))
    digest = hashlib.sha256(repr([window.ids for window in found]).encode()).hexdigest()
    return Windows(f"random tokens, twice over (seed {seed})", digest, tuple(found), limit)
