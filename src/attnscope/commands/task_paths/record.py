"""The record of `task_paths`: the values of heads over many prompts.

    task.heads[0].value, .error, .low, .high      the largest head: mean over prompts, standard error, interval
    task.heads[0].sure                            whether its sign is known, at 95% for all heads together
    task.agreement                                correlation of Shapley values with the effect of removing heads
    task.table(), task.chart(), task.sentences(), task.save("task_paths.json")

The values of single prompts are stored. Error bars are computed from them when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from attnscope.core.decoding import FieldError
from attnscope.core.ranges import Finite, Provenance, Several, Size, adds_up
from attnscope.reports.record import Record
from attnscope.stats.spread import Correlation, Spread, correlations, spread

if TYPE_CHECKING:
    import pandas

Values = tuple[tuple[Finite, ...], ...]  # by block and head


@dataclass(frozen=True)
class Removal:
    """The change when a head is removed and everything after it is recomputed, by block and head."""

    target: Values  # the target minus the target without the head: positive if the head adds to it
    loss: Values  # the growth of -log p(target token)


@dataclass(frozen=True)
class PromptRow:
    """The values of one prompt. `alone` and all `values` add up to `value`."""

    place: str  # file and line of the prompt
    text: str
    target: str
    against: str | None
    tokens: Several
    value: Finite
    loss: Size | None  # -log p(target), in nats; None if the output has no probabilities
    alone: Finite  # contribution of paths through no head
    values: Values  # Shapley values
    paths: Values  # sum over all paths through a head: what the frozen network loses without it
    removal: Removal | None = None


@dataclass(frozen=True)
class TaskHead:
    """One head over all prompts."""

    block: int
    head: int
    value: float  # mean Shapley value
    paths: float  # mean of the sum over all paths through it: what the frozen network loses without it
    error: float  # standard error of `value`
    low: float  # bootstrap-t interval of this head alone
    high: float
    band: float  # half the width of the simultaneous interval of all heads
    removed: float | None  # mean of the target before minus after its removal
    removed_error: float | None

    @property
    def sure(self) -> bool:
        """Return whether the sign is known, by an interval that is simultaneous over all heads."""
        return abs(self.value) > self.band


@dataclass(frozen=True)
class Agreement:
    """Correlation of two numbers over heads, with intervals over prompts; None if one number does not vary."""

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
    task: str  # name of the prompts
    kind: Literal["logit", "difference"]
    removal: Literal["zero", "mean"] | None  # what replaces the output of a removed head
    prompts: tuple[PromptRow, ...]
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return (block, head) of every head, in the order of the columns."""
        return tuple((b, h) for b, row in enumerate(self.prompts[0].values) for h in range(len(row)))

    @cached_property
    def spread(self) -> Spread:
        return spread(self._matrix("values"))

    @cached_property
    def heads(self) -> tuple[TaskHead, ...]:
        """Return all heads, the largest absolute mean value first."""
        own = self.spread
        whole = self._matrix("paths").mean(0)
        gone = None if self.removal is None else spread(self._matrix("removal.target"))
        made = [
            TaskHead(
                *location,
                value=float(own.mean[i]),
                paths=float(whole[i]),
                error=float(own.error[i]),
                low=float(own.low[i]),
                high=float(own.high[i]),
                band=float(own.band[i]),
                removed=None if gone is None else float(gone.mean[i]),
                removed_error=None if gone is None else float(gone.error[i]),
            )
            for i, location in enumerate(self.places)
        ]
        return tuple(sorted(made, key=lambda head: (-abs(head.value), head.block, head.head)))

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
        """Return a field of all prompts as an array [prompt, head]."""
        rows = []
        for prompt in self.prompts:
            values: Any = prompt
            for part in name.split("."):
                values = getattr(values, part)
            rows.append([value for block in values for value in block])
        return np.asarray(rows, dtype=np.float64)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskPaths:
        record = super().from_json(data)
        if not record.prompts:
            raise FieldError("prompts: one prompt or more is needed")
        shape = [len(row) for row in record.prompts[0].values]
        for number, prompt in enumerate(record.prompts):
            every = [
                prompt.values,
                prompt.paths,
                *((prompt.removal.target, prompt.removal.loss) if prompt.removal else ()),
            ]
            if any([len(row) for row in values] != shape for values in every) or not sum(shape):
                raise FieldError(f"prompts[{number}]: every block needs as many heads as in the first prompt")
            if (prompt.removal is None) != (record.removal is None):
                raise FieldError(f"prompts[{number}].removal: either every prompt has it or none")
            if not adds_up((prompt.alone, *(value for row in prompt.values for value in row)), prompt.value):
                raise FieldError(f"prompts[{number}].value: the sum of alone and values is needed")
        return record

    def table(self) -> pandas.DataFrame:
        """Return one row for each head, the largest first."""
        import pandas

        fields = ("block", "head", "value", "error", "low", "high", "band", "sure", "paths", "removed", "removed_error")
        return pandas.DataFrame([{name: getattr(head, name) for name in fields} for head in self.heads])

    def __repr__(self) -> str:
        return f"<TaskPaths of {self.model} on {self.task}: {len(self.prompts)} prompts, {len(self.places)} heads>"
