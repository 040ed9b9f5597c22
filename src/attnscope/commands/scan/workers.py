"""Scan with several workers: each opens the same request, runs shards, and puts them into the store.

The driver loads no model and reads no corpus. It receives the plan from the first worker, distributes the missing
shards, and merges the store when all are finished.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import nn

from attnscope.commands.scan.opened_scan import OpenedScan, ScanRequest, ShardRunner
from attnscope.commands.scan.plan import ScanPlan
from attnscope.commands.scan.run import opened
from attnscope.commands.scan.shard import Checkpoint, shards_beside, texts_of, wanted_samples
from attnscope.commands.scan.survey.merge import merge_shards
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences
from attnscope.commands.scan.survey.shards import Store, shard_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.trial.run import trial_of
from attnscope.core.errors import RefusalError
from attnscope.core.progress import AdvanceReading
from attnscope.data.batches import Batches
from attnscope.data.read import repeated
from attnscope.engine.crew import Workers, answer
from attnscope.hf.loading.load import Loaded

Task = tuple[str, Any]  # ("shard", 3), ("trial", 0) or ("texts", samples)


@dataclass(frozen=True)
class ScanJob:
    """A request that another process can open."""

    request: ScanRequest
    store: str

    @contextmanager
    def open(self) -> Iterator[_WorkerScan]:
        with opened(self.request) as scan:
            yield _WorkerScan(scan, self.store)

    def called(self, task: Task) -> str:
        return {"shard": f"shard {task[1]}", "trial": "the trial"}.get(task[0], "the texts behind findings")


@dataclass(frozen=True)
class _WorkerScan:
    scan: OpenedScan
    folder: str

    @cached_property
    def store(self) -> Store:
        """The store, opened with the first shard: by then the driver has removed the shards of an earlier scan."""
        plan = self.scan.plan
        return Store.open(self.folder, plan.to_json(), plan.digest, plan.shards)

    @property
    def agreed(self) -> str:
        return json.dumps({**self.scan.plan.to_json(), "versions": self.scan.origin["versions"]}, sort_keys=True)

    @property
    def hello(self) -> tuple[ScanPlan, tuple[int, ...]]:
        return self.scan.plan, self.scan.cut.sizes

    def do(self, task: Task) -> Any:
        kind, argument = task
        if kind == "shard":
            return ShardRunner(self.scan, Checkpoint(None, self.scan.plan)).run_into(self.store, [argument])
        tokenizer = self.scan.loaded.tokenizer
        if kind == "trial":
            return trial_of(self.scan.loaded, self.scan.subject.anatomy, self.scan.cut.head)
        return ({}, {}) if tokenizer is None else texts_of(argument, self.scan.cut.holding(argument), tokenizer)


def spread(
    request: ScanRequest,
    workers: Workers,
    store: str | Path | None,
    checkpoint: Path | None,
    *,
    resume: bool,
    keep_text: bool,
    trial: bool,
    tell: AdvanceReading,
) -> Survey:
    """Scan a request with several workers."""
    request = _portable(request, here=workers.engine == "local")
    tell("starting workers", 0, 0, 0)
    with _folder(store, checkpoint) as where, workers.crew(ScanJob(request, str(where))) as crew:
        plan, sizes = crew.hello
        if store is None and not resume:  # after a worker has loaded the model, so that a typo deletes nothing
            Checkpoint(checkpoint, plan).clear()
        kept = Store.open(where, plan.to_json(), plan.digest, plan.shards)
        done = kept.done()
        todo = [("shard", number) for number in range(plan.shards) if number not in done]
        sequences, tokens = sum(sizes[number] for number in done), 0
        tell("scanning", sequences, plan.samples, tokens)
        for _, (read, words) in crew.each(todo):
            sequences, tokens = sequences + read, tokens + words
            tell("scanning", sequences, plan.samples, tokens)
        survey = merge_shards([(kept.folder, shard_name(plan.digest, number)) for number in range(plan.shards)])
        if trial and not request.loading.stream_weights:
            tell("trying", 0, 0, 0)
            survey = replace(survey, trial=answer(crew, ("trial", 0)))
        return _with_texts(survey, crew) if keep_text else survey


def _with_texts(survey: Survey, crew: Any) -> Survey:
    wanted = wanted_samples(survey)
    if not wanted:
        return survey
    found: tuple[Excerpts, Sequences] = answer(crew, ("texts", wanted))
    return replace(survey, excerpts=found[0], sequences=found[1]) if found[0] else survey


def _folder(store: str | Path | None, checkpoint: Path | None) -> AbstractContextManager[str | Path]:
    """Return the named store, a folder beside the checkpoint, or a temporary folder."""
    if store is not None:
        return nullcontext(store)
    if checkpoint is not None:
        return nullcontext(shards_beside(checkpoint).absolute())
    return tempfile.TemporaryDirectory(prefix="attnscope-shards-")


def _portable(request: ScanRequest, here: bool) -> ScanRequest:
    """Return the request as plain data for a worker; refuse a model or corpus that exists in this process only.

    Workers on this machine (`here`) run in the same folder, so relative paths are kept.
    """
    if isinstance(request.model, nn.Module | Loaded) or request.tokenizer is not None:
        raise RefusalError(
            "Workers load the model themselves and cannot use one in memory: save it with save_pretrained and give "
            "its folder, or scan without workers."
        )
    corpus = request.corpus
    if corpus == "-":
        raise RefusalError("Only one process can read standard input: write it to a file, or leave `workers=` out.")
    if repeated(corpus) is not None:
        pass  # a keyword, not a path
    elif isinstance(corpus, Path) or (isinstance(corpus, str) and "://" not in corpus):
        corpus = str(corpus) if here else str(Path(corpus).expanduser().absolute())
    elif corpus is not None and not isinstance(corpus, str):
        corpus = corpus if isinstance(corpus, Batches | Mapping) else cast(Any, list(corpus))
    model = str(request.model)
    if not here and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())
    return replace(request, model=model, corpus=corpus)
