"""Find the target of `paths` in a network's output, refuse code that cannot be followed, and estimate memory.

These are in memory at the same time. The width is the stream's width plus the widest layer's width:

    suffixes    the search for single paths keeps one stream for each suffix, for one block at a time, with what its
                derivative needs: about SUFFIX_COPIES streams of that width for each suffix
    lengths     sums over paths are kept for every length and for several draws of signs: about LENGTH_COPIES streams
                for each length and draw
    maps        MAPS attention maps of every head of one block, all tokens by all tokens
    logits      LOGIT_COPIES rows of the vocabulary for each token

The factors were fitted by hand to peaks measured on five shapes of Llama with 256 to 4,000 tokens, where the estimate
is between 0.7 and 1.7 times the peak; `tests/hardening/test_paths_memory.py` holds one of them within a factor of
three. Models on other devices than the CPU are not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnscope.commands.paths.record import Goal
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.classes import experts_in
from attnscope.hf.loading.load import ERRORS_OF_MODELS, Loaded, precision_and_place
from attnscope.hf.loading.memory import (
    TextSizes,
    memory_left,
    out_of_memory,
    refusing_when_memory_runs_out,
    widest_layer,
)
from attnscope.hf.loading.one_text import Reading, asked, place_of, spaced, unmasked, where_said, whole_position
from attnscope.hf.loading.outputs import Entries, entries
from attnscope.pathways.network import Network
from attnscope.pathways.targets import Target, residual_norm, stream_norm

NORMS: dict[str, Callable[[Network], Target]] = {"residual_norm": residual_norm, "stream_norm": stream_norm}
SUFFIX_COPIES = 10
LENGTH_COPIES = 6
MAPS = 2
LOGIT_COPIES = 6
LARGE = 10**9  # bytes; progress mentions larger estimates


@dataclass(frozen=True)
class Aim:
    """The target, the entry and position of the output that it reads, and notes on the choice."""

    target: Target
    goal: Goal  # the target by its parts
    entries: Entries
    entry: int | None  # the entry whose probability is followed; None for norms
    position: int | None  # from 0; None where the output has no axis of tokens
    notes: tuple[str, ...] = ()


def aim(
    loaded: Loaded,
    network: Network,
    read: Reading,
    target: str | int | None,
    against: str | int | None,
    position: int | None,
) -> Aim:
    """Return the number to decompose.

    The default is the logit of the most likely answer, or the residual norm for models without logits.
    """
    target, against = asked("target", target), asked("against", against)
    position = whole_position(position)
    output = network.output
    known = entries(loaded, output)
    token = place_of(output, read, known, position)
    if target in NORMS or (target is None and known.output == "states"):
        if against is not None:
            raise RefusalError("`against=` needs a token or class as target, not a norm: leave it out.")
        kind: Any = target or "residual_norm"
        norm = NORMS[kind](network)
        note = "" if target else f"{loaded.class_name} returns states and no logits, so the target is {norm.name}."
        return Aim(norm, Goal(kind), known, None, token, (note,) if note else ())
    if known.output == "states":
        raise RefusalError(
            f"{loaded.class_name} returns states and no logits: choose the target {' or '.join(NORMS)}, or a "
            "model with a head."
        )
    row = output[0] if token is None else output[0, token]
    entry = int(row.argmax()) if target is None else known.number(target)
    weights: tuple[tuple[int, float], ...] = ((entry, 1.0),)
    goal = Goal("logit", known.word(entry), where=where_said(loaded, read, token))
    if against is not None:
        other = known.number(against)
        if other == entry:
            raise RefusalError(f"The target and `against=` are both '{known.word(entry)}': choose two that differ.")
        weights, goal = (*weights, (other, -1.0)), replace(goal, kind="difference", other=known.word(other))
    notes = (*spaced(known, target, row), *unmasked(loaded, known, read, position))
    taken = "" if goal.other is None else f" minus that of '{goal.other}'"
    name = f"logit of '{goal.word}'{taken}{goal.where and ' '}{goal.where}"
    return Aim(Target(name, weights, token), goal, known, entry, token, notes)


@contextmanager
def refusing_what_is_not_followed(loaded: Loaded) -> Iterator[None]:
    """Refuse a model whose code does something with the stream that no rule covers."""
    try:
        yield
    except ERRORS_OF_MODELS as error:
        if out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or ["no reason given"])[0][:160]
        experts = experts_in(loaded.model)
        cause = "its blocks do something with the stream that is not supported; choose another model or stack"
        if experts is not None:
            cause = (
                f"its mixture of experts ({experts}) computes in a precision or an order that is not supported; choose "
                "a dense model of the same kind"
            )
        raise RefusalError(
            f"The paths through {loaded.class_name} cannot be followed ({type(error).__name__}: {reason}): {cause}."
        ) from error


def fitting(tokens: int) -> AbstractContextManager[None]:
    """If memory runs out, refuse and suggest a smaller number of tokens."""
    tokens = max(tokens, 2)
    return refusing_when_memory_runs_out(
        f"Paths of {tokens} tokens do not fit into memory: give a text of {tokens // 2} tokens, or pass "
        "`dtype='float32'`."
    )


@dataclass(frozen=True)
class PathSizes(TextSizes):
    """The sizes that determine the memory of a decomposition."""

    layers: int
    heads: int
    width: int  # of the stream and of the widest layer, together
    vocabulary: int
    itemsize: int
    suffixes: int
    signs: int  # draws in memory together, at least 2

    @classmethod
    def of(
        cls, loaded: Loaded, structure: Anatomy, stack: str | None, *, tokens: int, suffixes: int, signs: int
    ) -> PathSizes:
        blocks = next((s for s in structure.stacks if s.name == stack), structure.stacks[-1]).blocks
        sites = [site for site in structure.sites if site.stack == (stack or structure.stacks[-1].name)]
        return cls(
            tokens=tokens,
            layers=len(blocks),
            heads=max((site.heads for site in sites), default=1),
            width=widest_layer(loaded.model.get_submodule(blocks[0].path)),
            vocabulary=loaded.vocab_size or 0,
            itemsize=precision_and_place(loaded.model)[0].itemsize,
            suffixes=suffixes,
            signs=max(signs, 2),
        )

    @property
    def bytes(self) -> int:
        by_token = SUFFIX_COPIES * self.suffixes + LENGTH_COPIES * self.signs * (self.layers + 1)
        numbers = self.tokens * (by_token * self.width + LOGIT_COPIES * self.vocabulary)
        return self.itemsize * (numbers + MAPS * self.heads * self.tokens**2)


def refuse_too_many_tokens(sizes: PathSizes, place: torch.device) -> None:
    free = memory_left()
    if place.type != "cpu" or sizes.bytes <= free:
        return
    fitting = sizes.tokens_that_fit(free)
    shorter = f"give a text of {fitting:,} tokens or fewer" if fitting > 1 else "give a smaller model"
    halved = ", or pass `dtype='float32'` for half of that" if sizes.itemsize == 8 else ""
    raise RefusalError(
        f"Paths of {sizes.tokens:,} tokens take about {sizes.bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory "
        f"are free: {shorter}{halved}."
    )
