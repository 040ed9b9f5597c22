"""Successive lookups by attention and by memories of fixed size, hand-built and trained (arXiv:2602.01763).

The models are in `papers/models/composers.py` and `papers/models/two_sum.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Session
from attnscope.matrix.linear_attention import delta_error, delta_memory, least_error, sum_error, sum_memory
from attnscope.papers.models.composers import composer, hybrid, shortcut, wide, window
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.tasks import Composition
from attnscope.papers.models.two_sum import TwoSum, draw_sums, full_two_sum, random_codes, right, seen_by_chance

EXACT = torch.float64


def largest_composition(folds: int, tokens: int) -> Composition:
    """Return the task with the largest tables that fit into `tokens`; a quarter of them, at most 64, are queries."""
    queries = min(64, tokens // 4)
    return Composition(folds, (tokens - queries) // folds, queries)


@torch.no_grad()
def share_right(model: nn.Module, task: Composition, rows: int, seed: int) -> float:
    """Return the share of queries with a correct final answer, on random functions."""
    rng, hits = torch.Generator().manual_seed(seed), 0
    for _ in range(rows):
        text = task.draw(1, rng)
        predicted = model(vectors=task.vectors(text))[:, -task.queries :].argmax(-1)
        hits += int((predicted == text.answers[..., -1]).sum())
    return hits / (rows * task.queries)


def by_hand(folds: Sequence[int], tokens: Sequence[int], rows: int, seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of hand-built models: `composer`, and `shortcut` if `folds` is a power of 2."""
    rows_out = []
    for number in folds:
        for size in tokens:
            task = largest_composition(number, size)
            sizes = {"folds": number, "tokens": task.tokens, "arguments": task.arguments}
            models = {"composer": composer(task)}
            if number & (number - 1) == 0:
                models["shortcut"] = shortcut(task)
            for kind, model in models.items():
                accuracy = share_right(model, task, rows, seed)
                rows_out.append(sizes | {"kind": kind, "layers": len(model.blocks), "accuracy": accuracy})
    return rows_out


def fewer_lookups(folds: int, tokens: int, rows: int, seed: int) -> list[dict[str, Any]]:
    task = largest_composition(folds, tokens)
    return [
        {
            "lookups": lookups,
            "chance": 1 / task.arguments,
            "accuracy": share_right(composer(task, lookups), task, rows, seed),
        }
        for lookups in range(1, folds + 1)
    ]


