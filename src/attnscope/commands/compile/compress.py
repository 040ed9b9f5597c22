"""compress: find the narrowest head that selects given keys, for transformers that are built by hand.

    found = compress(selector)                   # boolean, queries x keys; or a score matrix W_QK
    found.head.logits()                          # scores whose selected keys are a margin above all others
    found.width, found.bounds.best.width         # the width found, and a lower bound of the width

Compilers of programs into weights give a head one dimension for each value they compare. A head only needs the logits
of selected keys to exceed all others by a margin that makes softmax nearly hard. Far fewer dimensions are enough for
that, depending on the selector (`j <= i` needs one, equality two). Attention is spread unevenly over the selected keys:
if their shares matter, compile the pattern instead.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.commands.compile.record import Try
from attnscope.commands.compile.search import SearchBudget, at_width, smallest
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.core.stamp import refuse_unusable_seed
from attnscope.heads.accuracy import Accuracy, Dtype, Factors, precision
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import NAMED_ROWS, UNITS, logits_and_slack, of_the_scale
from attnscope.heads.facts import Bounds, Certificate
from attnscope.heads.head import Head
from attnscope.heads.pattern import Pattern
from attnscope.heads.solvers.selection import Selection, gaps, separated

LEAK = 0.01  # largest share of attention off the selected keys with the default margin
TIE = 1e-9  # scores this close to the highest of their row (relative to its largest absolute score) are selected too
BORNE: dict[Dtype, float] = {"float64": 1e13, "float32": 1e5, "bfloat16": 50.0, "float16": 400.0}
"""The default `max_logit`. Above it the rounding error, max |logit| 2^-bits, is not small compared to the margin."""
_SLACKS = (
    1.001,
    1.02,
    1.1,
    1.3,
)  # margins to try, as multiples of the required one, because rounding costs some margin
_ROWS = 1024


@dataclass(frozen=True)
class MarginCertificate:
    """Smallest and mean gap between selected keys and all others, computed from the rounded tensors."""

    rows: int
    keys: int
    d: int
    dtype: str
    asked_margin: float
    margin: float
    mean_margin: float
    max_logit: float
    asked_max_logit: float
    failing: int
    failing_rows: tuple[int, ...]

    @property
    def reached(self) -> bool:
        return self.failing == 0


@dataclass(frozen=True, eq=False)
class Compressed:
    """A head that selects the given keys, its certificate, and lower bounds on its width."""

    head: Head
    certificate: MarginCertificate
    bounds: Bounds
    seed: int
    seconds: float
    tried: tuple[Try, ...]
    interrupted: bool = False

    @property
    def width(self) -> int:
        return self.head.width

    @property
    def proved_minimal(self) -> bool:
        return self.certificate.reached and self.width == self.bounds.best.width

    @property
    def query_weight(self) -> Float[Tensor, "row width"]:
        """Return W_Q for one-hot queries. It includes the factor sqrt(width) that attention divides by."""
        return self.head.queries

    @property
    def key_weight(self) -> Float[Tensor, "key width"]:
        """Return W_K for one-hot keys."""
        return self.head.keys

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.certificate),
            "reached": self.certificate.reached,
            "proved_minimal": self.proved_minimal,
            **self.bounds.to_json(),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "notes": dict(self.head.notes),
        }


def compress(
    selector: Any,
    *,
    margin: float | None = None,
    max_logit: float | None = None,
    dtype: str = "float32",
    width: int | None = None,
    seed: int = 0,
    budget: float = 300.0,
    progress: Advance = silent,
) -> Compressed:
    """Return the narrowest head found that puts each row's selected keys `margin` above all others.

    `selector` is boolean, or a score matrix whose rows select their highest entries. The default margin leaves at most
    1% of attention to other keys. No logit exceeds `max_logit`, whose default depends on `dtype`. With `width`, return
    the best head of that width. Ctrl-C ends the search with the best head so far. So does the `budget` in seconds, once
    there is a head that selects correctly (with `width`: any head).
    """
    begun = time.process_time()
    chosen = selected_keys(selector)
    exact = precision(dtype)
    margin = math.log(chosen.shape[1] / LEAK) if margin is None else float(margin)
    limit = BORNE[exact] if max_logit is None else float(max_logit)
    if not (math.isfinite(margin) and margin > 0):
        raise RefusalError(f"A margin of {margin:g} does not separate keys: choose a number above 0.")
    if not limit > margin / 2:
        raise RefusalError(
            f"Logits of at most {limit:g} cannot be {margin:g} apart: allow a max_logit above {margin / 2:g}."
        )
    refuse_unusable_seed(seed, lowest=0)
    if width is not None and width < 1:
        raise RefusalError(f"A head cannot have width {width}: choose 1 or more.")
    selection = Selection.of(chosen)
    bounds = _bounds(selection.chosen, exact)
    task = _Task(chosen, selection, margin, limit, exact)
    limits = SearchBudget(budget, "once reached" if width is None else "once built")
    if width is None:
        # One dimension for each different key is enough for any selector.
        lowest, most = bounds.best.width, selection.chosen.shape[1]
        widths = {"first": max(2, lowest), "lowest": lowest, "highest": most}
        best = smallest(task.build, **widths, seed=seed, budget=limits, advance=progress)
    else:
        best = at_width(task.build, width, seed=seed, budget=limits, advance=progress)
    return Compressed(
        head=best.head,
        certificate=task.certify(best.head),
        bounds=replace(bounds, logit_floor=margin / 2),
        seed=best.seed,
        seconds=time.process_time() - begun,
        tried=best.tried,
        interrupted=best.interrupted,
    )


def selected_keys(selector: Any) -> Bool[np.ndarray, "row key"]:
    """Return a selector as a boolean matrix. Refuse an invalid selector, and name its row."""
    array = selector.detach().cpu().numpy() if isinstance(selector, Tensor) else np.asarray(selector)
    if array.ndim != 2 or not array.size:
        raise RefusalError(f"A selector of shape {array.shape} is not a matrix: give one of queries by keys.")
    if array.dtype != np.bool_:
        if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
            raise RefusalError(f"A selector holds truth values or scores, not {array.dtype}: convert it.")
        scores = array.astype(np.float64)
        if not np.isfinite(scores).all():
            row = int(np.argmin(np.isfinite(scores).all(1)))
            raise RefusalError(f"Row {row} of the scores is not finite: replace infinities by large numbers.")
        array = scores >= scores.max(1, keepdims=True) - TIE * np.abs(scores).max(1, keepdims=True)
    empty = ~array.any(1)
    if empty.any():
        raise RefusalError(
            f"Row {int(np.argmax(empty))} selects no key, but softmax always attends to something: let it select one, "
            "such as the first token."
        )
    return np.asarray(array)


@dataclass(frozen=True, eq=False)
class _Task:
    chosen: Bool[np.ndarray, "row key"]
    selection: Selection
    margin: float
    limit: float
    dtype: Dtype

    def build(self, width: int, seed: int, advance: Advance) -> tuple[Head, Certificate]:
        rng = np.random.default_rng(seed)
        # Stay below the limit, because rounding may add to a logit.
        factors = separated(self.selection, width, 0.98 * self.limit / (self.margin * _SLACKS[0]), rng, advance)
        certified: list[tuple[Head, MarginCertificate]] = []
        for slack in _SLACKS:
            head = self._rounded(factors, slack)
            certified.append((head, self.certify(head)))
            if certified[-1][1].reached:
                break
        head, certificate = min(certified, key=lambda each: (each[1].failing, -each[1].margin))
        return head, _for_search(certificate)

    def _rounded(self, factors: Factors, slack: float) -> Head:
        """Round the keys, scale the queries to the margin on the rounded keys, then round the queries."""
        precision: torch.dtype = getattr(torch, self.dtype)
        keys = torch.from_numpy(factors.keys).to(precision)
        queries = torch.from_numpy(factors.queries)
        selected = torch.from_numpy(self.selection.chosen)
        logits = queries @ keys.double().T
        gap, largest = gaps(logits, selected), logits.abs().amax(1).clamp_min(1e-300)
        wanted = torch.where(gap > 0, self.margin * slack / gap, 1.0)
        wanted = torch.where(gap.isinf(), 1.0, torch.minimum(wanted, 0.999 * self.limit / largest))
        queries = queries * wanted[:, None] * factors.width**0.5
        whole = self.selection.spread(Factors(queries.numpy(), keys.double().numpy()))
        queries, keys = (torch.from_numpy(array).to(precision) for array in (whole.queries, whole.keys))
        return Head(queries, keys, causal=False, method="compress", notes=factors.notes)

    @torch.no_grad()
    def certify(self, head: Head) -> MarginCertificate:
        """Check every row of the rounded tensors, assuming the worst rounding of each logit (`heads.certificate`)."""
        chosen = torch.from_numpy(self.chosen)
        gap, largest, unit = [], 0.0, UNITS[precision(head.dtype)]
        for first in range(0, len(chosen), _ROWS):
            part = slice(first, first + _ROWS)
            logits, slack = logits_and_slack(head.queries[part], head.keys, head.scale, unit)
            peak = logits.masked_fill(~chosen[part], -torch.inf).amax(1)[:, None]
            slack += of_the_scale(logits - peak, head.scale, unit)
            gap.append(gaps(torch.where(chosen[part], logits - slack, logits + slack), chosen[part]))
            largest = max(largest, float((logits.abs() + slack).max()))
        every = torch.cat(gap)
        bad = ~(every >= self.margin) if largest <= self.limit else torch.ones(len(every), dtype=torch.bool)
        finite = every[every.isfinite()]
        return MarginCertificate(
            rows=len(self.chosen),
            keys=self.chosen.shape[1],
            d=head.width,
            dtype=head.dtype,
            asked_margin=self.margin,
            margin=float(every.min()),
            mean_margin=float(finite.mean()) if len(finite) else math.inf,
            max_logit=largest,
            asked_max_logit=self.limit,
            failing=int(bad.sum()),
            failing_rows=tuple(bad.nonzero().flatten().tolist()[:NAMED_ROWS]),
        )


def _for_search(margins: MarginCertificate) -> Certificate:
    """Express a margin as a certificate. The leak, exp(-margin), compares the best other key and the worst selected."""
    leak = math.exp(min(-margins.margin, 700.0))
    return Certificate(
        n=margins.rows,
        k=margins.keys,
        d=margins.d,
        dtype=margins.dtype,
        causal=False,
        ratio_error=0.0,
        mean_ratio_error=0.0,
        leak=leak,
        mean_leak=math.exp(min(-margins.mean_margin, 700.0)),
        zero_ratio=leak,
        max_logit=margins.max_logit,
        query_norm=math.nan,
        key_norm=math.nan,
        asked_ratio_error=1.0,
        asked_leak=math.exp(-margins.asked_margin),
        failing=margins.failing,
        failing_rows=margins.failing_rows,
    )


def _bounds(chosen: Bool[np.ndarray, "row key"], dtype: Dtype) -> Bounds:
    """Return the bounds that hold for any head with a gap in every row.

    They are the bounds for the uniform pattern with a leak so small that every row needs a gap.
    """
    rows, columns = np.nonzero(chosen)
    n, n_keys = chosen.shape
    uniform = Pattern.of(rows, columns, np.ones(len(rows)), n=n, n_keys=n_keys, normalise=True, name="selector")
    return lower_bounds(uniform, Accuracy(leak=1e-9, dtype=dtype))
