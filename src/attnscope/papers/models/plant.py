"""A compiled head written into the weights of a nano model, so that a checkpoint of the model holds it.

This is the theorem of arXiv:2106.03764 as a model: the input X = [queries keys] depends on the pattern, the projections
only select. X is written into 2 * width channels of the position table, where token i finds row i of X whatever token
it is. The token embedding is silent in those channels, W_Q and W_K of the chosen head select them and nothing else, and
every other weight that reads the stream is made blind to them: they become a register that one head reads.

It holds for the first layer of a model without norms alone. A norm would divide X by a number that depends on the
token, and after the first layer other writes share the stream with X. Elsewhere use `attnscope.planted`, which plants
a head into any layer while a model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head
from attnscope.papers.models.nano import Attention, Block, Nano, visible_keys
from attnscope.pathways.network import Network

# A nano model at one input as a `Network`, whose paths can then be graded by length; and one path run by itself.
#
# `network_of` freezes patterns and norms where the whole model had them: its paths add up to its output (Theorem 2.1 of
# arXiv:2103.03404). `path_alone` is what the authors' code measures instead: the path is a network of its own, with one
# head or the skip in every layer, whose patterns and norms come from its own stream. The outputs of all such networks
# do not add up to the model's.

SKIP = -1


def entering(model: Nano, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The stream that enters the first block, and the mask that all blocks share."""
    stream = model.embedding(inputs[model.main_input_name])
    tokens = stream.shape[1]
    if model.positions is not None:
        stream = stream + model.positions.weight[:tokens]
    return stream, visible_keys(tokens, model.config.causal, inputs.get("attention_mask"), stream.device)


@torch.no_grad()
def network_of(model: Nano, inputs: dict[str, Tensor]) -> Network:
    """The model, cut between its blocks, at this input."""
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
    """The output of one path run as its own network: in every layer one head, or `SKIP`. For attention-only models."""
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
    """What attention would write if it had one of its heads only."""
    mine = slice(head * attention.dim, (head + 1) * attention.dim)
    query, key, value = (
        F.linear(stream, one.weight[mine], None if one.bias is None else one.bias[mine])[:, None]
        for one in (attention.query, attention.key, attention.value)
    )
    mixed = attention.attend(query, key, value, mask, attention.scale)[:, 0]
    return F.linear(mixed, attention.output.weight[:, mine], attention.output.bias)


def plant(nano: Nano, head: Head, *, layer: int = 0, head_index: int = 0, first_channel: int | None = None) -> None:
    """Make head `head_index` of the first layer attend as `head`, in place; refused plants change nothing.

    X takes the channels from `first_channel`; the last ones where nothing is said. A second head needs channels of its
    own. Sequences may be as long as the head, exactly as long for one that looks both ways.
    """
    _refuse(nano, head, layer, head_index)
    channels = 2 * head.width
    first = nano.config.width - channels if first_channel is None else first_channel
    if not 0 <= first <= nano.config.width - channels:
        raise RefusalError(
            f"Queries and keys of the head take {channels} channels of {nano.config.width}, which do not fit behind "
            f"channel {first}: choose an earlier first_channel, or a wider model."
        )
    block, positions = nano.blocks[0], nano.positions
    assert isinstance(block, Block)
    assert positions is not None
    register = slice(first, first + channels)
    X, _, _ = head.inputs()
    attention = block.attention
    mine = slice(head_index * attention.dim, head_index * attention.dim + attention.dim)
    selected = range(head_index * attention.dim, head_index * attention.dim + head.width)
    with torch.no_grad():
        for reader in _readers(nano):
            reader.weight[:, register] = 0
        _silence(nano.embedding, register)
        positions.weight[:, register] = 0
        positions.weight[: head.n, register] = X[: len(positions.weight)].to(positions.weight)
        # The model divides by the root of its own head width, the compiled head by that of its own.
        ratio = head.scale / attention.scale
        for projection, start, factor in (
            (attention.query, first, ratio),
            (attention.key, first + head.width, 1.0),
        ):
            projection.weight[mine] = 0
            projection.weight[list(selected), list(range(start, start + head.width))] = factor
            if projection.bias is not None:
                projection.bias[mine] = 0


def _refuse(nano: Nano, head: Head, layer: int, head_index: int) -> None:
    config = nano.config
    if layer != 0 or config.norm != "none":
        raise RefusalError(
            "A head can be written into the weights of the first layer of a model without norms alone (layer=0, "
            "norm='none'): elsewhere plant it while the model runs, with attnscope.hf.editing.graft.planted."
        )
    if nano.positions is None:
        raise RefusalError("The queries and keys of a head live in the position table: use positions='learned'.")
    if not 0 <= head_index < config.heads:
        raise RefusalError(f"The model has heads 0 to {config.heads - 1}, not {head_index}: choose one of those.")
    if head.width > config.dim:
        raise RefusalError(
            f"The head is {head.width} wide and those of the model are {config.dim}: compile the pattern with --width "
            f"{config.dim} or less, or make the model with a larger head_width."
        )
    if head.causal != config.causal:
        raise RefusalError("The head and the model must both be causal, or both look both ways: compile it again.")
    if head.n > config.max_tokens and not head.causal:
        raise RefusalError(
            f"The head has {head.n} rows and the model {config.max_tokens} positions: make it with a larger max_tokens."
        )
    head.inputs()  # refuses heads with more keys than queries
    if torch.finfo(head.queries.dtype).eps < torch.finfo(nano.output.weight.dtype).eps:
        raise RefusalError(
            f"The head is in {head.dtype} and the model in {str(nano.output.weight.dtype).removeprefix('torch.')}, "
            "which would round it: compile the pattern in the model's precision."
        )


def _readers(nano: Nano) -> list[nn.Linear]:
    """Every linear map that reads the stream."""
    readers = [nano.output]
    for block in nano.blocks:
        assert isinstance(block, Block)
        readers += [block.attention.query, block.attention.key, block.attention.value]
        if block.mlp is not None:
            readers.append(next(m for m in block.mlp.modules() if isinstance(m, nn.Linear)))
    return readers


def _silence(embedding: nn.Module, register: slice) -> None:
    """Nothing that depends on the token is written into the register."""
    if isinstance(embedding, nn.Embedding):
        embedding.weight[:, register] = 0
        return
    last = [m for m in embedding.modules() if isinstance(m, nn.Linear)][-1]
    last.weight[register] = 0
    if last.bias is not None:
        last.bias[register] = 0
