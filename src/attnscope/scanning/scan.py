"""scan(model, corpus) -> Survey: measure every layer and head of a model over a corpus.

    survey = attnscope.scan("pocket")
    survey = attnscope.scan(my_model, ["a text", "another"], tokenizer=my_tokenizer, measures=["default", "deep"])
    survey = attnscope.scan(vision_model, [{"pixel_values": images}])

The model runs its own forward pass with its own fused attention; a tap hands out frames as layers finish, measures turn
frames into numbers, and nothing larger than one layer of one batch is ever kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

from attnscope.core.interrupts import uninterrupted
from attnscope.core.measure import Measure
from attnscope.core.named_path import named_path
from attnscope.core.progress import AdvanceReading, silent
from attnscope.core.registry import choose
from attnscope.core.seeds import refuse_unusable_seed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import (
    Ready,
    Text,
    batches_for,
    files_of,
    forward_options,
    loaded_model,
    precision_and_place,
    refusing_what_does_not_run,
    text_of,
)
from attnscope.hf.loading.options import Loading, Sampling, refuse_unknown_bos
from attnscope.hf.loading.placeholders import holds_placeholders
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.exclusive import looking_at
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import keeping_its_modules
from attnscope.records.survey.ledger import Each
from attnscope.records.survey.survey import Survey
from attnscope.scanning.checkpoint import Checkpoint
from attnscope.scanning.excerpts import with_excerpts
from attnscope.scanning.plan import Plan
from attnscope.scanning.provenance import provenance, verified
from attnscope.scanning.shard import Shard
from attnscope.scanning.subject import Subject
from attnscope.trace.batches import Batch, Batches
from attnscope.trace.windows import Tokenizer


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
    bos: str = "auto",
    random_init: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    accumulate: torch.dtype | None = torch.float32,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    keep_text: bool = True,
    each: Each | None = None,
    progress: AdvanceReading | None = None,
) -> Survey:
    """Measure `model` over `corpus`; see `attnscope scan --help` for the words.

    `bos` says whether sequences begin with BOS: "auto" as the tokenizer or a GGUF header wants it, "yes" or "no".
    `dtype`, `device` and `random_init` are for models loaded by name; one in memory is scanned as it is. `accumulate`
    is the precision of attention statistics: float32 rounds as the model's own attention does; None takes float64
    wherever logits are so large that float32 would show. With `checkpoint`, what is done is kept there when the scan is
    interrupted, and `resume` goes on with it. `keep_text` puts the texts of the few sequences that findings point at
    into the survey, so that the report can show them. `each(key, values, samples)` is told of the numbers of every
    sequence, which a survey only sums (not of those that a resumed scan had already read). `progress(stage, done,
    total, tokens)` is told of sequences and tokens.
    """
    tell = progress or silent
    words = _names_of(measures)
    chosen = choose(words)
    refuse_unusable_seed(seed)
    refuse_unknown_bos(bos)
    tell("loading", 0, 0, 0)
    loading = Loading(dtype, device, random_init, seed, allow_pickle, trust_remote_code)
    sampling = Sampling(samples, max_tokens, batch_size, seed, field, bos)
    loaded = loaded_model(model, tokenizer, loading)
    with looking_at(loaded.model), keeping_its_modules(loaded.model):
        text = text_of(corpus, sampling)
        prepared = batches_for(loaded, text, sampling)
        chosen = _with_a_place(chosen, words, loaded, prepared)
        plan = Plan.of(loaded, prepared, chosen, sampling, accumulate)
        keeper = Checkpoint(None if checkpoint is None else named_path(checkpoint, "checkpoint"), plan)
        before = keeper.restore() if resume else None
        if before is None:
            keeper.clear()
        tell("probing", 0, prepared.samples, 0)
        with refusing_what_does_not_run(loaded), without_gradients(), quiet():
            first = prepared.batches[0].to(precision_and_place(loaded.model)[1])
            subject = Subject.of(loaded.model, first.inputs, forward_options(loaded))
            origin = provenance(loaded, prepared, subject.anatomy, verified(subject, prepared), plan)
        origin["corpus"] |= files_of(text)
        shard = Shard(plan, subject, origin, before, each)
        try:
            tell("scanning", shard.sequences, prepared.samples, shard.tokens)
            for batch in remaining(prepared, shard.sequences):
                shard.observe(batch)
                tell("scanning", shard.sequences, prepared.samples, shard.tokens)
                if keeper.due:
                    keeper.save(shard.survey())
            with uninterrupted():
                survey = shard.finished()
                if keep_text:
                    survey = with_excerpts(survey, prepared, loaded.tokenizer)
                keeper.save(survey)  # until the caller has put the survey where it belongs
        except BaseException:
            with uninterrupted():
                if shard.sequences and shard.whole and (partial := shard.survey()).cells:
                    keeper.save(partial)
            raise
        return survey


def remaining(prepared: Batches, done: int) -> Iterator[Batch]:
    """The batches after the first `done` sequences. Checkpoints are only made between batches."""
    passed = 0
    for batch in prepared:
        if passed >= done:
            yield batch
        passed += len(batch)


def _with_a_place(
    chosen: tuple[Measure, ...], words: Iterable[str], loaded: Loaded, prepared: Batches
) -> tuple[Measure, ...]:
    """Without measures of pictures among words where there are none, unless they were asked for by name."""
    if holds_placeholders(loaded.model, (batch.inputs for batch in prepared)):
        return chosen
    return tuple(m for m in chosen if "media" not in m.reads or m.card.name in words)


def _names_of(measures: str | Iterable[str]) -> list[str]:
    """Measure words from a list or a comma-separated string."""
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
