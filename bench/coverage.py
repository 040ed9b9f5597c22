"""How often intervals hold the true mean, and how often some head of many is wrongly called sure: by simulation.

    python -m bench.coverage        writes the tables of docs/intervals.md (a few minutes on one core)

A pool is a distribution whose mean is known. Samples of n are drawn from it again and again, and every sample gets its
interval by `stats.intervals`. Real pools are gaps of `explain --evaluate` (differences of two methods, text by text)
and values of heads of `paths` over prompts, each shifted to mean zero (`tests/stats/real_numbers.json`). A sample of a
real pool is drawn with replacement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from attnscope.stats.intervals import fewest, simultaneous_means, single_means
from tools.marked import put_between_marks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "intervals.md"
REAL = json.loads((ROOT / "tests" / "stats" / "real_numbers.json").read_text())
SIZES = (6, 8, 16, 24, 32)
HEADS = 144

Table = np.ndarray  # [sample, number]
Pool = Callable[[np.random.Generator, tuple[int, int]], Table]


def _real(columns: list[list[float]]) -> Pool:
    """Return draws of whole rows: numbers that were measured on one text stay together."""
    rows = np.array(columns).T
    rows = rows - rows.mean(0)

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Table:
        chosen = rng.integers(0, rows.shape[1], shape[1])
        drawn: Table = rows[rng.integers(0, len(rows), shape[0])][:, chosen]
        return drawn

    return draw


def _apart(gaps: dict[str, list[float]]) -> list[list[float]]:
    return [[a - b for a, b in zip(one, other, strict=True)] for one, other in combinations(gaps.values(), 2)]


POOLS: dict[str, Pool] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "lognormal": lambda rng, shape: np.exp(rng.normal(size=shape)) - math.exp(0.5),
    "Student, 3 degrees": lambda rng, shape: rng.standard_t(3, size=shape),
    "two points, 4 in 1 of 5": lambda rng, shape: 4.0 * (rng.random(shape) < 0.2) - 0.8 + 0.5 * rng.normal(size=shape),
    "gaps of pocket": _real(_apart(REAL["gaps"]["pocket"])),
    "gaps of MiniLM": _real(_apart(REAL["gaps"]["minilm"])),
    "heads of pocket": _real(REAL["heads"]["pocket"]),
    "heads of SmolLM2": _real(REAL["heads"]["smollm2"]),
}


def coverage(pool: Pool, n: int, samples: int = 4000, seed: int = 0, alike: int = 1) -> float:
    """Return the share of samples whose interval holds the mean, which is zero.

    With `alike` above 1, that many texts come from each of n documents: half of their variance is the document's.
    """
    rng = np.random.default_rng(seed)
    held = 0
    for begin in range(0, samples, 500):  # real pools draw their rows together, so draw them several times
        several = min(500, samples - begin)
        table = np.concatenate([pool(rng, (n, 1)) for _ in range(several)], 1)
        if alike > 1:
            table = alike * table + np.stack([pool(rng, (n, several)) for _ in range(alike)]).sum(0)
        _, low, high = single_means(table, np.full(n, float(alike)))
        held += int(((low <= 0) & (high >= 0)).sum())
    return held / samples


def called_sure(pool: Pool, n: int, experiments: int = 500, numbers: int = HEADS, seed: int = 0) -> float:
    """Return the share of experiments in which some number with mean zero is called different from zero."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(experiments):
        mean, off = simultaneous_means(pool(rng, (n, numbers)), np.ones(n))
        wrong += bool((np.abs(mean) > off).any())
    return wrong / experiments


def tables() -> tuple[str, str]:
    sizes = " | ".join(f"{n} texts" for n in SIZES)
    rule = "|---" + "|---:" * len(SIZES) + "|"
    alone = [f"| numbers | {sizes} |", rule]
    together = [f"| {HEADS} numbers, all zero | {sizes} |", rule]
    for name, pool in POOLS.items():
        alone.append(f"| {name} | " + " | ".join(f"{100 * coverage(pool, n):.1f}" for n in SIZES) + " |")
        wrong = ["refuses" if n < fewest(HEADS) else f"{100 * called_sure(pool, n):.1f}" for n in SIZES]
        together.append(f"| {name} | " + " | ".join(wrong) + " |")
        print(alone[-1], together[-1], sep="\n", flush=True)
    for name in ("normal", "exponential"):
        cells = " | ".join(f"{100 * coverage(POOLS[name], n, alike=2):.1f}" for n in SIZES)
        alone.append(f"| {name}, two texts from each document | {cells} |")
    return "\n".join(alone), "\n".join(together)


def main() -> None:
    page = PAGE.read_text("utf-8")
    for name, table in zip(("alone", "together"), tables(), strict=True):
        page = put_between_marks(page, name, "bench/coverage.py", table)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
