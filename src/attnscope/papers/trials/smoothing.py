"""Over-smoothing: how alike tokens become, which bounds hold, and how fusing blocks helps (arXiv:2202.08625).

Let d_M(X) = ||(I - 11^T/n) X||_F be the distance of n tokens X from equal tokens, and e = 1/sqrt(n). For a block
without MLP, Y = LN(X + sum_h A_h X W_h), with patterns A_h and W_h = W_V^h W_O^h:

    skip        d_M(X + Z) <= d_M(X) + d_M(Z)
    attention   d_M(A X W) <= sqrt(lambda) ||W||_2 d_M(X), lambda being the top eigenvalue of A^T (I - ee^T) A
    LayerNorm   centred rows x_i of standard deviation s_i become x_i/s_i, with equal norms. In an inner product space
                |u/|u| - v/|v|| <= 2 |u - v| / (|u| + |v|) (Dunkl and Williams), so |y_i - y_j| <= |x_i - x_j| / min s,
                and 2 n d_M^2 is the sum over all pairs: d_M(LN(X)) <= d_M(X) / min s   (this form derived)

so d_M(Y) <= (1 + sum_h sqrt(lambda_h) ||W_h||_2) / min s  d_M(X): large standard deviations make tokens equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.experiment import Figure, Point, median
from attnscope.core.variant import Size
from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.residual import residual_frobenius
from attnscope.matrix.similarity import token_cosine
from attnscope.matrix.visibility import AttentionInputs
from attnscope.papers.models.nano import Block, Config, Nano
from attnscope.papers.models.nano_paths import entering
from attnscope.papers.models.tasks import Task
from attnscope.papers.trials.curves import Rows, curve, select, steps
from attnscope.papers.trials.model_patterns import model_streams
from attnscope.variants.fusion import How, fusion, start

Stream = Float[Tensor, "batch token width"]
WAYS: tuple[How, ...] = ("max", "gate")  # `concat` is left out: untrained, it returns the last block
ALL_WAYS: tuple[How, ...] = ("concat", *WAYS)
PLAIN = "plain"


def contraction_of(pattern: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads"]:
    """Return the contraction factor of each pattern, sqrt(lambda) = ||(I - ee^T) A||_2."""
    values: Tensor = torch.linalg.matrix_norm(pattern - pattern.mean(-2, keepdim=True), ord=2)
    return values


def identical_tokens(tokens: int, width: int, seed: int) -> tuple[float, float]:
    """Return d_M(X) / ||X||_F and 1 - similarity for a sequence of one repeated token; both should be 0."""
    rng = torch.Generator().manual_seed(seed)
    stream = torch.randn(1, 1, width, generator=rng, dtype=torch.float64).expand(1, tokens, width).contiguous()
    return float(residual_frobenius(stream) / stream.norm()), abs(1 - float(token_cosine(stream)))


def contraction_ratios(tokens: int, width: int, draws: int, seed: int) -> dict[str, float]:
    """Return the largest ratio d_M(A X) / (sqrt(lambda) d_M(X)) over random X and patterns of different sharpness.

    Every second pattern is causal. `attained` is the smallest ratio for the direction in which each pattern must attain
    the bound.
    """
    rng = torch.Generator().manual_seed(seed)
    largest, attained = 0.0, math.inf
    for draw in range(draws):
        logits = torch.randn(tokens, tokens, generator=rng, dtype=torch.float64) * 4.0 ** (draw % 5 - 2)
        if draw % 2:
            logits = logits.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf)
        pattern = logits.softmax(-1)
        stream = torch.randn(1, tokens, width, generator=rng, dtype=torch.float64)
        bound = contraction_of(pattern)
        largest = max(largest, float(residual_frobenius(pattern @ stream) / (bound * residual_frobenius(stream))))
        top = torch.linalg.svd(pattern - pattern.mean(0, keepdim=True)).Vh[0][None, :, None]
        attained = min(attained, float(residual_frobenius(pattern @ top) / (bound * residual_frobenius(top))))
    return {"largest": largest, "attained": attained}


def itself(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:  # noqa: ARG001
    """Return the values unchanged, as if every token attended only to itself: tokens do not mix."""
    return value


def encoder(layers: int, width: int, heads: int, gain: float, seed: int, *, alone: bool = False) -> Nano:
    """Return a random post-norm encoder with attention output multiplied by `gain`; if `alone`, tokens do not mix."""
    config = Config(
        inputs=width, out=1, width=width, heads=heads, layers=layers, norm="post", positions="none", biases=False
    )
    model = Nano(config, seed).double()
    model.embedding = torch.nn.Identity()
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.output.weight.data.mul_(gain)
        block.attention_norm.eps = 0.0  # type: ignore[assignment]
        if alone:
            block.attention.attend = itself
    return model


@torch.no_grad()
def smoothed(model: Nano, tokens: Stream) -> list[dict[str, float]]:
    """Return, per block, the similarity of tokens after it, LayerNorm's standard deviations, and d_M over its bound."""
    stream, mask = entering(model, {"vectors": tokens})
    rows = [{"depth": 0.0, "similarity": float(token_cosine(stream).mean())}]
    heads, dim = model.config.heads, model.config.dim
    for depth, block in enumerate(model.blocks, 1):
        assert isinstance(block, Block)
        attention = block.attention
        query, key = (
            linear(stream).reshape(*stream.shape[:2], heads, dim).transpose(1, 2)
            for linear in (attention.query, attention.key)
        )
        if attention.attend is itself:
            pattern = torch.eye(stream.shape[1], dtype=stream.dtype).expand(len(stream), heads, -1, -1)
        else:
            pattern = softmax_pattern(AttentionInputs(query, key, key, scale=attention.scale))  # values are not used
        value = attention.value.weight.reshape(heads, dim, -1)  # each row reads the stream for one value coordinate
        output = attention.output.weight.T.reshape(heads, dim, -1)
        size = torch.linalg.matrix_norm(value.mT @ output, ord=2)
        summed = stream + attention(stream, mask)
        deviation = summed.std(-1, unbiased=False)
        left = block(stream, mask)
        growth = (1 + (contraction_of(pattern) * size).sum(-1)) / deviation.amin(-1)
        seen = residual_frobenius(left) / residual_frobenius(stream)
        rows.append(
            {
                "depth": float(depth),
                "similarity": float(token_cosine(left).mean()),
                "deviation": float(deviation.mean()),
                "of_bound": float((seen / growth).max()),
            }
        )
        stream = left
    return rows


