"""Attention that a model computes in pieces, and mixes in several products: read as the one call that it is.

Sliding windows and blocks of keys multiply values piece by piece, so that no single product shows a pattern. What is
computed all the same is softmax attention under a rule of who may see whom, and that rule is exact. A reader is given
the module, what it was called with, what it gave, and what entered the projection at its end where it has one of its
own (`WRITES`); it says which queries, keys, values and rule that was
(`sliding_windows`, `sparse_blocks`, `neighbouring_blocks`). It is believed no more than any other route: the verifier
recomputes A V from what the reader says and compares it with what the module passed on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import PassedOn
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import by_head, projected
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import ReportedCall, announce, is_watched, unwatched
from attnscope.matrix.scores import Scores

# Blocks that see themselves and their two neighbours (LongT5, Guo et al. 2022, arXiv:2112.07916, section 3.1), read as
# one call.
#
# Tokens stand in blocks of w + 1, and key j is seen by query i where |i - j| <= w, which never reaches past a
# neighbouring block. Logits are not scaled, and have a bias for every distance,
#
#     A_ij = softmax_j(q_i . k_j + b_(j - i)),
#
# which the model keeps for a block and its neighbours, with what is hidden at minus 1e10: an exponential of zero.

HIDDEN = -1e9


def neighbouring_blocks(
    module: Any, given: Mapping[str, Any], result: Any, written: Sequence[Tensor]
) -> Iterator[ObservedCall]:
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    heads = module.n_heads
    query, key, value = (projected(part, tokens, heads) for part in (module.q, module.k, module.v))
    bias = unblocked(result[1].detach(), tokens.shape[1])
    seen = bias > HIDDEN
    (mixed,) = written
    yield ObservedCall(
        Scores(query.detach(), key.detach(), scale=1.0, allowed=seen, bias=bias.masked_fill(~seen, 0.0)),
        value.detach(),
        by_head(mixed.detach(), heads),
        "pieces",
        (query, value),
        passed_on=PassedOn(mixed, lambda output: by_head(output, heads)),
        rows=seen.any(-1).any(1).expand(len(tokens), -1),
    )


def unblocked(bias: Float[Tensor, "batch block head row near"], tokens: int) -> Float[Tensor, "batch head token key"]:
    """From rows of blocks, and keys of three blocks side by side, to all tokens by all tokens; what is not near is
    hidden."""
    batch, blocks, heads, size, _ = bias.shape
    every = -(-tokens // size)
    bias = bias.expand(batch, every if blocks == 1 else blocks, -1, -1, -1)
    whole = bias.new_full((batch, heads, every * size, (every + 2) * size), -torch.inf)
    for block in range(every):
        rows = slice(block * size, (block + 1) * size)
        whole[:, :, rows, block * size : (block + 3) * size] = bias[:, block]
    return whole[:, :, :tokens, size : size + tokens]


# Sliding windows with global tokens (Longformer, Beltagy et al. 2020, arXiv:2004.05150, section 3), read as one call.
#
# With w tokens on either side, key j is seen by query i where |i - j| <= w or j is global, and j is no padding:
#
#     A_ij = softmax_j(q_i . k_j / sqrt(d)) over those keys.
#
# A global key inside the window counts once: the model takes it out of the window. Rows of global queries are not of
# this pattern: they see every key, with projections of their own (query_global, key_global, value_global), and are a
# second call of as many queries as the sequence with most of them has.


def sliding_windows(module: Any, given: Mapping[str, Any], result: Any, _: Sequence[Tensor]) -> Iterator[ObservedCall]:
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    real = ~given["is_index_masked"]
    globally = given["is_index_global_attn"] if given["is_global_attn"] else torch.zeros_like(real)
    mixed = by_head(result[0].detach(), module.num_heads)
    query, key, value = (projected(part, tokens, module.num_heads) for part in (module.query, module.key, module.value))
    where = torch.arange(tokens.shape[1], device=tokens.device)
    near = (where[:, None] - where).abs() <= module.one_sided_attn_window_size
    allowed = (near | globally[:, None, None, :]) & real[:, None, None, :]
    yield ObservedCall(
        Scores(query.detach(), key.detach(), scale=module.head_dim**-0.5, allowed=allowed),
        value.detach(),
        mixed,
        "pieces",
        (query, value),
        passed_on=PassedOn(result[0], lambda output: by_head(output, module.num_heads) * ~globally[:, :, None, None]),
        rows=real & ~globally,
    )
    if bool(globally.any()):
        yield _global_rows(module, tokens, real, globally, result[0])


def _global_rows(
    module: Any,
    tokens: Float[Tensor, "batch token width"],
    real: Bool[Tensor, "batch token"],
    globally: Bool[Tensor, "batch token"],
    output: Float[Tensor, "batch token width"],
) -> ObservedCall:
    most = int(globally.sum(dim=1).max())
    places = globally.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # global tokens first
    rows = globally.gather(1, places)
    asking = tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[2]))
    query = projected(module.query_global, asking, module.num_heads)
    key, value = (projected(part, tokens, module.num_heads) for part in (module.key_global, module.value_global))

    def picked(output: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch row head dim"]:
        mixed = by_head(output, module.num_heads)
        return mixed.gather(1, places[:, :, None, None].expand(-1, -1, *mixed.shape[2:]))

    scores = Scores(query.detach(), key.detach(), scale=module.head_dim**-0.5, allowed=real[:, None, None, :])
    return ObservedCall(
        scores,
        value.detach(),
        picked(output.detach()),
        "pieces",
        (query, value),
        passed_on=PassedOn(output, picked),
        rows=rows,
    )


# Sparse blocks of keys (BigBird, Zaheer et al. 2020, arXiv:2007.14062, appendix D), read as one call.
#
# Tokens stand in blocks; the rows of a block see the blocks beside it, the first and the last one, and random ones. The
# first and the last block see everything. Outside training the library draws no random blocks: it takes the first block
# for each of them, beside the first block that is there already. A key that is listed m times counts m times,
#
#     A_ij = m_ij exp(s_ij) / sum_l m_il exp(s_il) = softmax_j(s_ij + ln m_ij),
#
# which is a bias on the logits, and minus infinity where a key is not listed at all.


def sparse_blocks(module: Any, given: Mapping[str, Any], result: Any, _: Sequence[Tensor]) -> Iterator[ObservedCall]:
    if module.training:
        raise RefusalError(
            f"{type(module).__name__} draws random blocks anew in every forward pass of training: measure it in "
            "evaluation mode."
        )
    tokens: Float[Tensor, "batch token width"] = given["hidden_states"]
    heads, size = module.num_attention_heads, module.block_size
    query, key, value = (projected(part, tokens, heads) for part in (module.query, module.key, module.value))
    times = how_often_listed(tokens.shape[1] // size, module.num_random_blocks).to(tokens.device)
    each = times.repeat_interleave(size, 0).repeat_interleave(size, 1)
    yield ObservedCall(
        Scores(
            query.detach(),
            key.detach(),
            scale=query.shape[-1] ** -0.5,
            allowed=given["to_mask"].bool(),
            bias=each.to(tokens.dtype).log()[None, None],
        ),
        value.detach(),
        by_head(result[0].detach(), heads),
        "pieces",
        (query, value),
        passed_on=PassedOn(result[0], lambda output: by_head(output, heads)),
    )


def how_often_listed(blocks: int, random: int) -> Float[Tensor, "block block"]:
    """How many times the rows of every block see the keys of every other."""
    times = torch.zeros(blocks, blocks)
    for row in range(1, blocks - 1):
        for beside in {0, row - 1, row, row + 1, blocks - 1}:
            times[row, beside] += 1
        times[row, 0] += random
    times[0] = times[-1] = 1
    return times


Reader = Callable[[nn.Module, Mapping[str, Any], Any, Sequence[Tensor]], Iterator[ObservedCall]]
READERS: Mapping[str, Reader] = {
    "LongformerSelfAttention": sliding_windows,
    "LEDEncoderSelfAttention": sliding_windows,
    "BigBirdBlockSparseAttention": sparse_blocks,
    "BigBirdPegasusBlockSparseAttention": sparse_blocks,
    "LongT5LocalAttention": neighbouring_blocks,
}
WRITES: Mapping[Reader, str] = {neighbouring_blocks: "o"}


class _Pieces:
    """One module whose forward tells of its attention as a whole."""

    def __init__(self, module: nn.Module, reader: Reader) -> None:
        self.module, self.reader = module, reader
        self.forward = module.forward
        self.signature = inspect.signature(module.forward)
        self.users = 0
        self.changes = Restoring()
        self.changes.forward(module, self.telling, everywhere=True)

    def telling(self, *args: Any, **kwargs: Any) -> Any:
        if not is_watched():
            return self.forward(*args, **kwargs)
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        written: list[Tensor] = []
        with unwatched(), Restoring() as changes:
            if self.reader in WRITES:
                last = self.module.get_submodule(WRITES[self.reader])
                changes.before(last, lambda _, entered: written.append(entered[0]), kwargs=False)
            result = self.forward(*args, **kwargs)
            seen = tuple(self.reader(self.module, given.arguments, result, written))
        for observed in seen:
            announce(ReportedCall(observed))
        return result


_TELLING: dict[nn.Module, _Pieces] = {}
_CHANGING = Lock()


@contextmanager
def pieces_joined(model: nn.Module) -> Iterator[None]:
    """While active, modules of the model that attend in pieces report one call. Contexts may overlap
    in any order: a forward is wrapped once, and is its old self when the last one has gone."""
    found = [(module, reader) for module in model.modules() if (reader := _reader(module)) is not None]
    with _CHANGING:
        for module, reader in found:
            if module not in _TELLING:
                _TELLING[module] = _Pieces(module, reader)
            _TELLING[module].users += 1
    try:
        yield
    finally:
        with _CHANGING:
            for module, _ in found:
                _TELLING[module].users -= 1
                if not _TELLING[module].users:
                    _TELLING.pop(module).changes.close()


def _reader(module: nn.Module) -> Reader | None:
    """By the class or the class it was derived from: what a forward does in pieces is known of that forward alone."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return READERS.get(kind.__name__)
    return None
