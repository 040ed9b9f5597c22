"""A head's share of the output that the attention of its block adds to the stream."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import HEAD_CONTRIBUTION
from attnscope.core.measure import measure
from attnscope.matrix.visibility import accumulation_dtype, spread_tokens

# A token costs heads x value_dim x width products, as much as the output projection itself, so only a few evenly spaced
# tokens of each sequence are used.
CONTRIBUTION_TOKENS = 8


@measure(
    title="Head contribution",
    summary="A head's share of what its block's attention writes into the stream, as the median over eight tokens.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2205.07100",
    scope="attention",
    alarm=Alarm("<", HEAD_CONTRIBUTION, "the head writes almost nothing"),
)
def head_contribution(
    mixed: Float[Tensor, "batch query head value_dim"],
    output_weight: Float[Tensor, "head value_dim width"],
    query_mask: Bool[Tensor, "batch query"],
) -> Float[Tensor, "batch head"]:
    # c_h(t) = ||z_h(t) W_O^h||_1 / sum_g ||z_g(t) W_O^g||_1, the median over tokens t.
    # The shares of one token sum to one over heads.
    token, used = spread_tokens(query_mask, CONTRIBUTION_TOKENS)
    dtype = accumulation_dtype(mixed)
    rows = mixed.detach()[torch.arange(len(mixed), device=mixed.device)[:, None], token].to(dtype)
    heads_first = rows.flatten(0, 1).transpose(0, 1).contiguous()
    # One head at a time into one buffer, because the outputs of all heads together are large.
    write = heads_first.new_empty(heads_first.shape[1], output_weight.shape[-1])
    sizes = [
        torch.mm(z, weight, out=write).abs_().sum(dim=-1)
        for z, weight in zip(heads_first, output_weight.detach().to(dtype), strict=True)
    ]
    written = torch.stack(sizes).view(-1, *token.shape).transpose(0, 1)
    share = written / written.sum(dim=1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)
    return _median(share, used)


def _median(
    share: Float[Tensor, "batch head sample"], used: Bool[Tensor, "batch sample"]
) -> Float[Tensor, "batch head"]:
    """Return the median over the used samples; NaN if one is NaN, 0 without samples."""
    real = used[:, None, :]
    ordered = share.masked_fill(~real, torch.inf).sort(dim=-1).values
    count = used.sum(dim=-1)[:, None, None].expand(-1, share.shape[1], 1)
    low = ordered.gather(-1, ((count - 1) // 2).clamp_min(0)).squeeze(-1)
    high = ordered.gather(-1, (count // 2).clamp_max(share.shape[-1] - 1)).squeeze(-1)
    broken = (share.isnan() & real).any(dim=-1)
    return ((low + high) / 2.0).masked_fill(count.squeeze(-1) == 0, 0.0).masked_fill(broken, torch.nan)
