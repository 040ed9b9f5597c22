"""Attention that stays with its own token when the spectrum of W_Q W_K^T is a lump away from zero (arXiv:2402.02098).

With d = width, eta = tr(W) / (sqrt(d) ||W||_F) and ||W||_F^2 = s^2 d, take W = s (eta I + sqrt(1 - eta^2) T), T without
trace and ||T||_F^2 = d, and tokens x ~ N(0, I). A logit x_i W x_j / sqrt(d) between different tokens then has mean 0
and standard deviation s, whatever eta; that of a token with itself has mean s eta sqrt(d). So eta moves attention from
everywhere to the token itself, and s alone decides how sharp the rest is: little s is uniform (rank collapses), much s
is one key by chance (entropy collapses).

LocAteR: a penalty that shrinks ||W||_F^2 and holds tr(W), so that eta grows. Ours, for every head,
||W||_F^2 / d + (tr(W) / sqrt(d) - held)^2, in units in which logits are those of the table above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.scan.run import scan
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Session
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.recompute import dense_pattern, one_sequence
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.batches import batches_for
from attnscope.hf.loading.load import Given, load
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.running import forward_options, precision_and_place, refusing_what_does_not_run
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.papers.models.decoder import Attention, Decoder
from attnscope.papers.models.tasks import Text, characters
from attnscope.papers.trials.sinks_and_spikes import HELD, Growth, relative_entropy

# The patterns and the streams of a model, layer by layer, for experiments that ask what trained models look like.
#
# for patterns in model_patterns("pocket", samples=4, max_tokens=64):       # [layer, head, token, token]
# for streams in model_streams("pocket", samples=4, max_tokens=64):         # [depth, token, width]

Kept = tuple[int, Tensor]


def model_patterns(
    model: Given, *, samples: int, max_tokens: int, seed: int = 0
) -> Iterator[Float[Tensor, "layer head token token"]]:
    """For one sequence after the other, the self-attention of the first stack, in float64 and without padding."""

    def kept(frame: Frame) -> Kept | None:
        if not isinstance(frame, AttentionFrame) or frame.site != "self":
            return None
        real = frame.query_mask[0]
        return frame.layer, dense_pattern(one_sequence(frame.scores, 0))[0][:, real][..., real]

    return _layers(model, kept, samples, max_tokens, seed)


def model_streams(
    model: Given, *, samples: int, max_tokens: int, seed: int = 0
) -> Iterator[Float[Tensor, "depth token width"]]:
    """For one sequence after the other, the stream entering the first block and behind each, without padding."""

    def kept(frame: Frame) -> Kept | None:
        if not isinstance(frame, StreamFrame) or frame.site != "stream":
            return None
        return frame.layer, frame.stream[0, frame.token_mask[0]].clone()

    return _layers(model, kept, samples, max_tokens, seed)


def _layers(
    model: Given, kept: Callable[[Frame], Kept | None], samples: int, max_tokens: int, seed: int
) -> Iterator[Tensor]:
    loaded = load(model, dtype="float64", seed=seed)
    prepared = batches_for(loaded, None, Sampling(samples, max_tokens, batch_size=1, seed=seed))
    place = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
    own = found.stacks[0].name
    seen: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        one = kept(frame) if frame.stack == own else None
        if one is not None:
            seen[one[0]] = one[1]

    for batch in prepared:
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, found, receive):
            loaded.model(**batch.to(place).inputs, **forward_options(loaded))
        yield torch.stack([one for _, one in sorted(seen.items())])
        seen.clear()


EXACT = torch.float64


def weight_of(width: int, eta: float, size: float, rng: torch.Generator) -> Float[Tensor, "width width"]:
    """s (eta I + sqrt(1 - eta^2) T)."""
    free = torch.randn(width, width, generator=rng, dtype=EXACT)
    identity = torch.eye(width, dtype=EXACT)
    free = free - free.trace() / width * identity
    free = free * (width**0.5 / free.norm())
    weight: Tensor = size * (eta * identity + math.sqrt(1 - eta**2) * free)
    return weight


def attend(x: Float[Tensor, "token width"], weight: Float[Tensor, "width width"]) -> Float[Tensor, "token token"]:
    pattern: Tensor = (x @ weight @ x.T / x.shape[-1] ** 0.5).softmax(-1)
    return pattern


def one_layer(tokens: int, width: int, eta: float, size: float, seed: int, depth: int) -> dict[str, float | int]:
    """Own-token attention and entropy of one layer; how much of the tokens' difference `depth` of them leave.

    Between layers tokens are made as long as they were, so that logits keep their size; each layer has its own T.
    """
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width, generator=rng, dtype=EXACT)
    pattern = attend(x, weight_of(width, eta, size, rng))
    stream = x
    for _ in range(depth):
        stream = attend(stream, weight_of(width, eta, size, rng)) @ stream
        stream = F.normalize(stream, dim=-1) * width**0.5
    centred = stream - stream.mean(0)
    return {
        "eta": eta,
        "size": size,
        "seed": seed,
        "own": float(pattern.diagonal().mean()),
        "entropy": float(torch.special.entr(pattern).sum(-1).mean()),
        "left": float(centred.norm() / stream.norm()),
    }


def head_weights(layer: Attention) -> Float[Tensor, "head width width"]:
    """W_Q W_K^T of every head, with the scale of the logits and the width's own taken out: logits x W y / sqrt(d)."""
    shape = layer.shape
    query, key = (one.weight.reshape(shape.heads, shape.dim, shape.width) for one in (layer.query, layer.key))
    weight: Tensor = query.mT @ key * (shape.width / shape.dim) ** 0.5
    return weight


