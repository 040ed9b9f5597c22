"""Attention that computes clipped linear functions, and with them any ReLU network (arXiv:2504.15956).

One head reads a token x and returns clip(w.x + t, a, b). It has p + 1 fixed anchors L_k = a + k D, D = (b - a) / p, and

    query (x; -1),   key_k = (2k w; k (L_k + L_0) - 2kt),   value L_k,   logits times beta.

With y = w.x + t the logit of anchor k is 2ky - k (L_k + L_0). Since L_k^2 - L_0^2 = kD (L_k + L_0),

    -(y - L_k)^2 / D  =  -(y - L_0)^2 / D  +  2ky - k (L_k + L_0),

so the logits are -(y - L_k)^2 / D up to a constant per row, which softmax ignores: attention goes to the anchors near
y. As beta grows it goes only to the nearest, with an error of at most D / 2 = (b - a) / (2p); if y is outside [a, b],
that is the first or the last anchor.

    relu(y) = clip(y, 0, b) where y <= b:  a layer of a ReLU network is one layer of such heads, one head per unit,
    followed by a linear map (the output projection).

The keys are fixed, not computed from tokens: this is cross-attention to p + 1 constant vectors, in torch's own kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError


class ClippingHeads(nn.Module):
    """For every token x, head i returns clip(weight_i . x + shift_i, low_i, high_i) within half an anchor spacing."""

    keys: Tensor
    anchors: Tensor

    def __init__(
        self,
        weight: Float[Tensor, "head width"],
        shift: Float[Tensor, " head"],
        low: Float[Tensor, " head"],
        high: Float[Tensor, " head"],
        steps: int,
        beta: float,
    ) -> None:
        super().__init__()
        if steps < 1 or beta <= 0 or bool((high <= low).any()):
            raise RefusalError(
                "A clipping head needs at least 1 step, a beta above 0, and an upper end above the lower: change them."
            )
        count = torch.arange(steps + 1, dtype=weight.dtype)
        step = (high - low) / steps
        anchors = low[:, None] + count * step[:, None]  # [head, anchor]
        last = count * (anchors + low[:, None]) - 2 * count * shift[:, None]
        self.register_buffer("keys", torch.cat([2 * count[:, None] * weight[:, None], last[..., None]], dim=-1))
        self.register_buffer("anchors", anchors)
        self.beta = beta

    @property
    def steps(self) -> int:
        return self.anchors.shape[-1] - 1

    @property
    def half_step(self) -> Float[Tensor, " head"]:
        """Return half the anchor spacing, which bounds each head's error in the limit of large beta."""
        return (self.anchors[:, 1] - self.anchors[:, 0]) / 2

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token head"]:
        query = torch.cat([x, -torch.ones_like(x[..., :1])], dim=-1)[:, None].expand(-1, len(self.keys), -1, -1)
        keys, anchors = (some.expand(len(x), -1, -1, -1) for some in (self.keys, self.anchors[..., None]))
        answer = F.scaled_dot_product_attention(query, keys, anchors, scale=self.beta)
        return answer[..., 0].transpose(1, 2)

    def logits(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch head token anchor"]:
        """Return the logits before they are multiplied by beta."""
        query = torch.cat([x, -torch.ones_like(x[..., :1])], dim=-1)
        return query[:, None] @ self.keys.mT


class AttentionNetwork(nn.Module):
    """Layers of clipping heads; the linear map before each layer is part of that layer's heads."""

    def __init__(self, layers: Sequence[ClippingHeads], last: nn.Linear) -> None:
        super().__init__()
        self.main_input_name = "vectors"
        self.layers = nn.ModuleList(layers)
        self.last = last

    def forward(self, vectors: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token out"]:
        for layer in self.layers:
            vectors = layer(vectors)
        answer: Tensor = self.last(vectors)
        return answer


def attention_network(
    linears: Sequence[nn.Linear], seen: Float[Tensor, "batch token width"], steps: int, beta: float
) -> AttentionNetwork:
    """Convert a ReLU network to attention, for inputs like those in `seen`; `linears` are its linear maps.

    Each head clips at 0 and at the largest value of its unit on `seen`; beyond it the head saturates, unlike ReLU.
    Heads have different ranges but are equally sharp: `beta` applies after rescaling to anchors that are 1 apart.
    """
    if len(linears) < 2:
        raise RefusalError("A ReLU network has at least two linear maps with a ReLU between them: give both.")
    layers = []
    for linear in linears[:-1]:
        with torch.no_grad():
            before = linear(seen)
            high = before.flatten(0, -2).amax(0).clamp_min(torch.finfo(before.dtype).tiny ** 0.5)
            layers.append(_evenly_sharp(linear, high, steps, beta))
            seen = before.relu()
    return AttentionNetwork(layers, linears[-1])


def _evenly_sharp(linear: nn.Linear, high: Float[Tensor, " head"], steps: int, beta: float) -> ClippingHeads:
    """Divide each unit by its anchor spacing, so that anchors are 1 apart, and multiply the values by it again."""
    step = high / steps
    weight, shift = linear.weight / step[:, None], linear.bias / step
    heads = ClippingHeads(weight, shift, torch.zeros_like(step), torch.full_like(step, steps), steps, beta)
    heads.anchors.mul_(step[:, None])
    return heads


def error_bound(
    network: AttentionNetwork, linears: Sequence[nn.Linear], heads_wrong_by: float = 1.0
) -> Float[Tensor, " out"]:
    """Bound the distance to the ReLU network's answer, if each head errs by at most `heads_wrong_by` half steps.

    Let W_l be the weights before layer l and h_l the errors allowed to its heads. The errors e_l after it are e_1 = h_1
    and e_(l+1) = |W_(l+1)| e_l + h_(l+1), since clipping does not enlarge a difference. The answer is off by at most
    |W_last| e. This holds in exact arithmetic.
    """
    layers: list[ClippingHeads] = list(network.layers)  # type: ignore[arg-type]
    wrong = heads_wrong_by * layers[0].half_step
    for linear, layer in itertools.zip_longest(linears[1:], layers[1:]):
        wrong = linear.weight.detach().abs() @ wrong
        if layer is not None:
            wrong = wrong + heads_wrong_by * layer.half_step
    return wrong


def interpolating(knots: Float[Tensor, " knot"], values: Float[Tensor, " knot"]) -> tuple[nn.Linear, nn.Linear]:
    """Return the ReLU network, with one unit per interval, that interpolates linearly between these knots."""
    slope = values.diff() / knots.diff()
    turn = torch.cat([slope[:1], slope.diff()])
    first, last = nn.Linear(1, len(turn), dtype=knots.dtype), nn.Linear(len(turn), 1, dtype=knots.dtype)
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.bias.copy_(-knots[:-1])
        last.weight.copy_(turn[None])
        last.bias.copy_(values[:1])
    return first, last
