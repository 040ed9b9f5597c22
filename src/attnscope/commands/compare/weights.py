"""The tensors of two models that differ: by how much, where in the tensor, and in which block. No torch here.

    tensor_change("down_proj.weight", before, after).words     "row 17 ×80"

`relative` is the Frobenius norm of the difference, divided by that of the first tensor. Rows and columns are those of
the stored tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnscope.core.ranges import Count, Index, Share, SizeOrNan
from attnscope.core.words import number, percent, ranges

Happened = Literal["differs", "missing", "extra", "shape"]
Part = Literal["attention", "mlp", "norm", "outside"]
_MOST_RUNS = 3  # runs of rows that are named
_FEW = 0.02  # share of rows that can hold nearly all of a difference
_NEARLY = 0.9
_PROPORTIONAL = 1e-3


@dataclass(frozen=True)
class Home:
    """Where a tensor belongs: its block and part, and which of its rows or columns are which head."""

    stack: str = ""
    layer: Index | None = None
    part: Part = "outside"
    heads_axis: Literal[0, 1] | None = None
    heads: tuple[tuple[int, int], ...] = ()  # first row (or column) and one past the last, of every head
    heads_noun: str = "head"


@dataclass(frozen=True)
class TensorChange:
    """One tensor that differs. `relative` is NaN for a missing tensor, or if the first one is zero."""

    name: str
    happened: Happened
    shape: tuple[Count, ...]
    relative: SizeOrNan = math.nan
    share: Share = 1.0  # of its entries that differ
    where: str = ""  # which rows or columns, and their factor
    stack: str = ""
    layer: Index | None = None
    part: Part = "outside"

    @property
    def words(self) -> str:
        if self.happened in ("missing", "extra"):
            return f"only in the {'first' if self.happened == 'missing' else 'second'} model"
        return "another shape" if self.happened == "shape" else self.where or "everywhere"


@dataclass(frozen=True)
class WeightsChange:
    """The tensors of one model that differ from those of the first, largest difference first."""

    compared: Count
    rounded: Count = 0  # tensors of which one is the other in bfloat16 or float16; they are not listed
    tensors: tuple[TensorChange, ...] = ()
    survey: Index = field(default=1)

    @property
    def equal(self) -> bool:
        return not self.tensors


def largest_first(change: TensorChange) -> tuple[int, float, str]:
    """Sort key: missing, extra and reshaped tensors, then the largest relative difference."""
    unknown = change.happened == "differs"
    return int(unknown), -(math.inf if math.isnan(change.relative) else change.relative), change.name


def tensor_change(
    name: str, before: NDArray[np.float32], after: NDArray[np.float32], home: Home
) -> TensorChange | None:
    """Return how a tensor differs, or None if every bit is equal."""
    at = {"stack": home.stack, "layer": home.layer, "part": home.part}
    if before.shape != after.shape:
        return TensorChange(name, "shape", after.shape, **at)  # type: ignore[arg-type]
    if np.array_equal(before, after, equal_nan=True):
        return None
    a, b = (np.atleast_2d(tensor.reshape(len(tensor), -1) if tensor.ndim > 1 else tensor) for tensor in (before, after))
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.subtract(b, a, dtype=np.float64)
    norm = float(np.linalg.norm(a.astype(np.float64)))
    off = float(np.linalg.norm(apart))
    known = norm > 0 and math.isfinite(off) and math.isfinite(norm)
    return TensorChange(
        name,
        "differs",
        after.shape,
        off / norm if known else math.nan,
        float(differ.mean()),
        _where(a, b, differ, apart, home, flat=before.ndim < 2),
        **at,  # type: ignore[arg-type]
    )


def _where(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    differ: NDArray[np.bool_],
    apart: NDArray[np.float64],
    home: Home,
    flat: bool,
) -> str:
    """Return `row 17 ×80`, `columns 64-127 = head 2`, `×80`, or nothing if the difference is all over the tensor."""
    broken = int((~np.isfinite(b)).sum())
    if broken and np.isfinite(a).all():
        return f"{broken:,} {'entry is' if broken == 1 else 'entries are'} NaN or infinite"
    axes = (1,) if flat else (0, 1)
    shares = {axis: np.flatnonzero(differ.any(axis=1 - axis)) for axis in axes}
    axis = min(axes, key=lambda axis: len(shares[axis]) / differ.shape[axis])
    chosen = shares[axis]
    noun = "entry" if flat else "row" if axis == 0 else "column"
    change = _factor(np.take(a, chosen, axis), np.take(b, chosen, axis))
    if len(chosen) == differ.shape[axis]:
        return change or _concentrated(apart, axes, flat)
    if 2 * len(chosen) > differ.shape[axis] or len(ranges(chosen.tolist()).split(", ")) > _MOST_RUNS:
        return change or _concentrated(apart, axes, flat)
    heads = "" if home.heads_axis != axis else _heads(chosen.tolist(), home)
    return f"{_numbered(noun, chosen.tolist())}{heads}{f' {change}' if change else ''}"


def _factor(a: NDArray[np.float32], b: NDArray[np.float32]) -> str:
    """Return `×80` if b is a multiple of a, `= 0` if it is zero."""
    one, two = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    size, square = float(np.linalg.norm(two)), float(one @ one)
    if size == 0:
        return "= 0"
    if square == 0 or not math.isfinite(square + size):
        return ""
    factor = float(one @ two) / square
    if float(np.linalg.norm(two - factor * one)) > _PROPORTIONAL * size:
        return ""
    return f"×{number(factor)}"


def _concentrated(apart: NDArray[np.float64], axes: Sequence[int], flat: bool) -> str:
    """Return `row 17 holds 98% of the difference` if a few rows or columns do."""
    for axis in axes:
        sizes = np.square(apart).sum(axis=1 - axis)
        few = max(1, int(_FEW * len(sizes)))
        if len(sizes) < 1 / _FEW or not sizes.sum() > 0:
            continue
        order = np.argsort(-sizes)[:few]
        held = np.cumsum(sizes[order]) / sizes.sum()
        if held[-1] >= _NEARLY:
            top = order[: int(np.argmax(held >= _NEARLY)) + 1]
            noun = "entry" if flat else "row" if axis == 0 else "column"
            verb = "holds" if len(top) == 1 else "hold"
            return f"{_numbered(noun, top.tolist())} {verb} {percent(float(held[len(top) - 1]))} of the difference"
    return ""


def _numbered(noun: str, chosen: Sequence[int]) -> str:
    several = {"entry": "entries"}.get(noun, f"{noun}s")
    return f"{noun if len(chosen) == 1 else several} {ranges(chosen)}"


def _heads(chosen: Sequence[int], home: Home) -> str:
    """Return ` = head 2`, ` in heads 2-3`."""
    inside = set(chosen)
    touched = [n for n, (start, end) in enumerate(home.heads) if inside & set(range(start, end))]
    if not touched:
        return ""
    whole = inside == {row for n in touched for row in range(*home.heads[n])}
    noun = home.heads_noun if len(touched) == 1 else f"{home.heads_noun}s"
    return f" {'=' if whole else 'in'} {noun} {ranges(touched)}"
