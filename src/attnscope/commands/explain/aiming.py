"""The number that is explained: a logit, a difference of two logits, or the sum of logits of a continuation.

`embedding_aim` chooses the number for models without logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.commands.explain.record import Asked
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.one_text import Reading, asked, place_of, spaced, unmasked, where_said, whole_position
from attnscope.hf.loading.outputs import Entries, entries
from attnscope.hf.tapping.capture import Captured, Number
from attnscope.hf.tapping.entrances import Entrance
from attnscope.matrix.relevance import AttentionCall

Term = tuple[int | None, int, float]
"""A position (None if the answer is about the whole input), an entry of the output there, and its weight."""
LONGEST_SHOWN = 60  # characters of a continuation


@dataclass(frozen=True)
class Question:
    """The caller's arguments that choose the number to explain. They are not checked yet."""

    target: Any = None
    against: Any = None
    position: Any = None
    head: Any = None
    generate: int | None = None
    read: Callable[[Loaded, Any], Reading] = reading_of  # how an input is read


@dataclass(frozen=True)
class Aim:
    """The number that is explained.

    `number` returns it for each sequence of an output. `direction` is the same number as a linear function of the
    output for this input, for methods that are exact only there.
    """

    number: Number
    direction: Float[Tensor, " batch *shape"]
    goal: Asked
    position: int | None
    chance: Number  # the same answer as a number >= 0; a probability where the model has logits
    notes: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()  # the terms, if the number is a sum of logits


def aim(loaded: Loaded, read: Reading, output: Float[Tensor, " batch *shape"], question: Question) -> Aim:
    """Return the number to explain. By default it is the most likely answer; for states, the norm of their mean."""
    from attnscope.commands.explain import embedding_aim

    if embedding_aim.two_towers(read, output):
        return embedding_aim.of_two_towers(loaded, output, question)
    found = entries(loaded, output)
    if question.head is not None and found.output != "states":
        raise RefusalError(
            f"{loaded.class_name} already has a head ({found.size} {found.output}): omit `head=`, or give the encoder "
            "without its head."
        )
    if found.output == "states":
        return embedding_aim.of_states(loaded, read, output, question)
    if read.continued:
        return _continuation(output, read, found, question)
    target, against = asked("target", question.target), asked("against", question.against)
    position = whole_position(question.position)
    place = place_of(output, read, found, position)
    written: tuple[str, ...] = ()
    if position is None and target is not None and read.scenes and read.ids is not None and found.token_axis:
        place, written = _where_written(read, found, target, place)
    row = output[0] if place is None else output[0, place]
    entry = int(row.argmax()) if target is None else found.number(target)
    terms: list[Term] = [(place, entry, 1.0)]
    goal = Asked("logit", found.word(entry), where=where_said(loaded, read, place))
    if against is not None:
        other = found.number(against)
        if other == entry:
            raise RefusalError(f"The target and `against=` are both '{found.word(entry)}': choose two different ones.")
        terms.append((place, other, -1.0))
        goal = replace(goal, kind="difference", other=found.word(other))
    if found.size == 1 and target is None and against is None and bool(row[0] < 0):
        terms = [(place, 0, -1.0)]  # a single logit below 0 means no: explain that
        goal = replace(goal, word=f"not {found.word(0)}")
    notes = (*spaced(found, target, row), *unmasked(loaded, found, read, position), *written)
    return of_terms(output, tuple(terms), goal, place, (*_tied(row, entry, found, target), *notes))


def of_terms(
    output: Float[Tensor, " batch *shape"],
    terms: tuple[Term, ...],
    goal: Asked,
    place: int | None,
    notes: tuple[str, ...] = (),
) -> Aim:
    """Aim at a weighted sum of entries of the output."""
    direction = torch.zeros_like(output)
    for at, entry, weight in terms:
        direction[(0, entry) if at is None else (0, at, entry)] += weight
    wanted = [(at, entry) for at, entry, weight in terms if weight > 0]

    def number(output: Tensor) -> Tensor:
        parts = [weight * (output if at is None else output[:, at])[:, entry] for at, entry, weight in terms]
        return torch.stack(parts).sum(0)

    def chance(output: Tensor) -> Tensor:
        if output.shape[-1] == 1:  # a softmax over a single logit would always be 1
            return number(output).sigmoid()
        parts = [(output if at is None else output[:, at]).log_softmax(-1)[:, entry] for at, entry in wanted]
        return torch.stack(parts).sum(0).exp()

    return Aim(number, direction, goal, place, chance, notes, terms)


