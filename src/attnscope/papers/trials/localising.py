"""Attention that stays with its own token when the spectrum of W_Q W_K^T is concentrated (arXiv:2402.02098).

Let W = W_Q W_K^T be of size d x d, eta = tr(W) / (sqrt(d) ||W||_F) and ||W||_F^2 = s^2 d. Take W = s (eta I +
sqrt(1 - eta^2) T), where T has trace 0 and ||T||_F^2 = d, and tokens x ~ N(0, I). A logit x_i W x_j / sqrt(d) between
different tokens then has mean 0 and standard deviation s for any eta; the logit of a token with itself has mean
s eta sqrt(d). So eta moves attention from all tokens to the token itself, and s alone decides how sharp the rest is:
with a small s it is uniform (rank collapses), with a large s it goes to one random key (entropy collapses).

LocAteR is a penalty that shrinks ||W||_F^2 and keeps tr(W) fixed, so that eta grows. Our version is, for every head,
||W||_F^2 / d + (tr(W) / sqrt(d) - held)^2, with W scaled so that logits are x_i W x_j / sqrt(d) as above.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.scan.run import scan
from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Session
from attnscope.papers.models.decoder import Attention, Decoder
from attnscope.papers.models.tasks import Text, characters
from attnscope.papers.trials.sinks_and_spikes import HELD, Growth, relative_entropy

EXACT = torch.float64


def weight_of(width: int, eta: float, size: float, rng: torch.Generator) -> Float[Tensor, "width width"]:
    """Draw a matrix W = s (eta I + sqrt(1 - eta^2) T), with s = `size`."""
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
    """Return own-token attention and entropy of one block, and how different tokens still are after `depth` blocks.

    After each block tokens are rescaled to norm sqrt(width), so that logits keep their size; each block has its own T.
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
    """Return W for every head, scaled so that its logits are x W y / sqrt(d), where d is the width of the stream."""
    shape = layer.shape
    query, key = (linear.weight.reshape(shape.heads, shape.dim, shape.width) for linear in (layer.query, layer.key))
    weight: Tensor = query.mT @ key * (shape.width / shape.dim) ** 0.5
    return weight


def attentions(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


def locater(model: nn.Module, held: float) -> Tensor:
    """Return the LocAteR penalty, averaged over heads."""
    parts = []
    for layer in attentions(model):
        weight = head_weights(layer)
        width = weight.shape[-1]
        trace = weight.diagonal(dim1=-2, dim2=-1).sum(-1) / width**0.5
        parts.append(weight.square().sum((-2, -1)) / width + (trace - held).square())
    return torch.cat(parts).mean()


def localised(growth: Growth, strength: float, held: float, seed: int, session: Session) -> dict[str, Any]:
    """Train a small language model on the letters of a book with the penalty times `strength`.

    `loss_to_choose_by` is the loss on one half of the held-out text. Only it is used to choose the penalty, so that
    `loss`, on the other half, is not the luckiest of several.
    """
    text = characters(growth.tokens, growth.rows, seed, bos=growth.bos)
    unseen, to_choose = (
        characters(growth.tokens, growth.held, seed + HELD, bos=growth.bos, held_out=True, half=half) for half in (1, 0)
    )
    model = Decoder(growth.shape(text.vocabulary), seed)

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        rows = text.ids[torch.randint(0, len(text.ids), (growth.batch,), generator=rng)]
        fit = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        return fit + strength * locater(model, held) if strength else fit

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
    """Return the mean attention of tokens to themselves, leaving out the first token, which sees only itself."""
    return pattern.diagonal(dim1=-2, dim2=-1)[..., 1:].mean()


def in_a_trained_model(model: str, samples: int, max_tokens: int) -> list[dict[str, Any]]:
    """Return, for every head of a trained model, its eta and the attention of tokens to themselves on text."""
    survey = scan(model, measures=("qk_spectrum", "self_attention"), samples=samples, max_tokens=max_tokens)
    eta, mean = survey.values("qk_spectrum", "eta"), survey.values("qk_spectrum", "mean")
    own_mass = survey.values("self_attention")
    return [
        {
            "layer": layer,
            "head": head,
            "eta": float(eta[layer, head]),
            "mean": float(mean[layer, head]),
            "own": float(own_mass[layer, head]),
        }
        for layer in range(len(eta))
        for head in range(eta.shape[1])
    ]
