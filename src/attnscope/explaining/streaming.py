"""Which tokens an attention call is about, where a model hands one stream through several stacks of modules.

LXMERT has blocks for words, blocks for the picture, and blocks in which the two read each other: six stacks, two
streams. A call belongs to the stream with as many tokens as it has queries, and reads the one with as many as it has
keys.
"""

from __future__ import annotations

from dataclasses import replace

from attnscope.core.errors import RefusalError
from attnscope.hf.tapping.capture import Captured
from attnscope.hf.tapping.entrances import Entrance
from attnscope.matrix.attention_call import AttentionCall


def in_streams(captured: Captured, places: tuple[Entrance, ...]) -> Captured:
    """The run with every call named by the streams that it is between; as it is where stacks are streams already."""
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
