"""From frames to a ledger: run every chosen measure on every frame it fits.

A measure's parameter names are the frame fields it reads. Those that are statistics of the attention pattern are
computed together, in one pass over the pattern, and only the ones somebody asked for.

A batch is entered whole or not at all: its observations wait until `commit`, so a batch that runs out of memory or is
interrupted half-way leaves no trace and can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.core.measure import Located, Measure
from attnscope.matrix.statistics import STATISTICS, attention_statistics
from attnscope.survey.ledger import Ledger
from attnscope.trace.frame import AttentionFrame, StreamFrame, WeightsFrame

Frame = AttentionFrame | StreamFrame | WeightsFrame


@dataclass(frozen=True)
class _Observation:
    measure: str
    part: str
    stack: str
    site: str
    layer: int
    values: np.ndarray
    where: Mapping[str, np.ndarray]
    of_sequences: bool


class Observer:
    """Receives frames, one batch at a time, and enters what the measures say into a ledger."""

    def __init__(self, measures: Iterable[Measure], ledger: Ledger, accumulate: torch.dtype | None) -> None:
        self._measures = tuple(measures)
        self._ledger = ledger
        self._accumulate = accumulate
        self._waiting: list[_Observation] = []
        self.routes: set[str] = set()

    def receive(self, frame: Frame) -> None:
        """Measure one frame. Handed to the tap as its listener."""
        scope = _SCOPE[type(frame)]
        fitting = [m for m in self._measures if m.card.scope == scope and frame.site in m.card.sites]
        if not fitting:
            return
        fields = self._attention_fields(frame, fitting) if isinstance(frame, AttentionFrame) else vars(frame)
        for measure in fitting:
            arguments = {name: fields[name] for name in measure.reads}
            if all(argument is not None for argument in arguments.values()):
                for part, located in measure(**arguments).items():
                    self._wait(measure.card.name, part, frame, located)

    def commit(self, samples: Iterable[int]) -> None:
        """Enter the batch just run; `samples` are the numbers of its sequences in the corpus."""
        numbers = np.fromiter(samples, dtype=np.int64)
        for o in self._waiting:
            rows = numbers if o.of_sequences else None
            self._ledger.observe(o.measure, o.part, o.stack, o.site, o.layer, o.values, o.where, rows)
        self._waiting.clear()

    def forget(self) -> None:
        """Drop a batch that did not finish."""
        self._waiting.clear()

    def _attention_fields(self, frame: AttentionFrame, fitting: list[Measure]) -> dict[str, Any]:
        self.routes.add(frame.route)
        wanted = frozenset(name for m in fitting for name in m.reads).intersection(STATISTICS)
        statistics = attention_statistics(
            frame.scores,
            wanted,
            query_mask=frame.query_mask,
            key_mask=frame.key_mask,
            accumulate=self._accumulate,
        )
        return {**vars(frame), "causal": frame.scores.causal, **statistics}

    def _wait(self, measure: str, part: str, frame: Frame, located: Located) -> None:
        values = _numbers(located.value)
        where = {label: _numbers(index).astype(np.int64) for label, index in located.where.items()}
        of_sequences = not isinstance(frame, WeightsFrame)
        if not of_sequences:  # one observation of the model itself
            values, where = values[None], {label: index[None] for label, index in where.items()}
        self._waiting.append(
            _Observation(measure, part, frame.stack, frame.site, frame.layer, values, where, of_sequences)
        )


_SCOPE = {StreamFrame: "stream", AttentionFrame: "attention", WeightsFrame: "weights"}


def _numbers(values: Tensor) -> np.ndarray:
    numbers: np.ndarray = values.detach().to("cpu", torch.float64).numpy()
    return numbers
