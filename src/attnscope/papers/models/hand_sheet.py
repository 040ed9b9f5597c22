"""A nano model that starts with zero weights, which are then set by hand, channel by channel (for `models.programs`).

sheet = Sheet({"symbol": 1, "code": 2, "answer": 1}, tokens=5, places=7, layers=1, heads=[2], hidden=8, out=4)
sheet.embed("symbol", numbers)                  # the embedding of every token
sheet.head(0, 0, query=["code"], key=["code"], value="symbol", write="answer")
sheet.staircase(0, {"answer": 1.0}, nodes, {"answer": values})
model = sheet.answering("answer", 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.papers.models.nano import Block, Config, Nano

PROBE = 7  # number of tokens with which the tap probes a model; the position table must have at least as many rows


class Sheet:
    """A model to fill in. `channels` gives the width of each channel, `heads` that of each head in a block."""

    def __init__(
        self, channels: Mapping[str, int], tokens: int, places: int, layers: int, heads: Sequence[int], hidden: int,
        out: int, causal: bool = False,
    ) -> None:  # fmt: skip
        ends = np.cumsum([*channels.values()]).tolist()
        self.at = {name: slice(end - size, end) for (name, size), end in zip(channels.items(), ends, strict=True)}
        self.model = Nano(
            Config(
                width=ends[-1],
                heads=len(heads),
                head_width=max(heads),
                layers=layers,
                vocab_size=tokens,
                out=out,
                mlp=hidden,
                norm="none",
                positions="learned",
                max_tokens=max(places, PROBE),
                causal=causal,
                activation="relu",
            )
        )
        for parameter in self.model.parameters():
            nn.init.zeros_(parameter)
        self.used = [0] * layers  # hidden units used so far, per block

    def embed(self, name: str, of_token: Float[Tensor, "token some"]) -> None:
        embedding = self.model.embedding
        assert isinstance(embedding, nn.Embedding)
        embedding.weight.data[:, self.at[name]] = of_token

    def place(self, name: str, of_place: Float[Tensor, "place some"]) -> None:
        assert self.model.positions is not None
        self.model.positions.weight.data[: len(of_place), self.at[name]] = of_place

    def head(
        self, layer: int, index: int, *, query: Sequence[str] = (), always: Tensor | None = None, key: Sequence[str],
        value: str, write: str, key_weight: Tensor | None = None, key_bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Set the weights of one head.

        The channels in `query` and `key` are concatenated. Queries are divided by the scale of attention, so logits are
        plain products. `always` is a query that all tokens share; `key_weight` multiplies the key channels.
        """
        layer_of = self._block(layer).attention
        first = index * layer_of.dim
        start = first
        for name in query:
            size = self.at[name].stop - self.at[name].start
            layer_of.query.weight.data[start : start + size, self.at[name]] = torch.eye(size) / layer_of.scale
            start += size
        if always is not None:
            layer_of.query.bias.data[first : first + len(always)] = always / layer_of.scale
        start = first
        for name in key:
            size = self.at[name].stop - self.at[name].start
            weight = torch.eye(size) if key_weight is None else key_weight
            layer_of.key.weight.data[start : start + len(weight), self.at[name]] = weight
            start += len(weight)
        if key_bias is not None:
            layer_of.key.bias.data[first : first + len(key_bias)] = key_bias
        layer_of.value.weight.data[first, self.at[value]] = 1.0
        layer_of.output.weight.data[self.at[write], first] = 1.0

    def staircase(
        self, layer: int, reads: Mapping[str, float], nodes: Float[Tensor, " node"],
        writes: Mapping[str, Float[Tensor, "node some"]], shift: float = 0.0,
    ) -> None:  # fmt: skip
        """Compute x = shift + sum of factor * channel and write the values of the node nearest to x."""
        mlp = self._block(layer).mlp
        assert isinstance(mlp, nn.Sequential)
        up, down = mlp[0], mlp[2]
        assert isinstance(up, nn.Linear)
        assert isinstance(down, nn.Linear)
        for write, values in writes.items():
            down.bias.data[self.at[write]] += values[0]
        for m in range(1, len(nodes)):
            gap = float(nodes[m] - nodes[m - 1])
            for begin, sign in ((0.25, 1.0), (0.75, -1.0)):
                unit = self.used[layer]
                for read, factor in reads.items():
                    up.weight.data[unit, self.at[read]] = 2 * factor / gap
                up.bias.data[unit] = 2 * (shift - float(nodes[m - 1])) / gap - 2 * begin
                for write, values in writes.items():
                    down.weight.data[self.at[write], unit] = sign * (values[m] - values[m - 1])
                self.used[layer] += 1

    def answering(self, name: str, answers: int) -> Nano:
        """Return the model; it answers with the integer nearest to the number in channel `name`."""
        numbers = torch.arange(float(answers))
        self.model.output.weight.data[:, self.at[name]] = 2 * numbers[:, None]
        self.model.output.bias.data[:] = -numbers.square()
        return self.model

    def _block(self, layer: int) -> Block:
        block = self.model.blocks[layer]
        assert isinstance(block, Block)
        return block
