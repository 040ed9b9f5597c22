"""`attnscope.scan`: measure every block and head of a model over a corpus.

A tap yields a frame when a block finishes, measures turn frames into numbers, and nothing larger than one block of one
batch is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import torch
from torch import nn

from attnscope.commands.scan.by_block import refuse_without_chain
from attnscope.commands.scan.opened_scan import OpenedScan, ScanRequest, ShardRunner
from attnscope.commands.scan.plan import ScanPlan, Subject, provenance, verified
from attnscope.commands.scan.shard import Checkpoint, with_excerpts
from attnscope.commands.scan.survey.builder import Each
from attnscope.commands.scan.survey.merge import merge_shards
from attnscope.commands.scan.survey.provenance import counted
from attnscope.commands.scan.survey.shards import Store, shard_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.trial.run import trial_of
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.measure import Measure
from attnscope.core.progress import AdvanceReading, silent, uninterrupted
from attnscope.core.registry import choose
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus
from attnscope.data.shards import Cut, InMemory
from attnscope.data.windows import Tokenizer
from attnscope.engine.crew import Workers, part
from attnscope.hf.exchanging.call import gated
from attnscope.hf.intercepting.restoring import keeping_its_modules, looking_at, without_gradients
from attnscope.hf.loading.load import (
    Loaded,
    Ready,
    Text,
    cut_for,
    files_of,
    forward_options,
    load,
    precision_and_place,
    refusing_what_does_not_run,
    text_or_stream,
)
from attnscope.hf.loading.options import Loading, Sampling, ScanOptions, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.targets import holds_placeholders
from attnscope.hf.tapping.token_axis import token_axis, with_tokens_counted


@with_options(ScanOptions)
def scan(
    model: str | Path | nn.Module | Loaded,
    corpus: Text | Ready | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    measures: str | Iterable[str] = "default",
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(samples=64),
    accumulate: torch.dtype | None = torch.float32,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    keep_text: bool = True,
    trial: bool = True,
    each: Each | None = None,
    team: Workers = Workers(),
    store: str | Path | None = None,
    shard: str | None = None,
    progress: AdvanceReading | None = None,
    **kwargs: Unpack[ScanOptions],
) -> Survey:
    """Measure every block and head of a model over a corpus.

    The model runs its own forward pass with its own fused attention.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The name or folder of a model, or a model in memory, which is scanned as it is.
    corpus : str, Path, iterable of texts, or ready batches, optional
        Files, texts, or mappings of tensors such as `{"pixel_values": images}`. Default: the embedded corpus.
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    measures : str or iterable of str
        Names of measures (`attnscope.catalog()`) and of sets such as "default" and "deep".
    loading : Loading
        How the model is loaded.
    sampling : Sampling
        Which sequences are read.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, device_map, stream_weights : see `Loading`
        Fields of `loading` as keywords. With `stream_weights` only the weights of one block are in memory at a time.
    samples, max_tokens, batch_size, seed, field, bos : see `Sampling`
        Fields of `sampling` as keywords. By default 64 sequences are read.
    accumulate : torch.dtype or None
        The precision of attention statistics. None takes float64 where large logits need it.
    checkpoint : str or Path, optional
        A file that keeps an interrupted scan.
    resume : bool
        Continue from `checkpoint`.
    keep_text : bool
        Store the texts of the few sequences that findings point at.
    trial : bool
        Also measure the loss of a few windows, and what changes it (`Survey.trial`).
    each : callable, optional
        Called as `each(key, values, samples)` with the numbers of every sequence, except those before a resume.
    team : Workers
        The workers. Its fields `workers`, `engine`, `address` and `gpus_per_worker` are keywords too.
    store : str or Path, optional
        A folder for finished shards. A later scan of the same plan continues from them.
    shard : str, optional
        One part of a job array: "3/64" scans the third of 64 parts into `store`. `attnscope.merge` joins the parts.
    progress : callable, optional
        Called as `progress(stage, done, total, tokens)`.

    Returns
    -------
    Survey
        Exact sums of every measure for every block and head. With `shard`, the survey of that part, which may be empty.

    Raises
    ------
    RefusalError
        If the model cannot be loaded or verified, the corpus is too short, or options contradict each other.

    Examples
    --------
    >>> survey = attnscope.scan("pocket", samples=4)
    >>> survey = attnscope.scan("pocket", ["A text.", "Another text."], measures="entropy", max_tokens=4)
    """
    tell = progress or silent
    words = _names_of(measures)
    choose(words)
    request = ScanRequest(model, corpus, tokenizer, tuple(words), loading, sampling, accumulate)
    path = None if checkpoint is None else named_path(checkpoint, "checkpoint")
    if team != Workers():
        from attnscope.commands.scan.workers import spread

        if shard is not None:
            raise RefusalError("One part of a job array runs in one process: give `shard=` or `workers=`, not both.")
        if each is not None:
            raise RefusalError("`each=` does not work with several workers: leave workers= or each= out.")
        return spread(request, team, store, path, resume=resume, keep_text=keep_text, trial=trial, tell=tell)
    mine = None if shard is None else part(shard)
    if mine is not None and store is None:
        raise RefusalError("The parts of a job array are collected in a store: name its folder with `store=`.")
    with drafted(request, tell) as draft:
        plan = draft.plan
        keeper = Checkpoint(path if store is None else None, plan)
        before = keeper.restore() if resume else None
        if before is None and not (resume and keeper.shards is not None and keeper.shards.exists()):
            keeper.clear()
        where = keeper.shards if store is None else store
        # Streamed weights are read once for as many sequences as fit into memory, not once per shard.
        apart = plan.shards > 1 and not loading.stream_weights
        shards = None
        if where is not None and (store is not None or apart):
            shards = Store.open(where, plan.to_json(), plan.digest, plan.shards)
        runner = ShardRunner(probed(draft, tell), keeper, each, tell)
        if shards is None:
            survey = runner.run_whole(before)
        else:
            numbers = range(plan.shards) if mine is None else mine.shards(plan.shards)
            runner.run_into(shards, numbers, before)
            files = [(shards.folder, shard_name(shards.digest, number)) for number in numbers]
            if files:
                survey = merge_shards(files, partial=mine is not None)
            else:  # more parts than shards is no error: torchrun would stop all parts
                cards = {measure.card.name: measure.card for measure in plan.chosen}
                survey = Survey.empty(counted(runner.scan.origin, 0, 0, {}), cards)
        with uninterrupted():
            if shards is None:
                keeper.save(survey)  # removed after the caller has saved the survey
        if trial and mine is None and not loading.stream_weights:
            tell("trying", 0, 0, 0)
            survey = replace(survey, trial=trial_of(draft.loaded, runner.scan.subject.anatomy, draft.cut.head))
        with uninterrupted():
            if keep_text and mine is None:
                survey = with_excerpts(survey, draft.cut, draft.loaded.tokenizer)
            if shards is None:
                keeper.save(survey)
        return survey


@dataclass(frozen=True)
class Draft:
    """A planned scan whose model has not run yet."""

    request: ScanRequest
    loaded: Loaded
    text: object
    cut: Cut
    plan: ScanPlan


@contextmanager
def drafted(request: ScanRequest, tell: AdvanceReading = silent) -> Iterator[Draft]:
    """Load the model, cut the corpus and make the plan."""
    tell("loading", 0, 0, 0)
    loaded = load(request.model, loading=request.loading, tokenizer=request.tokenizer, cast=False)
    with looking_at(loaded.model), keeping_its_modules(loaded.model):
        text = text_or_stream(request.corpus, request.sampling)
        cut = cut_for(loaded, text, request.sampling)
        chosen = _measurable(choose(request.measures), request.measures, loaded, cut.head)
        chosen = _with_what_is_looked_for(chosen, loaded, text)
        yield Draft(request, loaded, text, cut, ScanPlan.of(loaded, cut, chosen, request.sampling, request.accumulate))


def probed(draft: Draft, tell: AdvanceReading = silent) -> OpenedScan:
    """Run the model on the first batch to find its anatomy and to verify what will be measured."""
    loaded, plan, prepared = draft.loaded, draft.plan, draft.cut.head
    streamed = draft.request.loading.stream_weights
    tell("probing", 0, plan.samples, 0)
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        first = prepared.batches[0].to(precision_and_place(loaded.model)[1])
        subject = Subject.of(loaded.model, first.inputs, forward_options(loaded))
        axis = token_axis(loaded.model, subject.anatomy, first, subject.options)
        cut = draft.cut
        if axis is not None and isinstance(cut, InMemory):
            cut = cut.with_head(with_tokens_counted(prepared, axis))
            prepared = cut.head
        origin = provenance(loaded, prepared, subject.anatomy, verified(subject, prepared), plan)
        if streamed:
            refuse_without_chain(subject, prepared.batches[0])
    origin["corpus"] |= files_of(draft.text)
    kind = prepared.batches[0].counted_as
    if axis is None and kind != "tokens":
        origin["corpus"] |= {"counts": kind}
    return OpenedScan(loaded, cut, plan, subject, origin, streamed)


@contextmanager
def opened(request: ScanRequest) -> Iterator[OpenedScan]:
    """Open a request in a worker."""
    with drafted(request) as draft:
        yield probed(draft)


def _with_what_is_looked_for(chosen: tuple[Measure, ...], loaded: Loaded, text: object) -> tuple[Measure, ...]:
    """Add measures that suit random weights or a corpus of repeated tokens, if the scan has these."""
    wanted = {measure.card.name for measure in chosen}
    if isinstance(text, Corpus) and text.drawn:
        wanted.add("induction")
    if loaded.provenance.get("weights") == "random" and "entropy" in wanted:
        wanted.add("logit_phase")
    return choose(sorted(wanted))


def _measurable(
    chosen: tuple[Measure, ...], words: Iterable[str], loaded: Loaded, prepared: Batches
) -> tuple[Measure, ...]:
    """Drop measures of media or gates if the model has no media or gates, unless the caller named them."""
    absent = set() if holds_placeholders(loaded.model, (batch.inputs for batch in prepared)) else {"media"}
    absent |= set() if gated(loaded.model) else {"gate"}
    return tuple(m for m in chosen if absent.isdisjoint(m.reads) or m.card.name in words)


def _names_of(measures: str | Iterable[str]) -> list[str]:
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