def attentions(model: nn.Module) -> list[Attention]:
    return [one for one in model.modules() if isinstance(one, Attention)]


def locater(model: nn.Module, held: float) -> Tensor:
    """The mean of the penalty over heads."""
    parts = []
    for layer in attentions(model):
        weight = head_weights(layer)
        width = weight.shape[-1]
        trace = weight.diagonal(dim1=-2, dim2=-1).sum(-1) / width**0.5
        parts.append(weight.square().sum((-2, -1)) / width + (trace - held).square())
    return torch.cat(parts).mean()


def localised(growth: Growth, strength: float, held: float, seed: int, session: Session) -> dict[str, Any]:
    """A small language model of a book's letters, trained with so much of the penalty; 0 is without.

    `loss_to_choose_by` is on one half of what was held out: which penalty is best is asked of it alone, so that `loss`,
    on the other half, is not the luckiest of several.
    """
    text = characters(growth.tokens, growth.rows, seed, bos=growth.bos)
    unseen, to_choose = (
        characters(growth.tokens, growth.held, seed + HELD, bos=growth.bos, held_out=True, half=half) for half in (1, 0)
    )
    model = Decoder(growth.shape(text.vocabulary), seed)

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        rows = text.ids[torch.randint(0, len(text.ids), (growth.batch,), generator=rng)]
        said = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        return said + strength * locater(model, held) if strength else said

    name = f"LocAteR {strength:g}" if strength else "plain"
    recipe = Recipe(growth.steps, growth.rate, decay=growth.decay, beta2=0.95)
    train(model, loss, recipe, seed=seed, advance=session.advance, stage=f"{name}, seed {seed}")
    seen = model.observe(unseen.ids[:, :-1])
    patterns = [pattern.double() for pattern in seen.patterns if pattern is not None]
    weights = torch.cat([head_weights(layer).detach().double() for layer in attentions(model)])
    trace = weights.diagonal(dim1=-2, dim2=-1).sum(-1)
    return {
        "strength": strength,
        "seed": seed,
        "loss": float(F.cross_entropy(seen.logits.flatten(0, 1), unseen.ids[:, 1:].flatten())),
        "loss_to_choose_by": loss_on(model, to_choose),
        "chance": math.log(text.vocabulary),
        "own": sum(float(own(pattern)) for pattern in patterns) / len(patterns),
        "entropy": sum(map(relative_entropy, patterns)) / len(patterns),
        "eta": float((trace / (weights.shape[-1] ** 0.5 * weights.norm(dim=(-2, -1)))).mean()),
    }


@torch.no_grad()
def loss_on(model: Decoder, text: Text) -> float:
    return float(F.cross_entropy(model(text.ids[:, :-1]).flatten(0, 1), text.ids[:, 1:].flatten()))


def own(pattern: Float[Tensor, "batch head token token"]) -> Float[Tensor, ""]:
    """Mean attention of a token to itself; the first one, which has no choice, is left out."""
    return pattern.diagonal(dim1=-2, dim2=-1)[..., 1:].mean()


def in_a_trained_model(model: str, samples: int, max_tokens: int) -> list[dict[str, Any]]:
    """For every head of a real model: eta of its weights, and what its tokens give to themselves on text."""
    survey = scan(model, measures=("qk_spectrum", "self_attention"), samples=samples, max_tokens=max_tokens)
    eta, mean = survey.values("qk_spectrum", "eta"), survey.values("qk_spectrum", "mean")
    given = survey.values("self_attention")
    return [
        {
            "layer": layer,
            "head": head,
            "eta": float(eta[layer, head]),
            "mean": float(mean[layer, head]),
            "own": float(given[layer, head]),
        }
        for layer in range(len(eta))
        for head in range(eta.shape[1])
    ]
