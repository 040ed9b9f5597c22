"""A nano model of zeros whose weights are then written by hand, channel by channel, for `models.programs`.

sheet = Sheet({"symbol": 1, "code": 2, "answer": 1}, tokens=5, places=7, layers=1, heads=[2], hidden=8, out=4)
sheet.embed("symbol", numbers)                  # what the embedding writes, for every token
sheet.head(0, 0, query=["code"], key=["code"], value="symbol", write="answer")
sheet.staircase(0, {"answer": 1.0}, nodes, {"answer": values})
model = sheet.say("answer", 4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Block, Config, Nano

PROBE = 7  # tokens on which the tap looks a model over: a shorter table of places would refuse them


class Sheet:
    """Sizes of the channels, of tokens and places, widths of the heads of one layer, hidden units, answers."""

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
        self.used = [0] * layers  # hidden units

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
        """`query` and `key` are channels side by side, queries without the root that attention divides by; `always` is
        a query that all share, `key_weight` what the key channels are multiplied with."""
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
        """Look x = shift + sum of channels times numbers up among rising nodes, and write what stands there."""
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

    def say(self, name: str, answers: int) -> Nano:
        """Answer o where the number is nearest to o."""
        numbers = torch.arange(float(answers))
        self.model.output.weight.data[:, self.at[name]] = 2 * numbers[:, None]
        self.model.output.bias.data[:] = -numbers.square()
        return self.model

    def _block(self, layer: int) -> Block:
        block = self.model.blocks[layer]
        assert isinstance(block, Block)
        return block


# 2-Sum by one head: which tokens x have a partner with x + y = 0 modulo M, and who is it (arXiv:2602.01763).
#
# The key of a token is the code of x, its query the code of -x, both of unit length, so that a partner's logit is
# `sharp` and one more key, `none`, has `sharp` times something less than 1: attention goes to the partner where there
# is one, and to none where there is not. The answer is the mass on tokens and the number they stand for.
#
#     full      every key is looked at. With a digit for each power of 2 in M the next best logit is 1 - 2/digits, `none`
#               stands in the middle between: exact in width log2 M.
#     sparse    (B, k): keys stand in blocks of B, each block shows the mean of its keys, and a query sees the k blocks
#               whose mean is most like it. With random codes of width d the partner's block has (1 + noise) / B and the
#               others noise of sqrt(B/d) / B alone: the partner is seen where d is large beside B, and that width is
#               needed whatever the head does afterwards. (A mean is one way to show a block. The paper's bound, B log n,
#               is for every way: a block that may hold any partner has to say so.)


@dataclass(frozen=True)
class Sums:
    """Tokens, and for each its partner's number; 0 where it has none."""

    ids: Int[Tensor, "row token"]
    partners: Int[Tensor, "row token"]


def draw_sums(rows: int, tokens: int, modulus: int, rng: torch.Generator) -> Sums:
    """Half of the tokens have a partner. M is odd and no token is 0, so that nobody is a partner of itself."""
    pairs = tokens // 4
    kinds = tokens - pairs  # numbers up to sign: the first quarter comes with both signs
    half = (modulus - 1) // 2
    if modulus % 2 == 0 or half < kinds or tokens < 4:
        raise RefusalError(f"2-Sum of {tokens} tokens needs at least 4 of them and an odd modulus over {2 * kinds}.")
    numbers = torch.stack([torch.randperm(half, generator=rng)[:kinds] + 1 for _ in range(rows)])
    signed = torch.where(torch.rand(rows, kinds, generator=rng) < 0.5, numbers, modulus - numbers)
    ids = torch.cat([signed, modulus - signed[:, :pairs]], dim=1)
    paired = torch.cat([torch.ones(pairs), torch.zeros(kinds - pairs), torch.ones(pairs)]).bool()
    order = torch.stack([torch.randperm(tokens, generator=rng) for _ in range(rows)])
    return Sums(ids.gather(1, order), torch.where(paired, modulus - ids, 0).gather(1, order))


def digit_codes(modulus: int) -> Float[Tensor, "number dim"]:
    """+1 and -1 for the binary digits, of unit length."""
    count = math.ceil(math.log2(modulus))
    signs: Tensor = 2.0 * (torch.arange(modulus)[:, None] >> torch.arange(count) & 1) - 1
    return signs / math.sqrt(count)


