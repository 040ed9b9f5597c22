"""Observe attention that a model computes in several products (windows, blocks of keys) as one call.

No single product of such a model shows a pattern, but the result is softmax attention with a known mask. A reader gets
the module, the arguments of its call, its result, and, for classes in `WRITES`, the input of its last projection. It
yields calls with queries, keys, values and the mask. The verifier checks a reader like any other route: it recomputes A
V, the pattern times the values, and compares it with the output of the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import PassedOn
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.owners import SharedForward, shared_forward
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import ReportedCall, announce, is_watched, unwatched
from attnscope.matrix.scores import Scores

States = Float[Tensor, "batch token width"]
Arguments = Mapping[str, Any]
_HIDDEN = -1e9


def _by_head(output: States, heads: int) -> Float[Tensor, "batch token head dim"]:
    return output.reshape(*output.shape[:-1], heads, -1)


def _projected(part: nn.Linear, tokens: States, heads: int) -> Float[Tensor, "batch head token dim"]:
    """Apply a linear module without calling it, because its hooks would count the call."""
    made = F.linear(tokens, part.weight, part.bias)
    return made.view(*made.shape[:2], heads, -1).transpose(1, 2)


def _observed(
    projected: Sequence[Tensor], passed_on: PassedOn, *, rows: Bool[Tensor, "batch query"] | None = None, **rule: Any
) -> ObservedCall:
    query, key, value = projected
    scores = Scores(query.detach(), key.detach(), **rule)
    mixed = passed_on.laid_out(passed_on.tensor.detach())
    return ObservedCall(scores, value.detach(), mixed, "pieces", (query, value), passed_on=passed_on, rows=rows)


def neighbouring_blocks(
    module: Any, arguments: Arguments, result: Any, written: Sequence[Tensor]
) -> Iterator[ObservedCall]:
    """Yield attention between neighbouring blocks (LongT5, Guo et al. 2022, arXiv:2112.07916, section 3.1).

    Tokens are in blocks of w + 1, and query i sees key j if |i - j| <= w, which never reaches past a neighbouring
    block. Logits are not scaled, and have a bias for every distance,

        A_ij = softmax_j(q_i . k_j + b_(j - i)),

    which the model stores for a block and its neighbours. Hidden keys have a bias of -1e10, whose exponential is zero.
    """
    tokens: States = arguments["hidden_states"]
    heads = module.n_heads
    bias = _unblocked(result[1].detach(), tokens.shape[1])
    seen = bias > _HIDDEN
    (mixed,) = written
    yield _observed(
        [_projected(part, tokens, heads) for part in (module.q, module.k, module.v)],
        PassedOn(mixed, lambda output: _by_head(output, heads)),
        rows=seen.any(-1).any(1).expand(len(tokens), -1),
        scale=1.0,
        allowed=seen,
        bias=bias.masked_fill(~seen, 0.0),
    )


def _unblocked(bias: Float[Tensor, "batch block head row near"], tokens: int) -> Float[Tensor, "batch head token key"]:
    """Expand the bias of each block (with the keys of three blocks) to all tokens by all tokens; the rest is -inf."""
    batch, blocks, heads, size, _ = bias.shape
    every = -(-tokens // size)
    bias = bias.expand(batch, every if blocks == 1 else blocks, -1, -1, -1)
    whole = bias.new_full((batch, heads, every * size, (every + 2) * size), -torch.inf)
    for block in range(every):
        rows = slice(block * size, (block + 1) * size)
        whole[:, :, rows, block * size : (block + 3) * size] = bias[:, block]
    return whole[:, :, :tokens, size : size + tokens]


def sliding_windows(module: Any, arguments: Arguments, result: Any, _: Sequence[Tensor]) -> Iterator[ObservedCall]:
    """Yield attention in sliding windows with global tokens (Longformer, Beltagy et al. 2020, arXiv:2004.05150, sec.
    3).

    With w tokens on either side, query i sees key j if |i - j| <= w or j is global, and j is not padding:

        A_ij = softmax_j(q_i . k_j / sqrt(d)) over those keys.

    A global key inside the window counts once. Global queries see every key, with separate projections (query_global,
    key_global, value_global). They are a second call, with as many queries as the largest number in a sequence.
    """
    tokens: States = arguments["hidden_states"]
    heads, scale = module.num_heads, module.head_dim**-0.5
    real = ~arguments["is_index_masked"]
    globally = arguments["is_index_global_attn"] if arguments["is_global_attn"] else torch.zeros_like(real)
    where = torch.arange(tokens.shape[1], device=tokens.device)
    near = (where[:, None] - where).abs() <= module.one_sided_attn_window_size
    windows = _observed(
        [_projected(part, tokens, heads) for part in (module.query, module.key, module.value)],
        PassedOn(result[0], lambda output: _by_head(output, heads)),
        rows=real & ~globally,
        scale=scale,
        allowed=(near | globally[:, None, None, :]) & real[:, None, None, :],
    )
    local = PassedOn(result[0], lambda output: _by_head(output, heads) * ~globally[:, :, None, None])
    yield replace(windows, passed_on=local)
    if bool(globally.any()):
        most = int(globally.sum(dim=1).max())
        first = globally.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]  # global tokens first
        asking = tokens.gather(1, first[:, :, None].expand(-1, -1, tokens.shape[2]))
        keys, values = (_projected(part, tokens, heads) for part in (module.key_global, module.value_global))

        def picked(output: States) -> Float[Tensor, "batch row head dim"]:
            mixed = _by_head(output, heads)
            return mixed.gather(1, first[:, :, None, None].expand(-1, -1, *mixed.shape[2:]))

        yield _observed(
            [_projected(module.query_global, asking, heads), keys, values],
            PassedOn(result[0], picked),
            rows=globally.gather(1, first),
            scale=scale,
            allowed=real[:, None, None, :],
        )


def sparse_blocks(module: Any, arguments: Arguments, result: Any, _: Sequence[Tensor]) -> Iterator[ObservedCall]:
    """Yield attention to sparse blocks of keys (BigBird, Zaheer et al. 2020, arXiv:2007.14062, appendix D).

    A block sees its neighbours, the first and the last block, and some random blocks. The first and the last block see
    everything. In evaluation, transformers uses the first block in place of each random one, in addition to the first
    block itself. A key that is listed m times counts m times. With logits s_ij,

        A_ij = m_ij exp(s_ij) / sum_l m_il exp(s_il) = softmax_j(s_ij + ln m_ij),

    which is a bias on the logits, and minus infinity for a key that is not listed.
    """
    if module.training:
        raise RefusalError(
            f"{type(module).__name__} draws new random blocks in every forward pass of training: measure it in "
            "evaluation mode."
        )
    tokens: States = arguments["hidden_states"]
    heads, size = module.num_attention_heads, module.block_size
    projected = [_projected(part, tokens, heads) for part in (module.query, module.key, module.value)]
    times = how_often_listed(tokens.shape[1] // size, module.num_random_blocks).to(tokens.device)
    each = times.repeat_interleave(size, 0).repeat_interleave(size, 1)
    yield _observed(
        projected,
        PassedOn(result[0], lambda output: _by_head(output, heads)),
        scale=projected[0].shape[-1] ** -0.5,
        allowed=arguments["to_mask"].bool(),
        bias=each.to(tokens.dtype).log()[None, None],
    )


def how_often_listed(blocks: int, random: int) -> Float[Tensor, "block block"]:
    """Return how many times each block lists each block of keys."""
    times = torch.zeros(blocks, blocks)
    for row in range(1, blocks - 1):
        for beside in {0, row - 1, row, row + 1, blocks - 1}:
            times[row, beside] += 1
        times[row, 0] += random
    times[0] = times[-1] = 1
    return times


Reader = Callable[[nn.Module, Arguments, Any, Sequence[Tensor]], Iterator[ObservedCall]]
READERS: Mapping[str, Reader] = {
    "LongformerSelfAttention": sliding_windows,
    "LEDEncoderSelfAttention": sliding_windows,
    "BigBirdBlockSparseAttention": sparse_blocks,
    "BigBirdPegasusBlockSparseAttention": sparse_blocks,
    "LongT5LocalAttention": neighbouring_blocks,
}
WRITES: Mapping[Reader, str] = {neighbouring_blocks: "o"}


class _Joined(SharedForward):
    """A forward that announces its attention to watches as whole calls."""

    def __init__(self, reader: Reader, module: nn.Module) -> None:
        super().__init__(module)
        self.reader, self.signature = reader, inspect.signature(self.forward)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if not is_watched():
            return self.forward(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        written: list[Tensor] = []
        with unwatched(), Restoring() as changes:
            if self.reader in WRITES:
                last = self.module.get_submodule(WRITES[self.reader])
                changes.before(last, lambda _, entered: written.append(entered[0]), kwargs=False)
            result = self.forward(*args, **kwargs)
            calls = tuple(self.reader(self.module, bound.arguments, result, written))
        for observed in calls:
            announce(ReportedCall(observed))
        return result


_JOINED: dict[nn.Module, _Joined] = {}


@contextmanager
def pieces_joined(model: nn.Module) -> Iterator[None]:
    """Make modules that attend in pieces announce whole calls to active watches. Contexts may overlap."""
    user = object()
    with ExitStack() as shared:
        for module in list(model.modules()):
            if (reader := _reader(module)) is not None:
                shared.enter_context(shared_forward(_JOINED, module, partial(_Joined, reader), user))
        yield


def _reader(module: nn.Module) -> Reader | None:
    """Return the reader for the class whose forward the module runs."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return READERS.get(kind.__name__)
    return None
