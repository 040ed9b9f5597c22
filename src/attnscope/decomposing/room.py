"""How much memory the paths of a text take, known before the work begins.

What is large at the same time, in numbers for each token (the width is that of the stream plus that of the widest
layer):

    suffixes    the search for single paths carries one stream for each suffix that it keeps, through the block that is
                being opened, with what its derivative needs: about SUFFIX_COPIES streams of that width for each
    lengths     sums over paths are kept for every length, and for several draws of signs at once: about LENGTH_COPIES
    maps        MAPS attention maps of every head of one layer, all tokens by all tokens
    logits      LOGIT_COPIES rows of the vocabulary for each token

The factors were fitted by hand to peaks that were measured on five shapes of Llama with 256 to 4,000 tokens, where the
estimate is between 0.7 and 1.7 times the peak; `tests/hardening/test_paths_memory.py` holds one of them within a factor
of three. A model in another memory than the machine's own is not estimated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.loading.room import memory_left

SUFFIX_COPIES = 10
LENGTH_COPIES = 6
MAPS = 2
LOGIT_COPIES = 6
LARGE = 10**9  # bytes that are worth a word


@dataclass(frozen=True)
class PathSizes:
    """Everything that the memory of a decomposition follows."""

    tokens: int
    layers: int
    heads: int
    width: int  # of the stream and of the widest layer, together
    vocabulary: int
    itemsize: int
    suffixes: int
    signs: int  # draws at once; the two sources of paths, where nothing is drawn

    @classmethod
    def of(
        cls, loaded: Loaded, found: Anatomy, stack: str | None, *, tokens: int, suffixes: int, signs: int
    ) -> PathSizes:
        blocks = next((s for s in found.stacks if s.name == stack), found.stacks[-1]).blocks
        sites = [site for site in found.sites if site.stack == (stack or found.stacks[-1].name)]
        return cls(
            tokens=tokens,
            layers=len(blocks),
            heads=max((site.heads for site in sites), default=1),
            width=_width(loaded.model.get_submodule(blocks[0].path)),
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

    def tokens_that_fit(self, memory: int) -> int:
        """The longest text for that many bytes; 0 where not even one token fits."""
        low, high = 0, self.tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if replace(self, tokens=middle).bytes <= memory else (low, middle - 1)
        return low


def refuse_too_many_tokens(sizes: PathSizes, place: torch.device) -> None:
    free = memory_left()
    if place.type != "cpu" or sizes.bytes <= free:
        return
    fitting = sizes.tokens_that_fit(free)
    shorter = f"give a text of {fitting:,} tokens or fewer" if fitting > 1 else "give a smaller model"
    halved = ", or pass --dtype float32 for half of that" if sizes.itemsize == 8 else ""
    raise RefusalError(
        f"Paths of {sizes.tokens:,} tokens take about {sizes.bytes / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB of memory "
        f"are free: {shorter}{halved}."
    )


def _width(block: nn.Module) -> int:
    """The widest side of a block's matrices (its MLP's, as a rule), and the narrowest of the widest one (the stream's).

    Of tables of experts only the last two axes are the sides of a matrix.
    """
    shapes = [tuple(parameter.shape[-2:]) for parameter in block.parameters() if parameter.ndim >= 2]
    widest = max(shapes, key=max, default=(1, 1))
    return int(sum(widest))
