"""scan(model, corpus) -> Survey: measure every layer and head of a model over a corpus.

    survey = attnscope.scan("pocket")
    survey = attnscope.scan(my_model, ["a text", "another"], tokenizer=my_tokenizer, measures=["default", "deep"])
    survey = attnscope.scan(vision_model, [{"pixel_values": images}])

The model runs its own forward pass with its own fused attention; a tap hands out frames as layers finish, measures turn
frames into numbers, and nothing larger than one layer of one batch is ever kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.progress import AdvanceReading, silent
from attnscope.core.registry import choose
from attnscope.core.stamp import Stamp
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy, weights
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import (
    Ready,
    Text,
    batches_for,
    files_of,
    forward_options,
    loaded_model,
    out_of_memory,
    precision_and_place,
    refusing_what_does_not_run,
    text_of,
)
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.intact import evaluating
from attnscope.hf.tapping.tap import tap
from attnscope.hf.tapping.verify import verify
from attnscope.records.survey.ledger import Ledger
from attnscope.records.survey.survey import Survey
from attnscope.scanning.checkpoint import Checkpoint
from attnscope.scanning.interrupts import uninterrupted
from attnscope.scanning.observer import Observer
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.windows import Tokenizer

_VERIFIED_SEQUENCES = 2
_VERIFIED_TOKENS = 512  # verification is dense: its cost grows with the square of the length


def scan(
    model: str | Path | nn.Module | Loaded,
    corpus: Text | Ready | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    measures: str | Iterable[str] = "default",
    samples: int = 64,
    max_tokens: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    field: str = "text",
    random_init: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    accumulate: torch.dtype | None = torch.float32,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: AdvanceReading | None = None,
) -> Survey:
    """Measure `model` over `corpus`; see `attnscope scan --help` for the words.

    `dtype`, `device` and `random_init` are for models loaded by name; one in memory is scanned as it is. `accumulate`
    is the precision of attention statistics: float32 rounds as the model's own attention does; None takes float64
    wherever logits are so large that float32 would show. With `checkpoint`, what is done is kept there when the scan is
    interrupted, and `resume` goes on with it. `progress(stage, done, total, tokens)` is told of sequences and tokens.
    """
    tell = progress or silent
    chosen = choose(_names_of(measures))
    tell("loading", 0, 0, 0)
    loading = Loading(dtype, device, random_init, seed, allow_pickle, trust_remote_code)
    sampling = Sampling(samples, max_tokens, batch_size, seed, field)
    loaded = loaded_model(model, tokenizer, loading)
    text = text_of(corpus, sampling)
    prepared = batches_for(loaded, text, sampling)
    precision, place = precision_and_place(loaded.model)
    plan = {
        "model": loaded.sha256,
        "corpus": prepared.sha256,
        "tokens": prepared.fingerprint(),
        "measures": [m.card.name for m in chosen],
        "samples": prepared.samples,
        "max_tokens": max_tokens,
        "batch_size": batch_size,
        "seed": seed,
        "dtype": str(precision).removeprefix("torch."),
        "device": str(place),
        "accumulate": str(accumulate).removeprefix("torch."),
        "version": attnscope.__version__,
    }
    keeper = Checkpoint(None if checkpoint is None else Path(checkpoint), plan)
    restored = keeper.restore() if resume else None
    if restored is None:
        keeper.clear()
    tell("probing", 0, prepared.samples, 0)
    with refusing_what_does_not_run(loaded), torch.inference_mode(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
        origin = _provenance(loaded, prepared, found, _verified(loaded, prepared, found), plan)
    origin["corpus"] |= files_of(text)
    cards = {m.card.name: m.card for m in chosen}
    ledger = Ledger(cards) if restored is None else Ledger.from_survey(restored.survey)
    observer = Observer(chosen, ledger, accumulate)
    if restored is None:
        for frame in weights(loaded.model, found):
            observer.receive(frame)
        observer.finish(None)
        observer.commit()
    else:
        observer.tokens.update(restored.stack_tokens)
    done, tokens = (0, 0) if restored is None else (restored.sequences, restored.tokens)
    whole = True  # whether the ledger holds whole batches only

    def so_far() -> Survey:
        with uninterrupted():
            return ledger.survey(_counted(origin, done, tokens, observer.tokens))

    try:
        with evaluating(loaded.model), torch.inference_mode(), quiet():
            tell("scanning", done, prepared.samples, tokens)
            for batch in _remaining(prepared, done):
                observe_batch(loaded, found, observer, batch)
                with uninterrupted():
                    whole = False
                    observer.commit()
                    done, tokens = done + len(batch), tokens + batch.tokens
                    whole = True
                tell("scanning", done, prepared.samples, tokens)
                if keeper.due:
                    keeper.save(so_far(), done, tokens)
    except BaseException:
        if done and whole:
            keeper.save(so_far(), done, tokens)
        raise
    survey = _with_what_is_missing(so_far(), observer)
    keeper.save(survey, done, tokens)  # until the caller has put the survey where it belongs
    return survey


def observe_batch(loaded: Loaded, found: Anatomy, observer: Observer, batch: Batch) -> None:
    """Run one batch under the tap; when memory runs out, run its halves. What is seen waits for `commit`."""
    ready = batch.to(precision_and_place(loaded.model)[1])
    try:
        with tap(loaded.model, found, observer.receive):
            loaded.model(**ready.inputs, **forward_options(loaded))
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
        observe_batch(loaded, found, observer, half)


def _verified(loaded: Loaded, prepared: Batches, found: Anatomy) -> dict[str, Any]:
    """The verifier's word on the first batch and on the first one with padding, or a refusal."""
    padded = [batch for batch in prepared.batches[1:] if batch.mask is not None and not bool(batch.mask.all())]
    largest: dict[str, float] = {}
    notes: list[str] = []
    for batch in (prepared.batches[0], *padded[:1]):
        corner = _small(batch).to(precision_and_place(loaded.model)[1])
        check = verify(loaded.model, corner.inputs, found)
        if not check.passed:
            raise RefusalError(f"{loaded.class_name} cannot be scanned honestly: {check.sentence}")
        for name, one in check.checks.items():
            largest[name] = max(one.largest, largest.get(name, 0.0))
        notes += [note for note in check.notes if note not in notes]
    return {"passed": True, "largest_difference": largest["mixed"], "checks": largest, "notes": notes}


