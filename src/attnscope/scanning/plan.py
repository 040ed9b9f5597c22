"""A plan: everything that decides the numbers of a scan. Two scans of one plan give one survey, bit for bit.

It is plain data, so that it can be kept beside unfinished work, sent to a worker, and compared: a scan goes on with
what is done only where the plans are equal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

import torch

import attnscope
from attnscope.core.measure import Measure
from attnscope.core.registry import measures as known_measures
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import precision_and_place
from attnscope.hf.loading.options import Sampling
from attnscope.records.decoding import decode, encode
from attnscope.trace.cut import SHARD_TOKENS, Cut


@dataclass(frozen=True)
class Plan:
    model: str  # hash of weights and configuration
    corpus: str  # hash of the texts
    tokens: str  # fingerprint of the sequences that were cut from them
    measures: tuple[str, ...]
    samples: int
    max_tokens: int | None
    batch_size: int
    seed: int
    dtype: str
    device: str
    accumulate: str  # precision of statistics; "None" where it follows the logits
    version: str
    shards: int = 1  # into which the sequences are cut, whoever does them
    shard_tokens: int = SHARD_TOKENS

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        cut: Cut,
        chosen: tuple[Measure, ...],
        sampling: Sampling,
        accumulate: torch.dtype | None,
    ) -> Plan:
        precision, place = precision_and_place(loaded.model)
        return cls(
            model=loaded.sha256,
            corpus=cut.head.sha256,
            tokens=cut.fingerprint(),
            measures=tuple(measure.card.name for measure in chosen),
            samples=sum(cut.sizes),
            max_tokens=sampling.max_tokens,
            batch_size=sampling.batch_size,
            seed=sampling.seed,
            dtype=str(precision).removeprefix("torch."),
            device=str(place),
            accumulate=str(accumulate).removeprefix("torch."),
            version=attnscope.__version__,
            shards=len(cut.sizes),
            shard_tokens=SHARD_TOKENS,
        )

    @property
    def chosen(self) -> tuple[Measure, ...]:
        return tuple(known_measures()[name] for name in self.measures)

    @property
    def accumulation(self) -> torch.dtype | None:
        found: torch.dtype | None = None if self.accumulate == "None" else getattr(torch, self.accumulate)
        return found

    @property
    def digest(self) -> str:
        """A hash of all of it: what names shards."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def differences(self, other: Plan) -> tuple[str, ...]:
        """Names of what differs."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        read: Plan = decode(cls, data)
        return read
