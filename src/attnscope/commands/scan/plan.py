"""The plan of a scan, the model under observation, its verification, and the provenance of a survey.

A plan holds every setting that affects the numbers: two scans of one plan give the same survey, bit for bit. It is
plain data, stored in checkpoints and sent to workers. A scan is resumed only if the plans are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

import attnscope
from attnscope.commands.scan.observer import Observer, bos_loss
from attnscope.core.decoding import decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.measure import Measure
from attnscope.core.registry import measures as known_measures
from attnscope.core.stamp import stamped
from attnscope.data.batches import Batch, Batches
from attnscope.data.shards import SHARD_TOKENS, Cut
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.intercepting.restoring import ExchangedModulesError, keeping_its_modules
from attnscope.hf.loading.in_memory import broken_weights
from attnscope.hf.loading.load import Loaded, precision_and_place
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.targets import notes_on_placeholders
from attnscope.hf.tapping.tap import tap
from attnscope.hf.tapping.verify import Verification, verify


@dataclass(frozen=True)
class ScanPlan:
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
    accumulate: str  # precision of statistics; "None" if it depends on the logits
    version: str
    shards: int = 1  # the number of shards of the corpus
    shard_tokens: int = SHARD_TOKENS

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        cut: Cut,
        chosen: tuple[Measure, ...],
        sampling: Sampling,
        accumulate: torch.dtype | None,
    ) -> ScanPlan:
        precision, device = precision_and_place(loaded.model)
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
            device=str(device),
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
        dtype: torch.dtype | None = None if self.accumulate == "None" else getattr(torch, self.accumulate)
        return dtype

    @property
    def digest(self) -> str:
        """A hash of the plan, part of the names of its shards."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def differences(self, other: ScanPlan) -> tuple[str, ...]:
        """Return the names of the fields that differ."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = encode(self)
        return data

    @classmethod
    def from_json(cls, data: Any) -> ScanPlan:
        plan: ScanPlan = decode(cls, data)
        return plan


@dataclass(frozen=True)
class Subject:
    """A model under observation, its anatomy, and extra arguments of its forward. Needs no loader."""

    model: nn.Module
    anatomy: Anatomy
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Subject:
        """Find the anatomy by running `model` once on a few tokens of `inputs`."""
        return cls(model, anatomy(model, inputs), options or {})

    @property
    def device(self) -> torch.device:
        return precision_and_place(self.model)[1]

    def observe(self, observer: Observer, batch: Batch) -> None:
        """Run one batch under the tap, or its halves if memory runs out. Observations wait for `commit`."""
        ready = batch.to(self.device)
        try:
            with tap(self.model, self.anatomy, observer.receive):
                self.model(**ready.inputs, **self.options)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            observer.forget()
            if not out_of_memory(error):
                observer.discard()
                raise
        except BaseException:
            observer.discard()
            raise
        else:
            observer.finish(batch.samples)
            return
        for half in batch.halves():
            self.observe(observer, half)


_VERIFIED_SEQUENCES = 2
_VERIFIED_TOKENS = 512  # verification computes dense maps: its cost grows with the square of the length


def provenance(
    loaded: Loaded, prepared: Batches, anatomy: Anatomy, verified: dict[str, Any], plan: ScanPlan
) -> dict[str, Any]:
    """Return what is needed to reproduce a survey and to judge how far to trust it."""
    stacks = [
        {
            "name": stack.name,
            "layers": len(stack.blocks) + len(anatomy.without_stream(stack.name)),
            "heads": max((s.heads for s in anatomy.sites if s.stack == stack.name), default=0),
            "causal": all(s.causal for s in anatomy.sites if s.stack == stack.name and s.site == "self"),
            **({"kinds": kinds} if (kinds := {str(b.layer): b.kind for b in stack.blocks if not b.attends}) else {}),
        }
        for stack in anatomy.stacks
    ]
    notes = [
        *prepared.notes,
        *anatomy.notes,
        *notes_on_placeholders(loaded.model, (batch.inputs for batch in prepared)),
    ]
    model = {
        **{key: value for key, value in loaded.provenance.items() if key not in ("model", "sha256")},
        "name": loaded.name,
        "class": loaded.class_name,
        "hash": loaded.sha256,
        "parameters": loaded.parameters,
        "stacks": stacks,
        **({"broken_weights": list(broken)} if (broken := broken_weights(loaded.model)) else {}),
    }
    return stamped(
        model,
        corpus={"name": prepared.name, "hash": prepared.sha256, "window": plan.max_tokens},
        **({} if prepared.beginning is None else {"bos": prepared.beginning.to_json() | bos_loss(loaded, prepared)}),
        measures=list(plan.measures),
        dtype=plan.dtype,
        device=plan.device,
        seed=plan.seed,
        batch_size=plan.batch_size,
        routes=list(anatomy.routes),
        verify=verified,
        **({"notes": notes} if notes else {}),
    )


def verified(subject: Subject, prepared: Batches) -> dict[str, Any]:
    """Verify the model on the first batch and on the first batch with padding; refuse it if it fails."""
    padded = [batch for batch in prepared.batches[1:] if batch.mask is not None and not bool(batch.mask.all())]
    largest: dict[str, float] = {}
    notes: list[str] = []
    for batch in (prepared.batches[0], *padded[:1]):
        check = _checked(subject, batch)
        if not check.passed:
            raise RefusalError(f"{type(subject.model).__name__} cannot be scanned reliably: {check.sentence}")
        for name, result in check.checks.items():
            largest[name] = max(result.largest, largest.get(name, 0.0))
        notes += [note for note in check.notes if note not in notes]
    return {"passed": True, "largest_difference": largest["mixed"], "checks": largest, "notes": notes}


def _checked(subject: Subject, batch: Batch) -> Verification:
    """Verify the first tokens of the last rows, where padded sequences are. Verify whole sequences if the model uses
    other modules for short ones (BigBird).
    """
    while len(batch) > _VERIFIED_SEQUENCES and not batch.undivided:
        _, batch = batch.halves()
    try:
        with keeping_its_modules(subject.model):
            return verify(subject.model, batch.shortened(_VERIFIED_TOKENS).to(subject.device).inputs, subject.anatomy)
    except ExchangedModulesError:
        return verify(subject.model, batch.to(subject.device).inputs, subject.anatomy)