def bases(pairs: int, width: int, rng: torch.Generator) -> Float[Tensor, "pair dim"]:
    """Return this many keys, taken from successive random orthonormal bases."""
    parts = [
        torch.linalg.qr(torch.randn(width, width, generator=rng, dtype=EXACT)).Q for _ in range(-(-pairs // width))
    ]
    return torch.cat(parts)[:pairs]


def recall(width: int, pairs: int, values: int, seed: int) -> dict[str, float | int]:
    """Return the mean squared error of recalling all stored pairs, relative to the mean square of the values.

    The `values` coordinates of a value are independent, so each of them counts as a separate draw.
    """
    rng = torch.Generator().manual_seed(seed)
    key = bases(pairs, width, rng)
    value = torch.randn(pairs, values, generator=rng, dtype=EXACT)
    least = key @ torch.linalg.lstsq(key, value, driver="gelsd").solution
    answers = {
        "delta": (delta_memory(key, key, value), delta_error(width, pairs)),
        "sum": (sum_memory(key, key, value), sum_error(width, pairs)),
        "least": (least, least_error(width, pairs)),
    }
    row: dict[str, float | int] = {"width": width, "pairs": pairs}
    for name, (answer, formula) in answers.items():
        row[name] = float((answer - value).square().mean())
        row[f"{name}_formula"] = formula
    # Sharp softmax with the same keys: every query is more similar to its own key than to any other.
    sharp = F.scaled_dot_product_attention(1e4 * key[None], key[None], value[None], scale=1.0)[0]
    return row | {"softmax": float((sharp - value).square().mean())}


def partners(arguments: int, widths: Sequence[int], rows: int, seed: int) -> list[dict[str, Any]]:
    """Return the accuracy of two lookups in two blocks of given kinds, for keys of several widths.

    Keys are orthonormal if the width allows it. Every block stores one table, so a memory must be as wide as the table
    has entries.
    """
    task = Composition(2, arguments, arguments)
    near = window(task.tokens // 4)
    kinds: dict[str, tuple[Any, Any]] = {
        "full, full": ("full", "full"),
        "full, delta": ("full", "delta"),
        "full, linear": ("full", "linear"),
        "delta, delta": ("delta", "delta"),
        "full, window": ("full", near),
    }
    results = []
    for width in widths:
        rng = torch.Generator().manual_seed(seed)
        random = torch.randn(max(width, arguments), width, generator=rng)
        keys = torch.linalg.qr(random).Q if width >= arguments else F.normalize(random, dim=-1)
        for name, pair in kinds.items():
            model = wide(task, keys[:arguments], pair)
            accuracy = share_right(model, task, rows, seed)
            results.append({"width": width, "entries": arguments, "kinds": name, "accuracy": accuracy})
    return results


@torch.no_grad()
def sums_by_full(tokens: Sequence[int], seed: int) -> list[dict[str, Any]]:
    found = []
    for size in tokens:
        model = full_two_sum(8 * size + 1)
        sums = draw_sums(1, size, len(model.codes), torch.Generator().manual_seed(seed))
        hit, left = right(model(sums.ids), sums)
        found.append({"tokens": size, "width": model.codes.shape[1], "found": hit, "left": left})
    return found


@torch.no_grad()
def sums_by_blocks(
    tokens: int, blocks: Sequence[int], kept: int, widths: Sequence[int], rows: int, seed: int
) -> list[dict[str, Any]]:
    """Return the share of partners that (B, k)-sparse attention finds, per width of codes; `full` sees all keys."""
    rng = torch.Generator().manual_seed(seed)
    modulus, found = 8 * tokens + 1, []
    sums = draw_sums(rows, tokens, modulus, rng)
    for width in widths:
        codes = random_codes(modulus, width, rng)
        everything = right(TwoSum(codes, 0.9, 200.0)(sums.ids), sums)[0]
        for block in blocks:
            hit, _ = right(TwoSum(codes, 0.9, 200.0, block, kept)(sums.ids), sums)
            formula = seen_by_chance(width, block, kept, tokens)
            found.append({"block": block, "width": width, "found": hit, "formula": formula, "full": everything})
    return found


@dataclass(frozen=True)
class Learning:
    """Sizes and training of a nano model without MLPs and biases; the loss includes the answer after every function."""

    width: int = 64
    heads: int = 4
    head_width: int = 16
    queries: int = 16
    batch: int = 32
    rate: float = 1e-2


def learned(
    how: Learning, folds: int, arguments: int, kinds: Sequence[str], steps: int, seed: int, session: Session
) -> dict[str, Any]:
    """Train one block per function, of these kinds, and return the accuracy after each function on new functions."""
    task = Composition(folds, arguments, how.queries)
    sizes: dict[str, Any] = {"width": how.width, "heads": how.heads, "head_width": how.head_width, "layers": folds}
    sizes |= {"inputs": task.inputs, "out": task.entries}
    config = Config(**sizes, norm_kind="rms", positions="none", causal=True, biases=False)
    model = hybrid(Nano(config, seed), kinds)

    def hops(model: nn.Module, rows: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        text = task.draw(rows, rng)
        return model(vectors=task.vectors(text))[:, -task.queries :].unflatten(-1, (folds, -1)), text.answers

    def loss(model: nn.Module, rng: torch.Generator) -> Tensor:
        logits, answers = hops(model, how.batch, rng)
        return F.cross_entropy(logits.flatten(0, 2), answers.flatten())

    name = ", ".join(kinds)
    train(
        model,
        loss,
        Recipe(steps, how.rate, decay=0.0),
        seed=seed,
        kept=session.state_path(f"{folds}-{arguments}-{name.replace(', ', '-')}-{seed}"),
        advance=session.advance,
        stage=f"{name}, {folds} of {arguments}, seed {seed}",
    )
    with torch.no_grad():
        logits, answers = hops(model, 200, torch.Generator().manual_seed(10_000 + seed))
    right_share = (logits.argmax(-1) == answers).double().mean((0, 1)).tolist()
    return {
        "folds": folds,
        "arguments": arguments,
        "kinds": name,
        "seed": seed,
        "accuracy": right_share[-1],
        "hops": right_share,
        "chance": 1 / arguments,
        "numbers": sum(parameter.numel() for parameter in model.parameters()),
    }