def fused(streams: Float[Tensor, "depth batch token width"]) -> dict[str, float]:
    """Return the token similarity after the last block, and after an untrained fusion of all blocks in each way."""
    behind = streams[1:]
    layers, _, _, width = behind.shape
    similarity = {"last": float(token_cosine(behind[-1]).mean())}
    for how in WAYS:
        tensors = start(Size(1, width, width, layers=layers), how=how)
        similarity[how] = float(token_cosine(fusion(behind, **tensors, how=how)).mean())
    return similarity


class Fused(Nano):
    """A nano encoder whose output reads a fusion of the streams after all blocks; the fusion is trained with it."""

    def __init__(self, config: Config, seed: int, how: How) -> None:
        super().__init__(config, seed)
        self.how = how
        size = Size(config.heads, config.dim, config.width, layers=config.layers)
        self.fusing = torch.nn.ParameterDict(start(size, how=how))

    def joined(self, streams: Float[Tensor, "depth batch token width"]) -> Stream:
        """Fuse the streams after every block, leaving out the stream before the first."""
        mixed: Tensor = fusion(streams[1:], **dict(self.fusing.items()), how=self.how)
        return mixed

    def forward(self, **inputs: Tensor) -> Float[Tensor, "batch token out"]:  # type: ignore[override]
        return self.output(self.joined(streams_of(self, inputs)))  # type: ignore[no-any-return]


