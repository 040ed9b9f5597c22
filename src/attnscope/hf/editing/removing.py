"""Heads really removed: several copies of one sequence run together, each without a head of its own.

    with one_head_removed(model, site, [0, 1, 2], "zero"):
        model(**three_copies)           # copy 0 without head 0, copy 1 without head 1, ...

What a head gives to the output projection is replaced, so everything behind it recomputes: other patterns, other norms,
other gates. `zero` writes nothing; `mean` writes, at every token, the mean over the tokens of this sequence, which
keeps what the head always says and takes away what depends on where. `pruning.without_heads` does the same as `zero`
to the weights, one head at a time: the slow obvious way that this is tested against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.seeing.restoring import Restoring

Replacement = Literal["zero", "mean"]


@contextmanager
def one_head_removed(model: nn.Module, site: Site, heads: Sequence[int], by: Replacement) -> Iterator[None]:
    """Inside, row r of a batch has no head `heads[r]` at `site`."""
    assert site.projections.output is not None
    module = model.get_submodule(site.projections.output.parameter.rpartition(".")[0])

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mixed = args[0] if args else None
        if not isinstance(mixed, Tensor) or len(mixed) != len(heads) or mixed.shape[-1] % site.heads:
            raise RefusalError(
                f"Heads of block {site.layer} cannot be told apart where its output is projected: leave removal out "
                "(--removal none)."
            )
        return (_without(mixed, heads, site.heads, by), *args[1:]), kwargs

    with Restoring() as changes:
        changes.before(module, hook)
        yield


def _without(mixed: Tensor, heads: Sequence[int], count: int, by: Replacement) -> Tensor:
    apart = mixed.reshape(*mixed.shape[:-1], count, -1).clone()
    for row, head in enumerate(heads):
        mine = apart[row, ..., head, :]
        mine.copy_(torch.zeros_like(mine) if by == "zero" else mine.mean(-2, keepdim=True).expand_as(mine))
    return apart.reshape(mixed.shape)
