"""A scan by several: every worker opens the same request, does shards, and puts them into the store.

The driver loads no model and reads no corpus. It hears the plan from the first worker that has one, deals out the
numbers of shards that are not in the store, and folds the store when all are there.
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

from attnscope.commands.scan.plan import Plan
from attnscope.commands.scan.run import opened
from attnscope.commands.scan.shard import Checkpoint, shards_beside, texts_of, wanted_samples
from attnscope.commands.scan.survey.merge import folded
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences
from attnscope.commands.scan.survey.shards import Store, shard_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.workplace import Request, Workplace, one_by_one
from attnscope.core.errors import RefusalError
from attnscope.core.progress import AdvanceReading
from attnscope.data.batches import Batches
from attnscope.data.read import repeated
from attnscope.engine.crew import Workers, answer
from attnscope.hf.loading.load import Loaded

Task = tuple[str, Any]  # ("shard", 3) or ("texts", samples)


@dataclass(frozen=True)
class ScanJob:
    """A request that another process can open."""

    request: Request
    store: str

    @contextmanager
    def open(self) -> Iterator[_Opened]:
        with opened(self.request) as place:
            yield _Opened(place, self.store)

    def called(self, task: Task) -> str:
        return f"shard {task[1]}" if task[0] == "shard" else "the texts behind findings"


@dataclass(frozen=True)
class _Opened:
    place: Workplace
    where: str

    @cached_property
    def store(self) -> Store:
        """Opened with the first shard: by then the driver has taken away what an earlier scan left there."""
        plan = self.place.plan
        return Store.open(self.where, plan.to_json(), plan.digest, plan.shards)

    @property
    def agreed(self) -> str:
        return json.dumps({**self.place.plan.to_json(), "versions": self.place.origin["versions"]}, sort_keys=True)

    @property
    def hello(self) -> tuple[Plan, tuple[int, ...]]:
        return self.place.plan, self.place.cut.sizes

    def do(self, task: Task) -> Any:
        kind, what = task
        if kind == "shard":
            return one_by_one(self.place, self.store, [what], Checkpoint(None, self.place.plan))
        tokenizer = self.place.loaded.tokenizer
        return ({}, {}) if tokenizer is None else texts_of(what, self.place.cut.holding(what), tokenizer)


def spread(
    request: Request,
    workers: Workers,
    store: str | Path | None,
    checkpoint: Path | None,
    *,
    resume: bool,
    keep_text: bool,
    tell: AdvanceReading,
) -> Survey:
    """Scan a request with several workers."""
    request = _portable(request, here=workers.engine == "local")
    tell("starting workers", 0, 0, 0)
    with _folder(store, checkpoint) as where, workers.crew(ScanJob(request, str(where))) as crew:
        plan, sizes = crew.hello
        if store is None and not resume:  # not before a worker has model and corpus: a typo must cost nothing
            Checkpoint(checkpoint, plan).clear()
        kept = Store.open(where, plan.to_json(), plan.digest, plan.shards)
        done = kept.done()
        todo = [("shard", number) for number in range(plan.shards) if number not in done]
        sequences, tokens = sum(sizes[number] for number in done), 0
        tell("scanning", sequences, plan.samples, tokens)
        for _, (read, words) in crew.each(todo):
            sequences, tokens = sequences + read, tokens + words
            tell("scanning", sequences, plan.samples, tokens)
        survey = folded([(kept.place, shard_name(plan.digest, number)) for number in range(plan.shards)])
        return _with_texts(survey, crew) if keep_text else survey


def _with_texts(survey: Survey, crew: Any) -> Survey:
    wanted = wanted_samples(survey)
    if not wanted:
        return survey
    found: tuple[Excerpts, Sequences] = answer(crew, ("texts", wanted))
    return replace(survey, excerpts=found[0], sequences=found[1]) if found[0] else survey


def _folder(store: str | Path | None, checkpoint: Path | None) -> AbstractContextManager[str | Path]:
    """Where shards gather: the store that was named, a folder beside the checkpoint, or one that goes away again."""
    if store is not None:
        return nullcontext(store)
    if checkpoint is not None:
        return nullcontext(shards_beside(checkpoint).absolute())
    return tempfile.TemporaryDirectory(prefix="attnscope-shards-")


def _portable(request: Request, here: bool) -> Request:
    """The request as plain data that a worker can open; what lives in this process only is refused. Workers `here` are
    in the same folder, so that names stay as they were given, and so does what surveys call the corpus."""
    if isinstance(request.model, nn.Module | Loaded) or request.tokenizer is not None:
        raise RefusalError(
            "Workers load the model themselves, so one in memory cannot be handed to them: save it with "
            "save_pretrained and give its folder, or scan without workers."
        )
    corpus = request.corpus
    if corpus == "-":
        raise RefusalError(
            "Standard input can be read by one process only: write it to a file, or leave `workers=` out."
        )
    if repeated(corpus) is not None:
        pass  # a word, and no path
    elif isinstance(corpus, Path) or (isinstance(corpus, str) and "://" not in corpus):
        corpus = str(corpus) if here else str(Path(corpus).expanduser().absolute())
    elif corpus is not None and not isinstance(corpus, str):
        corpus = corpus if isinstance(corpus, Batches | Mapping) else cast(Any, list(corpus))
    model = str(request.model)
    if not here and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())
    return replace(request, model=model, corpus=corpus)
