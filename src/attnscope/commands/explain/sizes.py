"""Estimate the memory and the time of an explanation, and refuse a text that does not fit before the model runs on it.

These are large at the same time. The width is that of the stream plus that of the widest layer of a block:

    states      a pass back keeps STATES vectors of that width for each token and block, and LOGITS rows of the
                vocabulary for each token; methods that ask the model again do so for POINTS_AT_ONCE inputs together
    maps        methods on the frozen network keep several attention maps of every head of one block, all tokens by all
                tokens; value zeroing keeps one such map for every block

The factors were fitted to peaks of one model in float32 (`pocket` with more positions): up to 8,000 tokens, and 4,000
for methods that ask the model again. That of value zeroing is counted from the code, not measured. Only models on the
CPU are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from attnscope.core.errors import RefusalError
from attnscope.core.explanation import Method
from attnscope.core.words import count
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import LONG, cut_down, of_tokens_only
from attnscope.hf.loading.load import ERRORS_OF_MODELS, Loaded, precision_and_place
from attnscope.hf.loading.memory import TextSizes, memory_left, refusing_when_memory_runs_out, widest_layer
from attnscope.hf.loading.one_text import Reading

STATES = 7
LOGITS = 4
POINTS_AT_ONCE = 8
MAPS = {"contributions": 7.5, "made_of": 2.5}  # by what a method reads, for each head

# Time of a method, in units of the first look at the model (three runs, and one pass back).
RUNS = {"ask": 20.0, "contributions": 5.0, "made_of": 5.0}
FIRST_RUNS = 5  # runs without gradients that take as long as the first look
TOLD_SECONDS = 60.0


@dataclass(frozen=True)
class ExplanationSizes(TextSizes):
    """The sizes that determine the memory of an explanation."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    itemsize: int
    inputs: int  # that go through the model together
    maps: float  # numbers for each pair of tokens

    @classmethod
    def of(cls, loaded: Loaded, structure: Anatomy, tokens: int, methods: Iterable[Method]) -> ExplanationSizes:
        reads = {name for method in methods for name in method.reads}
        blocks = [block for stack in structure.stacks for block in stack.blocks]
        heads = max(site.heads for site in structure.sites)
        maps = [heads * each for name, each in MAPS.items() if name in reads]
        return cls(
            tokens=tokens,
            layers=len(structure.sites),
            heads=heads,
            width=widest_layer(loaded.model.get_submodule(blocks[0].path)) if blocks else 1,
            vocabulary=loaded.vocab_size or 0,
            itemsize=precision_and_place(loaded.model)[0].itemsize,
            inputs=POINTS_AT_ONCE if "ask" in reads else 1,
            maps=max([*maps, float(len(structure.sites)) if "zeroed" in reads else 0.0]),
        )

    @property
    def bytes(self) -> int:
        states = self.inputs * (STATES * self.layers * self.width + LOGITS * self.vocabulary)
        return self.itemsize * int(self.tokens * states + self.maps * self.tokens**2)


def refuse_long_text(loaded: Loaded, read: Reading, methods: tuple[Method, ...]) -> None:
    """Refuse a long text that does not fit into memory. The model runs on a few of its tokens only.

    Texts of up to LONG tokens are not estimated, and the model does not run for them.
    """
    tokens = len(read.words)
    if tokens <= LONG or not of_tokens_only(read.batch) or precision_and_place(loaded.model)[1].type != "cpu":
        return
    try:
        structure = anatomy(loaded.model, cut_down(loaded.model, read.batch))
    except (*ERRORS_OF_MODELS, RefusalError):  # it does not run on a few tokens: let the run on the whole text say why
        return
    sizes, free = ExplanationSizes.of(loaded, structure, tokens, methods), memory_left()
    if sizes.bytes <= free:
        return
    frugal = ExplanationSizes.of(loaded, structure, tokens, ())
    fewer = f", or of {frugal.tokens_that_fit(free):,} with `methods='relevance'`" if frugal.bytes < sizes.bytes else ""
    raise RefusalError(
        f"An explanation of {tokens:,} tokens takes about {sizes.bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of "
        f"memory are free: give a text of {sizes.tokens_that_fit(free):,} tokens or fewer{fewer}."
    )


def told(method: Method, tokens: int, first_look: float) -> str:
    """Return the title of a method, with the time it takes if that is more than a minute.

    `first_look` is how many seconds the first look at the model took.
    """
    runs = max((RUNS.get(name, 0.0) for name in method.reads), default=0.0)
    seconds = first_look * (tokens / FIRST_RUNS if method.card.group == "slow" else runs)
    title = method.card.title.lower()
    return title if seconds < TOLD_SECONDS else f"{title} (at least {count(round(seconds / 60), 'minute')})"


def fitting(tokens: int) -> AbstractContextManager[None]:
    """Refuse and suggest a smaller number of tokens if memory runs out."""
    return refusing_when_memory_runs_out(
        f"An explanation of {tokens} tokens does not fit into memory: give a text of {max(tokens // 2, 1)} tokens, "
        "or name fewer methods (relevance needs least)."
    )
