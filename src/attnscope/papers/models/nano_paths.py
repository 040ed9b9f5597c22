"""Split a nano model's output at one input into paths by length, or run one path by itself.

`network_of` returns a `Network`, in which patterns and norms are frozen at their values in the whole model, so that the
paths add up to the output (Theorem 2.1 of arXiv:2103.03404). `path_alone` does what the authors' code does: it runs the
path as a separate network, with one head or the skip in every block, and computes patterns and norms from that
network's own stream. The outputs of all such networks do not add up to the output of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.papers.models.nano import Attention, Block, Nano, visible_keys
from attnscope.pathways.network import Network

SKIP = -1


def entering(model: Nano, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the stream before the first block, and the mask that all blocks share."""
    stream = model.embedding(inputs[model.main_input_name])
    tokens = stream.shape[1]
    if model.positions is not None:
        stream = stream + model.positions.weight[:tokens]
    return stream, visible_keys(tokens, model.config.causal, inputs.get("attention_mask"), stream.device)


@torch.no_grad()
def network_of(model: Nano, inputs: dict[str, Tensor]) -> Network:
    """Return the model at this input as a `Network` of its blocks."""
    stream, mask = entering(model, inputs)

    def piece(block: Any) -> Callable[[Tensor], Tensor]:
        def run(stream: Tensor) -> Tensor:
            left: Tensor = block(stream, mask)
            return left

        return run

    def tail(stream: Tensor) -> Tensor:
        answer: Tensor = model.output(model.last_norm(stream))
        return answer

    blocks = tuple(piece(block) for block in model.blocks)
    streams = [stream]
    for block in blocks:
        streams.append(block(streams[-1]))
    return Network(type(model).__name__, tuple(streams), blocks, tail, tail(streams[-1]))


@torch.no_grad()
def path_alone(model: Nano, inputs: dict[str, Tensor], path: Sequence[int]) -> Float[Tensor, "batch token out"]:
    """Run one path as its own network. `path` names a head of each block, or `SKIP`. The model must have no MLP."""
    stream, mask = entering(model, inputs)
    for block, choice in zip(model.blocks, path, strict=True):
        assert isinstance(block, Block)
        assert block.mlp is None
        if choice == SKIP:
            stream = block.attention_norm(stream) if block.place == "post" else stream
            continue
        read = block.attention_norm(stream) if block.place == "pre" else stream
        stream = head_alone(block.attention, read, choice, mask)
        stream = block.attention_norm(stream) if block.place == "post" else stream
    answer: Tensor = model.output(model.last_norm(stream))
    return answer


def head_alone(
    attention: Attention, stream: Float[Tensor, "batch token width"], head: int, mask: Bool[Tensor, " ..."] | None
) -> Float[Tensor, "batch token width"]:
    """Return the output of attention if it had only this head."""
    mine = slice(head * attention.dim, (head + 1) * attention.dim)
    query, key, value = (
        F.linear(stream, one.weight[mine], None if one.bias is None else one.bias[mine])[:, None]
        for one in (attention.query, attention.key, attention.value)
    )
    mixed = attention.attend(query, key, value, mask, attention.scale)[:, 0]
    return F.linear(mixed, attention.output.weight[:, mine], attention.output.bias)
