"""Run the chosen measures on every frame that has the fields they read, and compute the loss with and without BOS.

A measure's parameter names are the frame fields it reads. Statistics of the attention pattern are computed together, in
one pass, and only those that a measure reads.

Observations are held until `commit`, so a batch that runs out of memory or is interrupted leaves no partial result and
can be run again.
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
from attnscope.hf.loading.load import Loaded, precision_and_place
from attnscope.matrix.statistics import STATISTICS, attention_statistics

Frame = AttentionFrame | StreamFrame | WeightsFrame | TrainingFrame
Place = tuple[str, str, str, str, int]  # measure, part, stack, site, layer
_SCOPE = {StreamFrame: "stream", AttentionFrame: "attention", WeightsFrame: "weights", TrainingFrame: "training"}
_FEWEST_TOKENS = 2  # tokens; a single token attends to itself only, which says nothing
WINDOWS = 4  # sequences for the loss with and without BOS
TOKENS = 64  # tokens of each sequence, BOS included


@dataclass(frozen=True)
class _Observation:
    place: Place
    values: np.ndarray
    where: Mapping[str, np.ndarray]
    counted: np.ndarray | None = None  # mask of the sequences that have a value; None: all


@runtime_checkable
class ObservationSink(Protocol):
    """The interface for receiving observations: a `SurveyBuilder`, or the `LookTotals` of one look."""

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
    """Receives the frames of one batch at a time, and passes values to a sink."""

    def __init__(self, measures: Iterable[Measure], sink: ObservationSink, accumulate: torch.dtype | None) -> None:
        self._measures = tuple(measures)
        self._sink = sink
        self._accumulate = accumulate
        self._running: list[_Observation] = []
        self._running_tokens: Counter[str] = Counter()
        self._waiting: list[tuple[tuple[int, ...] | None, list[_Observation], Counter[str]]] = []
        self.tokens: Counter[str] = Counter()  # number of committed query tokens by stack, without padding
        self.lacking: dict[str, set[str]] = defaultdict(set)  # fields that a frame lacked, by measure
        # statistics that are undefined for an installed variant, with the blocks, by measure
        self.without_meaning: dict[str, dict[str, set[int]]] = defaultdict(dict)

    def receive(self, frame: Frame) -> None:
        """Measure one frame. Called by the tap."""
        scope = _SCOPE[type(frame)]
        # If the numbers of queries and keys differ there is no diagonal, as in cross-attention.
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
                key = (measure.card.name, part, frame.stack, frame.site, frame.layer)
                where = {label: _numbers(index).astype(np.int64) for label, index in located.where.items()}
                counted = None if located.counted is None else _numbers(located.counted).astype(bool)
                self._running.append(_Observation(key, _numbers(located.value), where, counted))

    def finish(self, samples: Iterable[int] | None, counted: Collection[str] = ()) -> frozenset[str]:
        """End a forward pass, and assign its observations to these sequences (None: to the model itself).

        Stacks in `counted` were counted by an earlier pass over the same sequences. Return the stacks of this pass.
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
        """Pass all finished observations to the sink."""
        for samples, observations, tokens in self._waiting:
            for observation in _one_per_place(observations):
                if samples is None:
                    where = {label: index[None] for label, index in observation.where.items()}
                    self._sink.observe(*observation.place, observation.values[None], where)
                else:
                    self._pass_on(_one_per_sequence(observation, len(samples)), np.array(samples, dtype=np.int64))
            self.tokens += tokens
        self._waiting.clear()

    def _pass_on(self, observation: _Observation, samples: np.ndarray) -> None:
        values, where, counted = observation.values, observation.where, observation.counted
        samples = samples[: len(values)]
        if counted is None or counted.all():
            self._sink.observe(*observation.place, values, where, samples)
        elif counted.any():
            chosen = {name: index[counted] for name, index in where.items()}
            self._sink.observe(*observation.place, values[counted], chosen, samples[counted])

    def _loses_meaning(self, measure: Measure, frame: AttentionFrame) -> bool:
        """Return whether a measure reads a statistic that is undefined for an installed variant. Measures that read
        `scores` expect rows that sum to 1.
        """
        holds = frame.holds or frozenset()
        lost = {name for name in measure.reads if name in STATISTICS and name not in holds}
        if "scores" in measure.reads and not holds.issuperset(OF_DISTRIBUTIONS):
            lost.add("rows of shares")
        for name in lost:
            self.without_meaning[measure.card.name].setdefault(name, set()).add(frame.layer)
        return bool(lost)

    def _attention_fields(self, frame: AttentionFrame, fitting: list[Measure]) -> dict[str, Any]:
        wanted = frozenset(name for m in fitting for name in m.reads).intersection(STATISTICS)
        query_mask, key_mask, dtype = frame.query_mask, frame.key_mask, self._accumulate
        statistics = attention_statistics(
            frame.scores, wanted, query_mask=query_mask, key_mask=key_mask, accumulate=dtype
        )
        # A statistic that cannot be computed (the logits of a precomputed pattern) is None, and counts as missing.
        return {**vars(frame), "causal": frame.scores.causal, **dict.fromkeys(wanted), **statistics}


