"""scan(model, corpus) -> Survey: measure every layer and head of a model over a corpus.

    survey = attnscope.scan("pocket")
    survey = attnscope.scan(my_model, ["a text", "another"], tokenizer=my_tokenizer, measures=["default", "deep"])
    survey = attnscope.scan(vision_model, [{"pixel_values": images}])

The model runs its own forward pass with its own fused attention; a tap hands out frames as layers finish, measures turn
frames into numbers, and nothing larger than one layer of one batch is ever kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.registry import choose
from attnscope.hf.anatomy import Anatomy, anatomy, weights
from attnscope.hf.load import Loaded
from attnscope.hf.tap import tap
from attnscope.hf.verify import Verification, verify
from attnscope.scanning.checkpoint import Checkpoint
from attnscope.scanning.material import Ready, Text, batches_for, forward_options, loaded_model, names_of
from attnscope.scanning.observer import Observer
from attnscope.survey.ledger import Ledger
from attnscope.survey.survey import Survey
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.windows import Tokenizer

Progress = Callable[[str, int, int, int], None]  # stage, sequences done, sequences in all, tokens done
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
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Survey:
    """Measure `model` over `corpus`; see `attnscope scan --help` for the words.

    `accumulate` is the precision of attention statistics: float32 rounds as the model's own attention does; None takes
    float64 wherever logits are so large that float32 would show. With `checkpoint`, what is done is kept there when the
    scan is interrupted, and `resume` goes on with it.
    """
    tell = progress or _quiet
    chosen = choose(names_of(measures))
    tell("loading", 0, 0, 0)
    options = {"allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    loaded = loaded_model(
        model, tokenizer, dtype=dtype, device=device, random_init=random_init, seed=seed, **options
    )
    prepared = batches_for(
        loaded,
        corpus,
        field=field,
        samples=samples,
        max_tokens=max_tokens,
        batch_size=batch_size,
        seed=seed,
    )
    precision, place = _precision_and_place(loaded.model)
    plan = {
        "model": loaded.sha256,
        "corpus": prepared.sha256,
        "measures": [m.card.name for m in chosen],
        "samples": prepared.samples,
        "max tokens": max_tokens,
        "batch size": batch_size,
        "seed": seed,
        "dtype": str(precision).removeprefix("torch."),
    }
    keeper = Checkpoint(checkpoint, plan)
    restored = keeper.restore() if resume else None
    tell("probing", 0, prepared.samples, 0)
    with torch.inference_mode():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
        check = verify(loaded.model, _small(prepared.batches[0]).to(place).inputs, found)
    if not check.passed:
        raise RefusalError(f"{loaded.class_name} cannot be scanned honestly: {check.sentence}")
    origin = _provenance(loaded, prepared, found, check, plan)
    cards = {m.card.name: m.card for m in chosen}
    ledger = Ledger(cards) if restored is None else Ledger.from_survey(restored[0])
    observer = Observer(chosen, ledger, accumulate)
    if restored is None:
        for frame in weights(loaded.model, found):
            observer.receive(frame)
        observer.commit(())
    done, tokens = (0, 0) if restored is None else restored[1:]

    def so_far() -> Survey:
        return ledger.survey(_counted(origin, done, tokens))

    try:
        with _evaluating(loaded.model), torch.inference_mode():
            tell("scanning", done, prepared.samples, tokens)
            for batch in _remaining(prepared, done):
                observe_batch(loaded, found, observer, batch)
                done, tokens = done + len(batch), tokens + batch.tokens
                tell("scanning", done, prepared.samples, tokens)
                if keeper.due:
                    keeper.save(so_far(), done, tokens)
    except BaseException:
        if done:
            keeper.save(so_far(), done, tokens)
        raise
    return so_far()


def observe_batch(loaded: Loaded, found: Anatomy, observer: Observer, batch: Batch) -> None:
    """Run one batch under the tap; when memory runs out, run its halves."""
    ready = batch.to(_precision_and_place(loaded.model)[1])
    try:
        with tap(loaded.model, found, observer.receive):
            loaded.model(**ready.inputs, **forward_options(loaded))
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        observer.forget()
        if not _out_of_memory(error):
            raise
    except BaseException:
        observer.forget()
        raise
    else:
        observer.commit(batch.samples)
        return
    for half in batch.halves():
        observe_batch(loaded, found, observer, half)


def _precision_and_place(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    first = next(p for p in model.parameters() if p.is_floating_point())
    return first.dtype, first.device


def _out_of_memory(error: BaseException) -> bool:
    """The CPU allocator raises a plain RuntimeError and says so only in words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _remaining(prepared: Batches, done: int) -> Iterator[Batch]:
    """The batches after the first `done` sequences. Checkpoints are only made between batches."""
    passed = 0
    for batch in prepared:
        if passed >= done:
            yield batch
        passed += len(batch)


def _small(batch: Batch) -> Batch:
    """A corner of a batch, for the verifier."""
    while len(batch) > _VERIFIED_SEQUENCES:
        batch, _ = batch.halves()
    return batch.shortened(_VERIFIED_TOKENS)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off while scanning, and the model's mode as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _counted(origin: dict[str, Any], sequences: int, tokens: int) -> dict[str, Any]:
    return {**origin, "corpus": {**origin["corpus"], "sequences": sequences, "tokens": tokens}}


def _provenance(
    loaded: Loaded, prepared: Batches, found: Anatomy, check: Verification, plan: dict[str, Any]
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
        "corpus": {"name": prepared.name, "hash": prepared.sha256, "window": plan["max tokens"]},
        "measures": plan["measures"],
        "dtype": plan["dtype"],
        "device": str(_precision_and_place(loaded.model)[1]),
        "seed": plan["seed"],
        "batch_size": plan["batch size"],
        "routes": list(found.routes),
        "verify": {
            "passed": check.passed,
            "largest_difference": check.largest,
            "checks": {name: one.largest for name, one in check.checks.items()},
            "notes": list(check.notes),
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")},
        "attnscope": attnscope.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _quiet(stage: str, done: int, total: int, tokens: int) -> None:
    """No progress wanted."""
