"""Where a survey comes from: what was read, how it was verified, and everything needed to make its numbers again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnscope.core.errors import RefusalError
from attnscope.core.stamp import Stamp
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.placeholders import notes_on_placeholders
from attnscope.hf.loading.sound import broken_weights
from attnscope.hf.seeing.intact import ExchangedModulesError, keeping_its_modules
from attnscope.hf.tapping.verify import Verification, verify
from attnscope.records.survey.missing import Missing
from attnscope.scanning.bos_loss import bos_loss
from attnscope.scanning.observer import Observer
from attnscope.scanning.plan import Plan
from attnscope.scanning.subject import Subject
from attnscope.trace.batches import Batch, Batches

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
