"""What makes two inputs alike for an encoder: each explained against the other, side by side in one record.

The cosine of two embeddings has two sides, and a token of either may be what they share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.corpus.medium import medium
from attnscope.explaining.aiming import Question
from attnscope.hf.loading.load import Loaded
from attnscope.records.explanation import Asked, Explanation, Scored

FIRST, SECOND = "first", "second"


def two_to_compare(loaded: Loaded, given: tuple[Any, ...]) -> bool:
    """Two texts or two pictures, for a model without a decoder to read the second and without a head for tokens."""
    if len(given) != 2 or loaded.decoder_start is not None or loaded.kind in ("causal", "multimodal"):
        return False
    media = [medium(side) is not None for side in given]
    return all(media) or (not any(media) and all(isinstance(side, str) for side in given) and loaded.reads_text)


def of_both(
    loaded: Loaded, given: tuple[Any, ...], question: Question, one: Callable[[Any, Question], Explanation]
) -> Explanation:
    """Both sides of the likeness of two inputs."""
    if question.against is not None:
        raise RefusalError("Two inputs are compared with each other: leave --against out, or give one input.")
    try:
        sides = [one(mine, replace(question, against=other)) for mine, other in (given, (given[1], given[0]))]
    except RefusalError as refusal:
        if any(word in str(refusal) for word in ("tokens (", "is not in the vocabulary", "There is no class")):
            raise RefusalError(
                f"{loaded.name} ({loaded.class_name}) has a head and no embedding to compare: give one text, or the "
                "encoder without its head."
            ) from None
        raise
    first, second = sides
    inputs = tuple(
        replace(read, name=name) for side, name in zip(sides, (FIRST, SECOND), strict=True) for read in side.inputs
    )
    methods = tuple(
        Scored(one.name, one.title, one.group, one.signed, (*one.scores, *other.scores))
        for one in first.methods
        for other in second.methods
        if one.name == other.name
    )
    texts = tuple(side.text for side in sides)
    asked = Asked("similarity", word=texts[0], other=texts[1])
    return replace(
        first,
        inputs=inputs,
        methods=methods,
        lengths=None,  # of one side only, and likeness has two
        asked=asked,
        target=asked.words,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )
