"""Fewer keys and values by a strided convolution: memory-compressed attention.

Every `stride`-th token is an anchor, counted from the first real one. Its key and value are a convolution over `kernel`
tokens: the anchor and those after it or, under a causal mask, the anchor and those before it, so that no anchor
contains later tokens. There are ceil(n / stride) of them (arXiv:1801.10198, heads of Multiformer, arXiv:2205.07100).
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import Size, variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Mixed, RealKeys, Visible, mix

Kernel = Float[Tensor, "head dim dim kernel"]


def start(size: Size, *, kernel: int = 4) -> dict[str, Tensor]:
    """Start with the mean of the tokens under the kernel."""
    mean = torch.eye(size.dim)[None, :, :, None].repeat(size.heads, 1, 1, kernel) / kernel
    return {"key_kernel": mean, "value_kernel": mean.clone()}


def pattern(
    inputs: AttentionInputs, *, key_kernel: Kernel, value_kernel: Kernel, stride: int = 4
) -> Float[Tensor, "batch head query anchor"]:
    """Return weights over anchors."""
    return softmax_pattern(_anchors(inputs, key_kernel, value_kernel, stride))


def slow(inputs: AttentionInputs, *, key_kernel: Kernel, value_kernel: Kernel, stride: int = 4) -> Mixed:
    """Compute the convolution as a sum over the tokens under the kernel, one anchor at a time."""
    plain, whole = _plain(inputs), inputs.unshared
    heads, tokens = inputs.query.shape[1], inputs.key.shape[-2]
    kernels = {"key": (whole.key, key_kernel), "value": (whole.value, value_kernel)}
    made: dict[str, Tensor] = {}
    for name, (vectors, kernel) in kernels.items():
        anchors = []
        for row in range(len(vectors)):
            real = torch.ones(tokens, dtype=torch.bool) if plain.real is None else plain.real[row % len(plain.real), 0]
            first = int(real.long().argmax())
            for anchor in range(first, first + tokens, stride):
                total = torch.zeros_like(vectors[row, :, 0])
                for step in range(kernel.shape[-1]):
                    place = anchor + step - (kernel.shape[-1] - 1 if plain.causal else 0)
                    if 0 <= place < tokens and real[place]:
                        total = total + torch.einsum("hoi,hi->ho", kernel[..., step], vectors[row, :, place])
                anchors.append(total)
        made[name] = torch.stack(anchors).reshape(len(vectors), -1, heads, kernel.shape[1]).transpose(1, 2)
    seen = _seen(inputs, plain, stride)
    anchored = replace(inputs, key=made["key"], value=made["value"], visible=seen, causal=False)
    return mix(softmax_pattern(anchored), anchored.value)


@variant(
    kind="pattern",
    title="Compressed keys and values",
    summary="Softmax attention over fewer keys and values, which a trained strided convolution makes of the tokens.",
    citation="arXiv:1801.10198",
    formula="softmax(q . (C_K * K)) (C_V * V),  ceil(n / stride) anchors",
    cost="n^2 / stride",
    keys_are_tokens=False,
    parameters={"key_kernel": "heads x dim x dim x kernel", "value_kernel": "heads x dim x dim x kernel"},
    settings={"stride": "one key for so many tokens"},
    start=start,
    pattern=pattern,
    slow=slow,
    changes="single tokens cannot be told apart under one anchor; stride 1 and a kernel of 1 change nothing",
)
def compressed(inputs: AttentionInputs, *, key_kernel: Kernel, value_kernel: Kernel, stride: int = 4) -> Mixed:
    return plain_attention(_anchors(inputs, key_kernel, value_kernel, stride))


def _anchors(inputs: AttentionInputs, key_kernel: Kernel, value_kernel: Kernel, stride: int) -> AttentionInputs:
    """Return the inputs with anchors in place of tokens."""
    plain, whole = _plain(inputs), inputs.unshared
    key, value = _compress(whole.key, key_kernel, plain, stride), _compress(whole.value, value_kernel, plain, stride)
    return replace(inputs, key=key, value=value, visible=_seen(inputs, plain, stride), causal=False)


def _plain(inputs: AttentionInputs) -> RealKeys:
    plain = inputs.real_keys()
    if plain is None or (plain.real is not None and plain.real.shape[1] != 1):
        raise RefusalError(
            "Compressed keys are made of several tokens each: a mask may hide padding and later tokens, and nothing "
            "else."
        )
    return plain


def _compress(
    tokens: Float[Tensor, "batch head token dim"],
    kernel: Float[Tensor, "head out dim kernel"],
    plain: RealKeys,
    stride: int,
) -> Float[Tensor, "batch head anchor out"]:
    batch, heads, count, _ = tokens.shape
    if plain.real is not None:
        tokens = tokens.masked_fill(~plain.real[..., None], 0.0)
        places = (_first(plain.real) + torch.arange(count, device=tokens.device)).expand(batch, -1)
        gathered = tokens.gather(-2, places.clamp_max(count - 1)[:, None, :, None].expand_as(tokens))
        tokens = gathered.masked_fill((places >= count)[:, None, :, None], 0.0)
    reach = kernel.shape[-1] - 1
    channels = F.pad(tokens.mT.flatten(1, 2), (reach, 0) if plain.causal else (0, reach))
    made = F.conv1d(channels, kernel.to(tokens.dtype).flatten(0, 1), stride=stride, groups=heads)
    return made.reshape(batch, heads, -1, made.shape[-1]).mT


def _seen(inputs: AttentionInputs, plain: RealKeys, stride: int) -> Visible:
    """Return which anchors a query sees: the anchors whose token it sees."""
    queries, keys, device = inputs.query.shape[-2], inputs.key.shape[-2], inputs.query.device
    anchors = torch.arange(0, keys, stride, device=device)
    if plain.real is None:
        visible = None
        places = anchors[None]
    else:
        places = _first(plain.real) + anchors
        real = plain.real[:, 0].gather(-1, places.clamp_max(keys - 1)) & (places < keys)
        visible = real[:, None, None]
    if plain.causal:
        before = (places[:, None] <= torch.arange(queries, device=device)[:, None])[:, None]
        visible = before if visible is None else visible & before
    return visible


def _first(real: Bool[Tensor, "batch 1 key"]) -> Tensor:
    """Return where the sequence begins: padding on the left shifts the anchors."""
    return real[:, 0].long().argmax(-1, keepdim=True)
