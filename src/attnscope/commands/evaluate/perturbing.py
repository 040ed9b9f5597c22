"""Measure how faithful an explanation is: remove tokens in the order of its scores, and follow the answer.

    positive     area with the most important tokens removed first: small if the answer falls at once
    negative     area with the least important tokens removed first: large if the answer stays
    comprehensiveness, sufficiency (arXiv:1911.03429): the loss of the answer without the most important tokens, and
                 with only these, averaged over BINS
    soft         the last two with tokens kept in part, and equally much in total for every method (below)

A removed token is replaced by another vector (`replacing`), and special tokens stay. With a vector that stands for no
token the model never saw such inputs (arXiv:1806.10758): areas say which of two methods is better on one model, not how
well a model is explained.

An answer that grows counts as 1 (as in arXiv:2010.04736): the probability of an unsure answer can grow tenfold by
chance, and a few such texts would dominate the mean. `log_gap` has no such limit: it is the mean over steps of the log
of the answer with the least important tokens removed first, minus that with the most important first.

Soft erasure. Hard removal treats the first and the last of the removed tokens alike, and makes texts that no model has
seen. Soft erasure (arXiv:2305.10496) drops single entries of a token's vector instead, each kept with a probability
that grows with the token's score. Methods with large average scores then keep more and look better, above all in
decoders, so the expected share that is kept is made equal for all (arXiv:2601.03089). The result still depends on the
*shape* of the scores (a few large ones, or all alike), even for random scores. So scores are replaced by ranks: with
a = 0 for the least important token, 1 for the most, and equal steps between them, whose mean is 1/2,

    p = 2 s a                    for a share s of 1/2 or less
    p = 1 - 2 (1 - s) (1 - a)    for more

The mean of p is s, and p at share s is 1 - p of the reversed order at share 1 - s. SHARES are as far below 1/2 as above
it, so that for a random order `kept` and `dropped` have the same distribution, and the soft gap (the loss without the
tokens minus the loss with them alone) is 0 on average for any answer. Equal scores are put in a random order, which is
the same for all methods. Equal ranks would not do: one token above many equal ones has another shape when reversed, and
its gap is not 0.

`kept` keeps entries with probability p (they should suffice for the answer), `dropped` with 1 - p. Random numbers are
drawn once for a text and used for every method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.commands.evaluate.replacing import beginnings
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus
from attnscope.data.prompts import Class, labelled
from attnscope.hf.loading.load import Loaded, Ready, Text
from attnscope.hf.loading.options import Sampling

SHARES = (0.25, 0.5, 0.75)
DRAWS = 2
AWAY = 6_364_136_223  # added to a seed to keep it apart from those of random explanations, which span a few millions
STEPS = 10  # the removed shares of tokens are 0, 1/STEPS, ..., 1
BINS = (0.05, 0.1, 0.2, 0.5)
AT_ONCE = 16  # answers computed together

Vectors = dict[str, Float[Tensor, "token width"]]
Ask = Callable[[dict[str, Float[Tensor, "batch token width"]]], Float[Tensor, " batch"]]


def ranks_of(scores: Float[Tensor, " token"], generator: torch.Generator) -> Int[Tensor, " token"]:
    """Return the rank of every score, 0 for the smallest. Equal scores are ranked in random order."""
    exact = scores.double().cpu()
    shuffled = torch.randperm(len(exact), generator=generator)
    order = shuffled[exact[shuffled].argsort(stable=True)]
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))


def retention(ranks: Int[Tensor, " token"], share: float) -> Float[Tensor, " token"]:
    """Return p for every token in float64: from 0 to 1, increasing with the rank, with mean `share`."""
    count = len(ranks)
    if count < 2:
        return torch.full((count,), share, dtype=torch.float64)
    a = ranks.double() / (count - 1)
    return 2 * share * a if share <= 1 / 2 else 1 - 2 * (1 - share) * (1 - a)


def soft_masks(
    scores: Float[Tensor, " token"], width: int, seed: int
) -> tuple[Bool[Tensor, "draw token width"], Bool[Tensor, "draw token width"]]:
    """Return masks of entries kept with probability p, and with 1 - p, for every share and draw."""
    # These random numbers must differ from those of the random explanation of the same text.
    generator = torch.Generator().manual_seed(seed + AWAY)
    ranks = ranks_of(scores, generator)
    kept, dropped = [], []
    for share in SHARES:
        p = retention(ranks, share)[:, None]
        for _ in range(DRAWS):
            chance = torch.rand(len(scores), width, generator=generator, dtype=torch.float64)
            kept.append(chance < p)
            dropped.append(chance < 1 - p)
    return torch.stack(kept), torch.stack(dropped)


@dataclass(frozen=True)
class Perturbed:
    """Areas and losses of one explanation. Answers are shares of the original answer, at most 1."""

    positive: float
    negative: float
    comprehensiveness: float
    sufficiency: float
    soft_comprehensiveness: float
    soft_sufficiency: float
    log_gap: float  # in nats
    falling: tuple[float, ...]  # the answer after each step, if the most important tokens are removed first
    staying: tuple[float, ...]  # the answer after each step, if the least important tokens are removed first


class NoAnswerError(RefusalError):
    """The answer is already 0 before a token is removed."""


def averaged(found: Sequence[Perturbed]) -> Perturbed:
    """Return the mean of several perturbations, field by field and step by step."""

    def mean(values: Sequence[Any]) -> Any:
        if isinstance(values[0], tuple):
            return tuple(map(mean, zip(*values, strict=True)))
        return math.fsum(values) / len(values)

    return Perturbed(*(mean([getattr(each, name.name) for each in found]) for name in fields(Perturbed)))


@torch.no_grad()
def perturbed(
    ask: Ask,
    embedding: Vectors,
    baseline: Vectors,
    scores: dict[str, Float[Tensor, " token"]],
    seed: int = 0,
    free: Mapping[str, Bool[Tensor, " token"]] | None = None,
) -> Perturbed:
    """Return areas under both curves, and the loss without and with the most important tokens.

    `ask` returns the answer, a number >= 0 such as a probability. Tokens with equal scores are removed in the order in
    which they were read. Only `free` tokens are removed (default: all).
    """
    stacks = [stack for stack in embedding if stack in scores]
    every = torch.cat([scores[stack] for stack in stacks])
    may_go = torch.ones_like(every, dtype=torch.bool) if free is None else torch.cat([free[stack] for stack in stacks])
    numbers = every[may_go]
    if not len(numbers):
        raise NoAnswerError("The text has special tokens only: choose another text.")
    order = numbers.argsort(descending=True, stable=True)
    count = len(order)
    areas = [round(step * count / STEPS) for step in range(STEPS + 1)]
    bins = [max(1, round(share * count)) for share in BINS]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(count, device=order.device))
    hard = [rank >= gone for gone in areas] + [rank < count - gone for gone in areas]
    hard += [rank >= gone for gone in bins] + [rank < left for left in bins]
    soft = soft_masks(numbers, max(embedding[stack].shape[-1] for stack in stacks), seed)
    among_free = [*(mask[:, None] for mask in hard), *soft[1].to(order.device), *soft[0].to(order.device)]
    kept = [mask.new_ones(len(every), mask.shape[1]).index_put((may_go,), mask) for mask in among_free]
    found = torch.cat(list(_answers(ask, embedding, baseline, stacks, kept)))
    whole = float(found[0])
    if not whole > 0:
        raise NoAnswerError("The answer is 0 before a token is removed: choose another text.")
    logs = found[: 2 * len(areas)].double().clamp_min(torch.finfo(torch.float32).tiny).log().tolist()
    shares = iter((found / whole).clamp_max(1.0).tolist())
    positive, negative = ([next(shares) for _ in areas] for _ in range(2))
    without, alone = ([next(shares) for _ in bins] for _ in range(2))
    soft_without, soft_alone = ([next(shares) for _ in side] for side in soft)
    return Perturbed(
        positive=_area(positive),
        negative=_area(negative),
        comprehensiveness=_lost(without),
        sufficiency=_lost(alone),
        soft_comprehensiveness=_lost(soft_without),
        soft_sufficiency=_lost(soft_alone),
        log_gap=_area(logs[len(areas) :]) - _area(logs[: len(areas)]),
        falling=tuple(positive),
        staying=tuple(negative),
    )


def _answers(
    ask: Ask, embedding: Vectors, baseline: Vectors, stacks: list[str], kept: list[Bool[Tensor, "token entries"]]
) -> Iterator[Float[Tensor, " rows"]]:
    """Yield the answer for each mask of kept tokens. Masks have one column for whole tokens, or one per entry."""
    lengths = [len(embedding[stack]) for stack in stacks]
    for begin in range(0, len(kept), AT_ONCE):
        vectors = {stack: [own] * len(kept[begin : begin + AT_ONCE]) for stack, own in embedding.items()}
        for row, mask in enumerate(kept[begin : begin + AT_ONCE]):
            for stack, part in zip(stacks, torch.split(mask, lengths), strict=True):
                own = embedding[stack]
                vectors[stack][row] = torch.where(part[:, : own.shape[-1]], own, baseline[stack])
        yield ask({stack: torch.stack(rows) for stack, rows in vectors.items()})


def _lost(shares: list[float]) -> float:
    return 1 - sum(shares) / len(shares)


def _area(values: list[float]) -> float:
    """Return the area under a curve over equal steps, as a share of the whole width."""
    return (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)


def labelled_batches(
    loaded: Loaded, source: Corpus | Text | Ready | None, labels: str | Sequence[Class], sampling: Sampling
) -> tuple[Batches, tuple[Class, ...]]:
    """Return batches of one sequence, and the class of each.

    A class belongs to a whole document, so only the first window of each document is used.
    """
    if source is None or isinstance(source, Corpus | Batches | Mapping):
        raise RefusalError("Labels need a corpus: give a .jsonl file with a field of classes, or a list of texts.")
    corpus, classes = labelled(source, labels, sampling.field)
    ready, numbers = beginnings(loaded, corpus, sampling)
    return ready, tuple(classes[number] for number in numbers)
