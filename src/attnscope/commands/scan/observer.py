"""From frames to a ledger: run every chosen measure on every frame it fits.

A measure's parameter names are the frame fields it reads. Those that are statistics of the attention pattern are
computed together, in one pass over the pattern, and only the ones somebody asked for.

A batch is entered whole or not at all: its observations wait until `commit`, so a batch that runs out of memory or is
interrupted half-way leaves no trace and can be run again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.core.measure import Measure
from attnscope.core.variant import OF_DISTRIBUTIONS
from attnscope.data.batches import Batches
from attnscope.data.frame import AttentionFrame, StreamFrame, TrainingFrame, WeightsFrame
from attnscope.hf.intercepting.restoring import evaluating
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.running import precision_and_place
from attnscope.matrix.statistics import STATISTICS, attention_statistics

Frame = AttentionFrame | StreamFrame | WeightsFrame | TrainingFrame
Place = tuple[str, str, str, str, int]  # measure, part, stack, site, layer
_SCOPE = {StreamFrame: "stream", AttentionFrame: "attention", WeightsFrame: "weights", TrainingFrame: "training"}
_FEWEST_TOKENS = 2  # one token has nobody to attend to and no residual: its numbers would only mislead


@dataclass(frozen=True)
class _Observation:
    place: Place
    values: np.ndarray
    where: Mapping[str, np.ndarray]
    counted: np.ndarray | None = None  # sequences that have such a value; None: all


@runtime_checkable
class Book(Protocol):
    """Where observations are entered: the ledger of a survey, or the page of one look."""

    def observe(
        self,
        measure: str,
        part: str,
        stack: str,
        site: str,
        layer: int,
        values: np.ndarray,
        where: Mapping[str, np.ndarray] | None = None,
        samples: np.ndarray | None = None,
    ) -> None: ...


class Observer:
    """Receives frames, one batch at a time, and enters what the measures say into a ledger."""

    def __init__(self, measures: Iterable[Measure], ledger: Book, accumulate: torch.dtype | None) -> None:
        self._measures = tuple(measures)
        self._ledger = ledger
        self._accumulate = accumulate
        self._running: list[_Observation] = []
        self._running_tokens: Counter[str] = Counter()
        self._waiting: list[tuple[tuple[int, ...] | None, list[_Observation], Counter[str]]] = []
        self.tokens: Counter[str] = Counter()  # real query tokens entered so far, by stack
        self.lacking: dict[str, set[str]] = defaultdict(set)  # measures that a frame could not feed, and why
        # and those that read a statistic which means nothing in an exchanged attention: which, and in which blocks
        self.without_meaning: dict[str, dict[str, set[int]]] = defaultdict(dict)

    def receive(self, frame: Frame) -> None:
        """Measure one frame. Handed to the tap as its listener."""
        scope = _SCOPE[type(frame)]
        # Unequally many queries and keys have no diagonal, whichever stream they come from.
        site = "cross" if frame.site == "uneven" else frame.site
        fitting = [m for m in self._measures if m.card.scope == scope and site in m.card.sites]
        if isinstance(frame, AttentionFrame) and frame.stack not in self._running_tokens:
            self._running_tokens[frame.stack] = int(frame.query_mask.sum())
        if not fitting or _too_short(frame):
            return
        if isinstance(frame, AttentionFrame) and frame.holds is not None:
            fitting = [m for m in fitting if not self._loses_meaning(m, frame)]
        fields = self._attention_fields(frame, fitting) if isinstance(frame, AttentionFrame) else vars(frame)
        for measure in fitting:
            arguments = {name: fields[name] for name in measure.reads}
            absent = {name for name, argument in arguments.items() if argument is None}
            if absent:
                self.lacking[measure.card.name] |= absent
                continue
            for part, located in measure(**arguments).items():
                place = (measure.card.name, part, frame.stack, frame.site, frame.layer)
                where = {label: _numbers(index).astype(np.int64) for label, index in located.where.items()}
                counted = None if located.counted is None else _numbers(located.counted).astype(bool)
                self._running.append(_Observation(place, _numbers(located.value), where, counted))

    def finish(self, samples: Iterable[int] | None, counted: Collection[str] = ()) -> frozenset[str]:
        """A forward pass is over: its observations belong to these sequences, or to the model itself (None).

        Tokens of stacks in `counted` were counted by an earlier pass over the same sequences. The stacks seen now.
        """
        numbers = None if samples is None else tuple(samples)
        seen = frozenset(self._running_tokens)
        new = Counter({stack: count for stack, count in self._running_tokens.items() if stack not in counted})
        self._waiting.append((numbers, self._running, new))
        self._running, self._running_tokens = [], Counter()
        return seen

    def forget(self) -> None:
        """Drop a forward pass that did not finish."""
        self._running, self._running_tokens = [], Counter()

    def discard(self) -> None:
        """Drop everything that is not committed."""
        self.forget()
        self._waiting.clear()

    def commit(self) -> None:
        """Enter all that is finished."""
        for samples, observations, tokens in self._waiting:
            rows = None if samples is None else np.array(samples, dtype=np.int64)
            for one in _one_for_each_place(observations):
                if rows is None:  # one observation of the model itself
                    where = {label: index[None] for label, index in one.where.items()}
                    self._ledger.observe(*one.place, one.values[None], where)
                else:
                    each = _one_for_each_sequence(one, len(rows))
                    self._enter(each, rows[: len(each.values)])
            self.tokens += tokens
        self._waiting.clear()

    def _enter(self, one: _Observation, rows: np.ndarray) -> None:
        if one.counted is None or one.counted.all():
            self._ledger.observe(*one.place, one.values, one.where, rows)
        elif one.counted.any():
            where = {name: index[one.counted] for name, index in one.where.items()}
            self._ledger.observe(*one.place, one.values[one.counted], where, rows[one.counted])

    def _loses_meaning(self, measure: Measure, frame: AttentionFrame) -> bool:
        """Of an exchanged pattern: whether the measure reads what means nothing there. Products with a pattern, which
        measures take from `scores`, are made for rows of shares."""
        holds = frame.holds or frozenset()
        lost = {name for name in measure.reads if name in STATISTICS and name not in holds}
        if "scores" in measure.reads and not holds.issuperset(OF_DISTRIBUTIONS):
            lost.add("rows of shares")
        for name in lost:
            self.without_meaning[measure.card.name].setdefault(name, set()).add(frame.layer)
        return bool(lost)

    def _attention_fields(self, frame: AttentionFrame, fitting: list[Measure]) -> dict[str, Any]:
        wanted = frozenset(name for m in fitting for name in m.reads).intersection(STATISTICS)
        statistics = attention_statistics(
            frame.scores,
            wanted,
            query_mask=frame.query_mask,
            key_mask=frame.key_mask,
            accumulate=self._accumulate,
        )
        # What a given pattern cannot tell (its logits) is None, and named among what is lacking.
        return {**vars(frame), "causal": frame.scores.causal, **dict.fromkeys(wanted), **statistics}


def _one_for_each_place(observations: list[_Observation]) -> Iterator[_Observation]:
    """Where a layer attends twice in one pass (differential attention), a sequence still counts once: by the mean."""
    together: dict[Place, list[_Observation]] = defaultdict(list)
    for observation in observations:
        together[observation.place].append(observation)
    for several in together.values():
        first = several[0]
        yield first if len(several) == 1 else replace(first, values=_mean(several), where=_where_largest(several))


def _one_for_each_sequence(one: _Observation, sequences: int) -> _Observation:
    """Where a sequence is several rows (windows, frames, channels), it counts once: by the mean of its rows.

    Rows of one sequence stand together (`hf.anatomy.expected`). Where a model packs all pictures of a batch into fewer
    rows than there are sequences, a row counts once too.
    """
    rows = len(one.values)
    if rows <= sequences:
        return one
    folded = one.values.reshape(sequences, rows // sequences, *one.values.shape[1:])
    parts = [replace(one, values=folded[:, i], where=_part(one, sequences, i)) for i in range(folded.shape[1])]
    counted: np.ndarray | None = None
    if one.counted is not None:
        counted = np.logical_and.reduce(one.counted.reshape(sequences, -1), axis=1)
    return replace(one, values=_mean(parts), where=_where_largest(parts), counted=counted)


def _part(one: _Observation, sequences: int, index: int) -> dict[str, np.ndarray]:
    return {name: where.reshape(sequences, -1, *where.shape[1:])[:, index] for name, where in one.where.items()}


def _mean(several: list[_Observation]) -> np.ndarray:
    mean: np.ndarray = np.mean([one.values for one in several], axis=0)
    return mean


def _where_largest(several: list[_Observation]) -> dict[str, np.ndarray]:
    """Of two places, that of the larger value: a mean has none of its own."""
    largest = np.argmax([one.values for one in several], axis=0)[None]
    labels = {name: np.stack([one.where[name] for one in several]) for name in several[0].where}
    return {name: np.take_along_axis(places, largest, axis=0)[0] for name, places in labels.items()}


def _too_short(frame: Frame) -> bool:
    if isinstance(frame, WeightsFrame | TrainingFrame):
        return False
    mask = frame.token_mask if isinstance(frame, StreamFrame) else frame.query_mask
    return mask.shape[1] < _FEWEST_TOKENS or int(mask.sum(dim=1).max()) < _FEWEST_TOKENS


def _numbers(values: Tensor) -> np.ndarray:
    numbers: np.ndarray = values.detach().to("cpu", torch.float64).numpy()
    return numbers


# What a language model loses where its sequences do not begin with BOS: its loss on a few windows, without and with.
#
# The same tokens are predicted both times (all but the first of a window, which has nothing before it without BOS), so
# the difference is what BOS alone does for them. A model that was trained with BOS loses much without it: its heads
# have nowhere to sink.

WINDOWS = 4
TOKENS = 64  # with BOS


def bos_loss(loaded: Loaded, prepared: Batches) -> dict[str, Any]:
    """Mean next-token loss in nats, for the provenance; nothing where BOS is there, or where there is none to put.

    Windows are read one at a time: a vocabulary is wide, and its logits for one window are enough to hold.
    """
    begins = prepared.beginning
    if begins is None or begins.begins or begins.token is None or loaded.kind != "causal":
        return {}
    chosen = list(_windows(prepared, min(TOKENS, loaded.positions or TOKENS) - 1))[:WINDOWS]
    losses = [tuple(_loss(loaded, ids, before) for before in (None, begins.token)) for ids in chosen if len(ids) > 1]
    known = [(without, put) for without, put in losses if without is not None and put is not None]
    if not known:
        return {}
    without, put = (sum(column) / len(known) for column in zip(*known, strict=True))
    return {"loss_without": without, "loss_with": put, "loss_windows": len(known)}


def _windows(prepared: Batches, tokens: int) -> Iterator[Int[Tensor, " token"]]:
    """The first real tokens of every sequence of text."""
    for batch in prepared:
        ids = batch.inputs.get("input_ids")
        if ids is None or ids.ndim != 2:
            return
        for number, row in enumerate(ids):
            yield (row if batch.mask is None else row[batch.mask[number]])[:tokens]


def _loss(loaded: Loaded, ids: Int[Tensor, " token"], before: int | None) -> float | None:
    """None where the model gives no logits over its vocabulary."""
    place = precision_and_place(loaded.model)[1]
    opening = ids.new_tensor([] if before is None else [before])
    read = torch.cat([opening, ids])[None].to(place)
    options = {"use_cache": False} if "use_cache" in loaded.accepts else {}
    with evaluating(loaded.model), torch.no_grad():
        logits = getattr(loaded.model(input_ids=read, **options), "logits", None)
    wanted = ids[1:].to(place)
    if not isinstance(logits, Tensor) or logits.shape[:2] != read.shape or logits.shape[-1] <= int(wanted.max()):
        return None
    said = logits[0, len(opening) : -1].float()
    found = float(torch.nn.functional.cross_entropy(said, wanted))
    return found if math.isfinite(found) else None