def random_codes(modulus: int, width: int, rng: torch.Generator) -> Float[Tensor, "number dim"]:
    return F.normalize(torch.randn(modulus, width, generator=rng), dim=-1)


class TwoSum(nn.Module):
    """Full attention, or with `block` and `kept` the sparse one. `none` is the logit of no partner, 1 a partner's."""

    codes: Tensor

    def __init__(
        self,
        codes: Float[Tensor, "number dim"],
        none: float,
        sharp: float,
        block: int | None = None,
        kept: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 < none < 1 or sharp <= 0 or (block is None) != (kept is None):
            raise RefusalError(
                "2-Sum needs none between 0 and 1, sharp over 0, and block and kept together or neither."
            )
        self.register_buffer("codes", codes)
        self.none, self.sharp, self.block, self.kept = none, sharp, block, kept
        self.main_input_name = "input_ids"

    def forward(self, input_ids: Int[Tensor, "row token"]) -> Float[Tensor, "row token 2"]:
        """Mass on tokens, and the mean number of what was attended to."""
        key, asked = self.codes[input_ids], self.codes[(len(self.codes) - input_ids) % len(self.codes)]
        visible = None if self.block is None else self.seen(asked, key)
        # One more coordinate for the key of none, one more key in front.
        key = F.pad(key, (0, 1, 1, 0))
        key[:, 0, -1] = 1.0
        query = F.pad(asked, (0, 1), value=self.none)
        number = F.pad(input_ids.to(key), (1, 0))
        value = torch.stack([(number > 0).to(key), number], dim=-1)
        if visible is not None:
            visible = F.pad(visible, (1, 0), value=True)[:, None]
        return F.scaled_dot_product_attention(
            query[:, None], key[:, None], value[:, None], attn_mask=visible, scale=self.sharp
        )[:, 0]

    def seen(
        self, asked: Float[Tensor, "row token dim"], key: Float[Tensor, "row token dim"]
    ) -> Bool[Tensor, "row token key"]:
        """The tokens of the blocks whose mean key is most like the query."""
        assert self.block is not None
        assert self.kept is not None
        if key.shape[1] % self.block or key.shape[1] // self.block < self.kept:
            raise RefusalError(f"{key.shape[1]} tokens are not at least {self.kept} blocks of {self.block}: choose.")
        shown = key.reshape(len(key), -1, self.block, key.shape[2]).mean(2)
        like = asked @ shown.mT
        chosen = torch.zeros_like(like, dtype=torch.bool).scatter_(-1, like.topk(self.kept, dim=-1).indices, True)
        return chosen.repeat_interleave(self.block, dim=-1)


def full_two_sum(modulus: int, sharp: float = 500.0) -> TwoSum:
    """The exact one: n others together weigh at most n e^(-sharp / digits) beside none or a partner."""
    codes = digit_codes(modulus)
    return TwoSum(codes, 1 - 1 / codes.shape[1], sharp)


def right(answer: Float[Tensor, "row token 2"], sums: Sums) -> tuple[float, float]:
    """Share of partners that were found, and of tokens without one that said so."""
    yes = answer[..., 0] > 0.5
    paired = sums.partners > 0
    found = yes & ((answer[..., 1] - sums.partners).abs() < 0.5)
    return float(found[paired].double().mean()), float((~yes)[~paired].double().mean())


def seen_by_chance(width: int, block: int, kept: int, tokens: int) -> float:
    """How often the partner's block is among those kept, with random codes taken as Gaussian.

    The block's score is 1 + sqrt((B - 1) / d) z, each of the n/B - 1 others sqrt(B/d) z: fewer than `kept` of them may
    be above it. Over z by quadrature.
    """
    from scipy.stats import binom, norm

    z = torch.linspace(-8, 8, 2001, dtype=torch.float64).numpy()
    above = norm.sf((1 + ((block - 1) / width) ** 0.5 * z) / (block / width) ** 0.5)
    chance = binom.cdf(kept - 1, tokens // block - 1, above)
    return float((chance * norm.pdf(z)).sum() * (z[1] - z[0]))
