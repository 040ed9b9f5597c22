"""The largest activation in the stream, its location, and the three largest channels."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import MASSIVE_SIZE
from attnscope.core.measure import Located, measure
from attnscope.matrix.visibility import sequences


@measure(
    title="Spike",
    summary="The largest absolute entry of the stream, its location, and the next two channels.",
    unit="stream units",
    citation="arXiv:2603.05498",
    scope="stream",
    sites=("stream", "middle"),
    parts=("value", "second", "third"),
    alarm=Alarm(">", MASSIVE_SIZE, "a massive activation"),
    log=True,
)
def spike(stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]) -> dict[str, Located]:
    sizes, channels, tokens = [], [], []
    for some in sequences(stream, token_mask):
        # Two reductions, because |X| would copy the stream.
        channel_size = torch.maximum(some.tokens.amax(dim=-2), -some.tokens.amin(dim=-2))
        size, channel = channel_size.topk(3, dim=-1)
        column = some.tokens.gather(-1, channel[:, None, :1].expand(-1, some.tokens.shape[1], 1)).squeeze(-1)
        sizes.append(size)
        channels.append(channel)
        tokens.append(column.abs().argmax(dim=-1))
    size, channel, token = torch.cat(sizes), torch.cat(channels), torch.cat(tokens)
    first = token_mask.to(torch.uint8).argmax(dim=-1)  # number tokens from the first one that is not padding
    return {
        "value": Located(size[:, 0], {"token": (token - first).clamp_min(0), "channel": channel[:, 0]}),
        "second": Located(size[:, 1], {"channel": channel[:, 1]}),
        "third": Located(size[:, 2], {"channel": channel[:, 2]}),
    }
