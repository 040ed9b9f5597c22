"""Every channel of the stream with an entry above 100: how many there are, the eight largest, and the median entry."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.limits import MASSIVE_SIZE
from attnscope.core.measure import Located, measure
from attnscope.matrix.visibility import Sequences, sequences, spread_tokens

RANKS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
# A median over the whole stream sorts all of it; evenly spaced tokens of each sequence give the same to a few percent.
MEDIAN_TOKENS = 32


@measure(
    title="Outlier channels",
    summary=f"The number of channels with an entry above {MASSIVE_SIZE:g}, the eight largest, and the median entry.",
    unit="channels",
    citation="arXiv:2402.17762",
    scope="stream",
    sites=("stream", "middle"),
    parts=("value", "median", *RANKS),
    log=True,
)
def outlier_channels(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> dict[str, Located]:
    # Sun et al. call an activation massive if it is above 100 and about 1000 times the median magnitude of its stream.
    # Channels are ranked by their largest entry; ranks that are not above 100 are left out, and so is the median of a
    # stream without such a channel. Whether a channel is massive is decided where the survey is read.
    found = [_ranked(some) for some in sequences(stream, token_mask)]
    number, median, size, channel, token = (torch.cat(column) for column in zip(*found, strict=True))
    large = size > MASSIVE_SIZE
    first = token_mask.to(torch.uint8).argmax(dim=-1)[:, None]  # number tokens from the first one that is not padding
    token = (token - first).clamp_min(0)
    ranks = {
        name: Located(size[:, rank], {"token": token[:, rank], "channel": channel[:, rank]}, large[:, rank])
        for rank, name in enumerate(RANKS)
    }
    return {"value": Located(number), "median": Located(median, counted=large[:, 0]), **ranks}


def _ranked(some: Sequences) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return how many channels are above 100, the median, and the sizes, channels and tokens of the eight largest."""
    # Two reductions, because |X| would copy the stream.
    sizes = torch.maximum(some.tokens.amax(dim=-2), -some.tokens.amin(dim=-2))
    broken = sizes.isnan()
    sizes = sizes.masked_fill(broken, 0.0)  # a NaN would hide the other channels
    number = (sizes > MASSIVE_SIZE).sum(dim=-1).to(sizes.dtype)
    missing = max(0, len(RANKS) - sizes.shape[-1])
    size, channel = sizes.topk(len(RANKS) - missing, dim=-1)
    token = torch.zeros_like(channel)
    median = torch.zeros_like(number)
    for place in number.nonzero().flatten().tolist():
        tokens = some.tokens[place]
        token[place] = tokens[:, channel[place]].abs().argmax(dim=0)
        median[place] = _median(tokens, None if some.mask is None else some.mask[place])
    pad = torch.nn.functional.pad
    number = number.masked_fill(broken.any(dim=-1), torch.nan)
    return number, median, pad(size, (0, missing)), pad(channel, (0, missing)), pad(token, (0, missing))


def _median(tokens: Float[Tensor, "token width"], mask: Bool[Tensor, " token"] | None) -> Tensor:
    """Return the median magnitude over some evenly spaced real tokens."""
    real = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device) if mask is None else mask
    chosen, used = spread_tokens(real[None], MEDIAN_TOKENS)
    return tokens[chosen[used]].abs().nanmedian()
