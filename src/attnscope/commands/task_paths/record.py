"""Which heads carry a task: what `paths` found over many prompts, as plain data.

    task.heads[0].value, .error, .low, .high      the head worth most: mean over prompts, its error, its interval
    task.heads[0].sure                            zero is outside, for this head and all others together
    task.agreement                                Shapley values beside what really happens when a head is removed
    task.table(), task.chart(), task.sentences(), task.save("task_paths.json")

Values of single prompts are kept: error bars are computed from them, the same in every place where the file is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from attnscope.core.decoding import FieldError
from attnscope.reports.record import Record
from attnscope.stats.spread import Correlation, Spread, correlations, spread

if TYPE_CHECKING:
    import pandas

Values = tuple[tuple[float, ...], ...]  # by block and head


@dataclass(frozen=True)
class Removal:
    """The change when a head is really removed and everything after it is recomputed, by block and head."""

    target: Values  # the target less what it is without the head: positive where the head adds to it
    loss: Values  # by how much -log p(target token) grows


@dataclass(frozen=True)
class PromptRow:
    """One prompt. `alone` and all `values` add up to `value`."""

    place: str  # where it stands: a file and line
    text: str
    target: str
    against: str | None
    tokens: int
    value: float
    loss: float | None  # -log p(target), in nats; None where the output has no probabilities
    alone: float  # over paths that pass no head
    values: Values  # Shapley values
    paths: Values  # all paths through a head: what the frozen network loses with it
    removal: Removal | None = None


@dataclass(frozen=True)
class TaskHead:
    """One head over all prompts."""

    block: int
    head: int
    value: float  # mean Shapley value
    paths: float  # mean over all paths through it: what the frozen network loses without it
    error: float  # its standard error
    low: float  # the bootstrap interval of this head alone
    high: float
    band: float  # half the width of the interval that holds all heads together
    removed: float | None  # what the target loses, on average, when it is really removed
    removed_error: float | None

    @property
    def sure(self) -> bool:
        """Return whether its sign is known, with all heads considered."""
        return abs(self.value) > self.band


@dataclass(frozen=True)
class Agreement:
    """Two numbers of every head, correlated over heads; intervals over prompts. None where one does not vary."""

    of: Literal["values", "paths"]
    against: Literal["target", "loss"]
    pearson: Correlation | None
    spearman: Correlation | None


@dataclass(frozen=True, repr=False)
class TaskPaths(Record):
    """Values of heads over the prompts of a task."""

    KIND: ClassVar[str] = "task_paths"
    COMMAND: ClassVar[str] = "paths MODEL prompts.jsonl"
    FILE: ClassVar[str] = "task_paths.json"
    INDENT: ClassVar[int | None] = None

    model: str
    class_name: str
    stack: str
    dtype: str
    task: str  # what the prompts are called
    kind: Literal["logit", "difference"]
    removal: Literal["zero", "mean"] | None  # what stands in the place of a removed head's output
    prompts: tuple[PromptRow, ...]
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return (block, head) of every head, in the order of the columns."""
        return tuple((b, h) for b, row in enumerate(self.prompts[0].values) for h in range(len(row)))

    @cached_property
    def spread(self) -> Spread:
        return spread(self._matrix("values"))

    @cached_property
    def heads(self) -> tuple[TaskHead, ...]:
        """Return all heads, the largest mean value of either sign first."""
        own = self.spread
        whole = self._matrix("paths").mean(0)
        gone = None if self.removal is None else spread(self._matrix("removal.target"))
        made = [
            TaskHead(
                *place,
                value=float(own.mean[i]),
                paths=float(whole[i]),
                error=float(own.error[i]),
                low=float(own.low[i]),
                high=float(own.high[i]),
                band=float(own.band[i]),
                removed=None if gone is None else float(gone.mean[i]),
                removed_error=None if gone is None else float(gone.error[i]),
            )
            for i, place in enumerate(self.places)
        ]
        return tuple(sorted(made, key=lambda one: (-abs(one.value), one.block, one.head)))

    @cached_property
    def agreement(self) -> tuple[Agreement, ...]:
        """Correlate Shapley values, and all paths through a head, with the effect of its removal on target and loss."""
        if self.removal is None:
            return ()
        losses = self.prompts[0].loss is not None
        found = []
        for of in ("values", "paths"):
            for against in ("target", "loss") if losses else ("target",):
                pearson, spearman = correlations(self._matrix(of), self._matrix(f"removal.{against}"))
                found.append(Agreement(of, against, pearson, spearman))
        return tuple(found)

    def _matrix(self, name: str) -> np.ndarray:
        """[prompt, head]"""
        rows = []
        for one in self.prompts:
            values: Any = one
            for part in name.split("."):
                values = getattr(values, part)
            rows.append([value for block in values for value in block])
        return np.asarray(rows, dtype=np.float64)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskPaths:
        found = super().from_json(data)
        if not found.prompts:
            raise FieldError("prompts: one prompt or more is needed")
        shape = [len(row) for row in found.prompts[0].values]
        for number, one in enumerate(found.prompts):
            every = [one.values, one.paths, *((one.removal.target, one.removal.loss) if one.removal else ())]
            if any([len(row) for row in values] != shape for values in every) or not sum(shape):
                raise FieldError(f"prompts[{number}]: as many heads in every block as in the first prompt are needed")
            if (one.removal is None) != (found.removal is None):
                raise FieldError(f"prompts[{number}].removal: either every prompt has it or none")
            numbers = [one.value, one.alone, *(value for values in every for row in values for value in row)]
            if not all(map(math.isfinite, numbers)):
                raise FieldError(f"prompts[{number}]: one of its numbers is not finite")
        return found

    def table(self) -> pandas.DataFrame:
        """Return one row for each head, the largest first."""
        import pandas

        fields = ("block", "head", "value", "error", "low", "high", "band", "sure", "paths", "removed", "removed_error")
        return pandas.DataFrame([{name: getattr(one, name) for name in fields} for one in self.heads])

    def __repr__(self) -> str:
        return f"<TaskPaths of {self.model} on {self.task}: {len(self.prompts)} prompts, {len(self.places)} heads>"
