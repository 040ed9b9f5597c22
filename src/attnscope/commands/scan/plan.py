"""A plan: everything that decides the numbers of a scan. Two scans of one plan give one survey, bit for bit.

It is plain data, so that it can be kept beside unfinished work, sent to a worker, and compared: a scan goes on with
what is done only where the plans are equal.
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
from attnscope.commands.scan.survey.ledger import Missing
from attnscope.core.decoding import decode, encode
from attnscope.core.errors import RefusalError
from attnscope.core.measure import Measure
from attnscope.core.registry import measures as known_measures
from attnscope.core.stamp import Stamp
from attnscope.data.batches import Batch, Batches
from attnscope.data.shards import SHARD_TOKENS, Cut
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.intercepting.restoring import ExchangedModulesError, keeping_its_modules
from attnscope.hf.loading.in_memory import broken_weights
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.running import out_of_memory, precision_and_place
from attnscope.hf.loading.targets import notes_on_placeholders
from attnscope.hf.tapping.tap import tap
from attnscope.hf.tapping.verify import Verification, verify


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


# A subject: a model that can be observed, with where things are in it and how it wants to be called.
#
# It needs no loader: whoever has a module and one batch for it (a training loop, a worker) makes one with `Subject.of`.


@dataclass(frozen=True)
class Subject:
    model: nn.Module
    anatomy: Anatomy
    options: Mapping[str, Any] = field(default_factory=dict)  # of its forward, beside what a batch holds

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Subject:
        """Find out where things are by running `model` once on a few tokens of `inputs`."""
        return cls(model, anatomy(model, inputs), options or {})

    @property
    def place(self) -> torch.device:
        return precision_and_place(self.model)[1]

    def observe(self, observer: Observer, batch: Batch) -> None:
        """Run one batch under the tap; when memory runs out, run its halves. What is seen waits for `commit`."""
        ready = batch.to(self.place)
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


# Where a survey comes from: what was read, how it was verified, and everything needed to make its numbers again.

_VERIFIED_SEQUENCES = 2
_VERIFIED_TOKENS = 512  # verification is dense: its cost grows with the square of the length


def provenance(
    loaded: Loaded, prepared: Batches, found: Anatomy, verified: dict[str, Any], plan: Plan
) -> dict[str, Any]:
    """Everything needed to make these numbers again, and to know how far to trust them."""
    stacks = [
        {
            "name": stack.name,
            "layers": len(stack.blocks) + len(found.without_stream(stack.name)),
            "heads": max((s.heads for s in found.sites if s.stack == stack.name), default=0),
            "causal": all(s.causal for s in found.sites if s.stack == stack.name and s.site == "self"),
            **({"kinds": kinds} if (kinds := {str(b.layer): b.kind for b in stack.blocks if not b.attends}) else {}),
        }
        for stack in found.stacks
    ]
    notes = [*prepared.notes, *found.notes, *notes_on_placeholders(loaded.model, (batch.inputs for batch in prepared))]
    return {
        "model": {
            **{key: value for key, value in loaded.provenance.items() if key not in ("model", "sha256")},
            "name": loaded.name,
            "class": loaded.class_name,
            "hash": loaded.sha256,
            "parameters": loaded.parameters,
            "stacks": stacks,
            **({"broken_weights": list(broken)} if (broken := broken_weights(loaded.model)) else {}),
        },
        "corpus": {"name": prepared.name, "hash": prepared.sha256, "window": plan.max_tokens},
        **({} if prepared.beginning is None else {"bos": prepared.beginning.to_json() | bos_loss(loaded, prepared)}),
        "measures": list(plan.measures),
        "dtype": plan.dtype,
        "device": plan.device,
        "seed": plan.seed,
        "batch_size": plan.batch_size,
        "routes": list(found.routes),
        "verify": verified,
        **({"notes": notes} if notes else {}),
        **Stamp.now().to_json(),
    }


def missing(observer: Observer, told: Mapping[str, str] | None = None) -> Missing:
    """What the observer learned of measures that this model does not allow. `told` is what an earlier part of the same
    scan said of them."""
    return Missing(
        {name: frozenset(fields) for name, fields in observer.lacking.items()},
        {
            name: {what: frozenset(layers) for what, layers in lost.items()}
            for name, lost in observer.without_meaning.items()
        },
        told or {},
    )


def verified(subject: Subject, prepared: Batches) -> dict[str, Any]:
    """The verifier's word on the first batch and on the first one with padding, or a refusal."""
    padded = [batch for batch in prepared.batches[1:] if batch.mask is not None and not bool(batch.mask.all())]
    largest: dict[str, float] = {}
    notes: list[str] = []
    for batch in (prepared.batches[0], *padded[:1]):
        check = _checked(subject, batch)
        if not check.passed:
            raise RefusalError(f"{type(subject.model).__name__} cannot be scanned honestly: {check.sentence}")
        for name, one in check.checks.items():
            largest[name] = max(one.largest, largest.get(name, 0.0))
        notes += [note for note in check.notes if note not in notes]
    return {"passed": True, "largest_difference": largest["mixed"], "checks": largest, "notes": notes}


def _checked(subject: Subject, batch: Batch) -> Verification:
    """Of a corner of the batch; of whole sequences where a model takes other modules for short ones (BigBird)."""
    few = _few_rows(batch)
    try:
        with keeping_its_modules(subject.model):
            return verify(subject.model, few.shortened(_VERIFIED_TOKENS).to(subject.place).inputs, subject.anatomy)
    except ExchangedModulesError:
        return verify(subject.model, few.to(subject.place).inputs, subject.anatomy)


def _few_rows(batch: Batch) -> Batch:
    """A corner of a batch, for the verifier: its last rows, since padded sequences come last."""
    while len(batch) > _VERIFIED_SEQUENCES and not batch.undivided:
        _, batch = batch.halves()
    return batch
