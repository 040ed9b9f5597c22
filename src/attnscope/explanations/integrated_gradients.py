"""Integrated gradients (arXiv:1703.01365): the gradient along the straight line from an input without information.

    (e - b) * integral from 0 to 1 of d answer / d e at b + t (e - b) dt

The scores of all tokens add up to answer(e) - answer(b) (completeness). The same holds for every piece of the line,
from t = u to t = v: its scores add up to answer(v) - answer(u). So the error of a piece is known without another rule,
and points are spent where the line is steep (norms make it steep near an input without information): the line is cut
into PIECES, each computed by Gauss's rule, and the piece with the largest error is halved until the errors of all
pieces together are below NEAR, or MOST points were used. The record says what scores add up to, and what they should.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.explanation import explanation
from attnscope.matrix.relevance import TokenScores, TokenVectors

PIECES = 4  # at the beginning
POINTS = 8  # of Gauss's rule in a piece, which go through the model together
MOST = 320  # points
NEAR = 0.03  # tolerance of all errors together, as a share of answer(e) - answer(b)
NOISE = 1e-4  # errors below this share of all changes along the line are rounding

Points = dict[str, Float[Tensor, "place token width"]]
Ask = Callable[..., Float[Tensor, " batch"]]


@dataclass(frozen=True)
class Piece:
    """Part of the line, from `begin` to `end`: the answers at its ends, its scores, and by how much they miss."""

    begin: float
    end: float
    answers: tuple[float, float]
    scores: TokenScores

    @property
    def error(self) -> float:
        total = sum(float(scores.double().sum()) for scores in self.scores.values())
        return abs(total - (self.answers[1] - self.answers[0]))


@explanation(
    title="Integrated gradients",
    summary="The gradient, integrated along the line from a neutral input.",
    citation="arXiv:1703.01365",
    formula="<e - b, integral of d answer / d e from b to e>",
    cost=f"{PIECES * POINTS} to {MOST} backward passes, until the sum is right",
    signed=True,
    adds_up="the answer minus that for a neutral input",
    sums_to="difference",
)
def integrated_gradients(embedding: TokenVectors, baseline: TokenVectors, ask: Ask) -> TokenScores:
    ends = np.linspace(0.0, 1.0, PIECES + 1).tolist()
    answers = _answers(embedding, baseline, ask, ends)
    pieces = [
        _piece(embedding, baseline, ask, *zip(ends[k : k + 2], answers[k : k + 2], strict=True)) for k in range(PIECES)
    ]
    wanted = abs(answers[-1] - answers[0])
    for _ in range(PIECES, MOST // POINTS, 2):
        moved = sum(abs(piece.answers[1] - piece.answers[0]) for piece in pieces)
        if sum(piece.error for piece in pieces) <= max(NEAR * wanted, NOISE * moved):
            break
        worst = max(pieces, key=lambda piece: piece.error)
        pieces.remove(worst)
        middle = (worst.begin + worst.end) / 2
        (between,) = _answers(embedding, baseline, ask, [middle])
        first, half, last = (worst.begin, worst.answers[0]), (middle, between), (worst.end, worst.answers[1])
        pieces += [_piece(embedding, baseline, ask, *side) for side in ((first, half), (half, last))]
    return {stack: torch.stack([piece.scores[stack] for piece in pieces]).sum(0) for stack in embedding}


def _on_line(embedding: TokenVectors, baseline: TokenVectors, places: list[float]) -> Points:
    found = {}
    for stack, own in embedding.items():
        t = torch.tensor(places, dtype=own.dtype, device=own.device)[:, None, None]
        found[stack] = torch.lerp(baseline[stack][None], own[None], t)
    return found


@torch.no_grad()
def _answers(embedding: TokenVectors, baseline: TokenVectors, ask: Ask, places: list[float]) -> list[float]:
    found: list[float] = ask(_on_line(embedding, baseline, places)).double().tolist()
    return found


def _piece(
    embedding: TokenVectors, baseline: TokenVectors, ask: Ask, begin: tuple[float, float], end: tuple[float, float]
) -> Piece:
    """Integrate from `begin` to `end`, each a place on the line and the answer there, by Gauss's rule."""
    (u, start), (v, stop) = begin, end
    places, weights = np.polynomial.legendre.leggauss(POINTS)
    points = _on_line(embedding, baseline, (u + (v - u) * (places + 1) / 2).tolist())
    points = {stack: vectors.requires_grad_() for stack, vectors in points.items()}
    gradients = torch.autograd.grad(ask(points).sum(), list(points.values()))
    scores = {}
    for stack, gradient in zip(points, gradients, strict=True):
        share = torch.from_numpy(weights * (v - u) / 2).to(gradient)[:, None, None]
        scores[stack] = ((embedding[stack] - baseline[stack]) * (gradient * share).sum(0)).sum(-1)
    return Piece(u, v, (start, stop), scores)