def _remaining(prepared: Batches, done: int) -> Iterator[Batch]:
    """The batches after the first `done` sequences. Checkpoints are only made between batches."""
    passed = 0
    for batch in prepared:
        if passed >= done:
            yield batch
        passed += len(batch)


def _small(batch: Batch) -> Batch:
    """A corner of a batch, for the verifier: the last rows, since padded sequences come last."""
    while len(batch) > _VERIFIED_SEQUENCES and not batch.undivided:
        _, batch = batch.halves()
    return batch.shortened(_VERIFIED_TOKENS)


def _counted(origin: dict[str, Any], sequences: int, tokens: int, by_stack: Mapping[str, int]) -> dict[str, Any]:
    """Provenance with what has been read so far."""
    stacks = [{**stack, "tokens": by_stack.get(stack["name"], 0)} for stack in origin["model"]["stacks"]]
    return {
        **origin,
        "model": {**origin["model"], "stacks": stacks},
        "corpus": {**origin["corpus"], "sequences": sequences, "tokens": tokens},
    }


def _with_what_is_missing(survey: Survey, observer: Observer) -> Survey:
    """Say which of the chosen measures this model does not allow, and why; refuse a survey of nothing."""
    measured = {key.measure for key in survey.cells}
    missing = {
        name: f"{', '.join(sorted(observer.lacking[name]))} not found" if observer.lacking[name] else "no place for it"
        for name in survey.cards
        if name not in measured
    }
    if not survey.cells:
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        raise RefusalError(f"Nothing that was asked for can be measured in this model ({reasons}): choose others.")
    return replace(survey, provenance={**survey.provenance, "not_measured": missing}) if missing else survey


def _provenance(
    loaded: Loaded, prepared: Batches, found: Anatomy, verified: dict[str, Any], plan: dict[str, Any]
) -> dict[str, Any]:
    """Everything needed to make these numbers again, and to know how far to trust them."""
    stacks = [
        {
            "name": stack.name,
            "layers": len(stack.blocks),
            "heads": max((s.heads for s in found.sites if s.stack == stack.name), default=0),
            "causal": all(s.causal for s in found.sites if s.stack == stack.name and s.site == "self"),
        }
        for stack in found.stacks
    ]
    return {
        "model": {
            **{key: value for key, value in loaded.provenance.items() if key not in ("model", "sha256")},
            "name": loaded.name,
            "class": loaded.class_name,
            "hash": loaded.sha256,
            "parameters": loaded.parameters,
            "stacks": stacks,
        },
        "corpus": {"name": prepared.name, "hash": prepared.sha256, "window": plan["max_tokens"]},
        "measures": plan["measures"],
        "dtype": plan["dtype"],
        "device": str(precision_and_place(loaded.model)[1]),
        "seed": plan["seed"],
        "batch_size": plan["batch_size"],
        "routes": list(found.routes),
        "verify": verified,
        **Stamp.now().to_json(),
    }


def _names_of(measures: str | Iterable[str]) -> list[str]:
    """Measure words from a list or a comma-separated string."""
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