def streams_of(model: Nano, inputs: dict[str, Tensor]) -> Float[Tensor, "depth batch token width"]:
    stream, mask = entering(model, inputs)
    streams = [stream]
    for block in model.blocks:
        streams.append(block(streams[-1], mask))
    return torch.stack(streams)


@torch.no_grad()
def nano_streams(model: Nano, task: Task) -> Mapping[str, Any]:
    """Return the token similarity at every depth of a trained nano encoder, and at the input of its output map."""
    streams = streams_of(model, task.batch(task.test))
    read = model.joined(streams) if isinstance(model, Fused) else streams[-1]
    return {
        "similarity": [float(token_cosine(stream).mean()) for stream in streams],
        "read": float(token_cosine(read).mean()),
    }


def of_model(model: str, samples: int, tokens: int, seed: int) -> dict[str, Any]:
    """Return the token similarity at every depth of a language model or encoder, averaged over sequences."""
    each = [
        {"similarity": [float(token_cosine(stream).mean()) for stream in streams], "fused": fused(streams)}
        for streams in (one[:, None] for one in model_streams(model, samples=samples, max_tokens=tokens, seed=seed))
    ]
    count = len(each)
    similarities: Any = [row["similarity"] for row in each]
    fusions: Any = [row["fused"] for row in each]
    return {
        "similarity": [sum(values) / count for values in zip(*similarities, strict=True)],
        "fused": {name: sum(fusion[name] for fusion in fusions) / count for name in fusions[0]},
    }


def smoothing_figures(stacks: Rows, trained: Rows, models: Rows, gains: Sequence[float]) -> tuple[Figure, ...]:
    random = [
        point
        for gain in gains
        for alone in (False, True)
        for point in curve(
            select(stacks, gain=gain, alone=alone), "depth", "similarity", f"gain {gain:g}", dashed=alone
        )
    ]
    kinds: dict[str, Rows] = {f"encoder, {kind}": select(trained, kind=kind) for kind in (PLAIN, *ALL_WAYS)}
    kinds |= {"language model": models} if models else {}
    curves = [point for name, rows in kinds.items() for point in steps([row["similarity"] for row in rows], name)]
    bars = [
        Point.over([row[column] for row in select(trained, kind=kind)], kind, label)
        for column, label in (("read", "similarity of what the output reads"), ("accuracy", "accuracy"))
        for kind in (PLAIN, *ALL_WAYS)
    ]
    cosine = "Mean cosine similarity of tokens;"
    gain = (
        f"{cosine} gain: how much attention writes. Dashed: every token attends only to itself, so that as much is "
        "written and nothing is mixed. Median and range over seeds."
    )
    hulls = f"{cosine} encoders trained on convex hulls. Median and range over seeds."
    title, axes = "Encoders trained with and without fusion", ("fusion", "similarity, accuracy")
    read = "Similarity of the tokens that the output reads, and accuracy; median over seeds."
    return (
        Figure("random", "Random post-norm encoders", gain, "depth", "similarity", tuple(random)),
        Figure("trained", "Trained models", hulls, "depth", "similarity", tuple(curves)),
        Figure("fusion", title, read, *axes, tuple(bars), kind="bars"),
    )


def smoothing_remarks(trained: Rows, models: Rows) -> tuple[str, ...]:
    read = {kind: median([row["read"] for row in select(trained, kind=kind)]) for kind in (PLAIN, *ALL_WAYS)}
    fused_at = ", ".join(f"{value:.2f} with {kind}" for kind, value in read.items() if kind != PLAIN)
    words = [
        f"What follows: the plain encoder's tokens end at a similarity of {read[PLAIN]:.2f}, fused at {fused_at}. "
        "Look at the curve of a model first: fusing blocks helps where the last block is smoother than those before it."
    ]
    if models:
        by_max, by_gate, last = (median([row["fused"][way] for row in models]) for way in (*WAYS, "last"))
        words.append(
            f"Fused without more training, the blocks of the language model have {by_max:.2f} by max and "
            f"{by_gate:.2f} by equal weights; the last block has {last:.2f}. Max moves all tokens the same way, and "
            "can make them more alike."
        )
    return tuple(words)