def _continuation(output: Tensor, read: Reading, found: Entries, question: Question) -> Aim:
    """Aim at the sum of the logits of all tokens that follow, each at the position that predicts it."""
    if question.against is not None or question.position is not None:
        several = f"'{question.target}' is {len(read.continued)} tokens here, and a" if question.target else "A"
        raise RefusalError(
            f"{several} continuation is explained as a whole: omit `against=` and `position=`, or name one token."
        )
    first = int(output.shape[1]) - len(read.continued)
    terms = tuple((first + step, token, 1.0) for step, token in enumerate(read.continued))
    words = _spelt_out(found, read.continued)
    shown = words if len(words) <= LONGEST_SHOWN else f"{words[: LONGEST_SHOWN - 1]}…"
    goal = Asked("continuation", shown, where=f"{len(terms)} tokens")
    return of_terms(output, terms, goal, None)


def _spelt_out(found: Entries, tokens: tuple[int, ...]) -> str:
    """Return the continuation as readable text.

    In many vocabularies a token can be a part of a character, so the tokens are decoded together.
    """
    words = "".join(found.word(token) for token in tokens)
    whole = words if found.tokenizer is None else str(found.tokenizer.decode(list(tokens)))
    return whole if "\ufffd" not in whole and len(whole.strip()) < len(words.strip()) else words


def _where_written(
    read: Reading, found: Entries, target: str | int, place: int | None
) -> tuple[int | None, tuple[str, ...]]:
    """Return the position that predicts the target in the text of the decoder, and a note if that is unclear."""
    assert read.ids is not None
    entry = found.number(target)
    at = [place for place, token in enumerate(read.ids.tolist()) if token == entry and place > 0]
    if not at:
        note = f"The decoder did not write '{found.word(entry)}': its logit after the last token is explained."
        return place, (note,)
    more = f"The decoder wrote '{found.word(entry)}' {len(at)} times: the first is explained; choose with --position."
    return at[0] - 1, (more,) if len(at) > 1 else ()


def _tied(row: Tensor, entry: int, found: Entries, target: str | int | None) -> tuple[str, ...]:
    """Return a note if several entries are equally likely, because only the first of them is explained."""
    if target is not None:
        return ()
    equal = [int(i) for i in (row == row[entry]).nonzero().flatten()]
    if len(equal) < 2:
        return ()
    others = ", ".join(f"'{found.word(i)}'" for i in equal[:4] if i != entry)
    return (
        f"{len(equal)} answers are equally likely ({others} too): the first, '{found.word(entry)}', is explained; "
        "choose with --target.",
    )


def in_streams(captured: Captured, places: tuple[Entrance, ...]) -> Captured:
    """Rename attention calls by their streams, if a stream passes through several stacks.

    LXMERT has blocks for words, for the picture, and for both, which attend to each other: six stacks, two streams. A
    call belongs to the stream that has as many tokens as the call has queries. It reads the stream that has as many
    tokens as the call has keys.
    """
    known = {place.stack for place in places}
    if all(call.stack in known and call.keys_from in known for call in captured.calls) or len(places) < 2:
        return captured
    lengths = {place.stack: len(captured.embedding[place.stack]) for place in places}
    if len(set(lengths.values())) < len(lengths):
        words = " and ".join(lengths)
        raise RefusalError(
            f"The streams {words} hold {next(iter(lengths.values()))} tokens each, so that attention between them "
            "cannot be told apart: give a text that is a word longer."
        )
    by_length = {length: stack for stack, length in lengths.items()}
    return replace(captured, calls=tuple(_named(call, known, by_length) for call in captured.calls))


def _named(call: AttentionCall, known: set[str], by_length: dict[int, str]) -> AttentionCall:
    queries, keys = call.scores.query.shape[2], call.scores.key.shape[2]
    stack = call.stack if call.stack in known and not call.crosses else by_length.get(queries, call.stack)
    return replace(call, stack=stack, keys_from=stack if queries == keys else by_length.get(keys, call.keys_from))