def _one_per_place(observations: list[_Observation]) -> Iterator[_Observation]:
    """Average the observations of a block that attends twice in one pass (differential attention)."""
    together: dict[Place, list[_Observation]] = defaultdict(list)
    for observation in observations:
        together[observation.place].append(observation)
    for several in together.values():
        first = several[0]
        yield first if len(several) == 1 else replace(first, values=_mean(several), where=_where_largest(several))


def _one_per_sequence(whole: _Observation, sequences: int) -> _Observation:
    """Average over the rows of each sequence, if a sequence has several (windows, frames, channels).

    Rows of one sequence are adjacent (`hf.anatomy.expected`). If a model packs all images of a batch into fewer rows
    than there are sequences, each row counts once.
    """
    rows = len(whole.values)
    if rows <= sequences:
        return whole

    def folded(array: np.ndarray) -> np.ndarray:
        return array.reshape(sequences, rows // sequences, *array.shape[1:])

    parts = [
        replace(whole, values=folded(whole.values)[:, i], where={n: folded(w)[:, i] for n, w in whole.where.items()})
        for i in range(rows // sequences)
    ]
    counted = None if whole.counted is None else np.logical_and.reduce(folded(whole.counted), axis=1)
    return replace(whole, values=_mean(parts), where=_where_largest(parts), counted=counted)


def _mean(several: list[_Observation]) -> np.ndarray:
    mean: np.ndarray = np.mean([observation.values for observation in several], axis=0)
    return mean


def _where_largest(several: list[_Observation]) -> dict[str, np.ndarray]:
    """Return the location of the larger value, since a mean has no location."""
    largest = np.argmax([observation.values for observation in several], axis=0)[None]
    labels = {name: np.stack([observation.where[name] for observation in several]) for name in several[0].where}
    return {name: np.take_along_axis(places, largest, axis=0)[0] for name, places in labels.items()}


def _too_short(frame: Frame) -> bool:
    if isinstance(frame, WeightsFrame | TrainingFrame):
        return False
    mask = frame.token_mask if isinstance(frame, StreamFrame) else frame.query_mask
    return mask.shape[1] < _FEWEST_TOKENS or int(mask.sum(dim=1).max()) < _FEWEST_TOKENS


def _numbers(values: Tensor) -> np.ndarray:
    numbers: np.ndarray = values.detach().to("cpu", torch.float64).numpy()
    return numbers


def bos_loss(loaded: Loaded, prepared: Batches) -> dict[str, Any]:
    """Return the mean next-token loss in nats without and with BOS, for the provenance.

    Return an empty mapping if sequences begin with BOS or the tokenizer has no BOS. The same tokens are predicted both
    times (all but the first of a window, which has no context without BOS), so the difference is the effect of BOS
    alone. A model that was trained with BOS has a much higher loss without it, because its heads lose their sink.
    Windows run one at a time, because the logits of a wide vocabulary are large.
    """
    begins = prepared.beginning
    if begins is None or begins.begins or begins.token is None or loaded.kind != "causal":
        return {}
    chosen = list(_windows(prepared, min(TOKENS, loaded.positions or TOKENS) - 1))[:WINDOWS]
    losses = [tuple(_loss(loaded, ids, before) for before in (None, begins.token)) for ids in chosen if len(ids) > 1]
    known = [pair for pair in losses if None not in pair]
    if not known:
        return {}
    without, with_bos = (sum(column) / len(known) for column in zip(*known, strict=True))
    return {"loss_without": without, "loss_with": with_bos, "loss_windows": len(known)}


def _windows(prepared: Batches, tokens: int) -> Iterator[Int[Tensor, " token"]]:
    """Yield the first tokens, without padding, of every sequence of text."""
    for batch in prepared:
        ids = batch.inputs.get("input_ids")
        if ids is None or ids.ndim != 2:
            return
        for number, row in enumerate(ids):
            yield (row if batch.mask is None else row[batch.mask[number]])[:tokens]


def _loss(loaded: Loaded, ids: Int[Tensor, " token"], before: int | None) -> float | None:
    """Return the loss, or None if the model gives no logits over its vocabulary."""
    device = precision_and_place(loaded.model)[1]
    opening = ids.new_tensor([] if before is None else [before])
    inputs = torch.cat([opening, ids])[None].to(device)
    options = {"use_cache": False} if "use_cache" in loaded.accepts else {}
    with evaluating(loaded.model), torch.no_grad():
        logits = getattr(loaded.model(input_ids=inputs, **options), "logits", None)
    targets = ids[1:].to(device)
    if not isinstance(logits, Tensor) or logits.shape[:2] != inputs.shape or logits.shape[-1] <= int(targets.max()):
        return None
    loss = float(torch.nn.functional.cross_entropy(logits[0, len(opening) : -1].float(), targets))
    return loss if math.isfinite(loss) else None
