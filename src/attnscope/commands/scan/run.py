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
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from attnscope.commands.scan.by_block import refuse_without_chain
from attnscope.commands.scan.plan import Plan, Subject, provenance, verified
from attnscope.commands.scan.shard import Checkpoint, Shard, with_excerpts
from attnscope.commands.scan.survey.ledger import Each
from attnscope.commands.scan.survey.merge import folded
from attnscope.commands.scan.survey.provenance import counted
from attnscope.commands.scan.survey.shards import Store, shard_name
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.workplace import Request, Workplace, observe, one_by_one
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path
from attnscope.core.measure import Measure
from attnscope.core.progress import AdvanceReading, silent, uninterrupted
from attnscope.core.registry import choose
from attnscope.core.stamp import refuse_unusable_seed
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus
from attnscope.data.windows import Tokenizer
from attnscope.engine.crew import Hands, part
from attnscope.hf.exchanging.call import gated
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.material import (
    Ready,
    Text,
    cut_for,
    files_of,
    forward_options,
    loaded_model,
    precision_and_place,
    refusing_what_does_not_run,
    text_or_stream,
)
from attnscope.hf.loading.options import DeviceMap, Loading, Sampling, refuse_unknown_bos
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.targets import holds_placeholders
from attnscope.hf.seeing.restoring import keeping_its_modules, looking_at, without_gradients


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
    device_map: DeviceMap | None = None,
    stream_weights: bool = False,
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
    workers: int | None = None,
    store: str | Path | None = None,
    shard: str | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus_per_worker: float = 0.0,
    progress: AdvanceReading | None = None,
) -> Survey:
    """Measure `model` over `corpus`; see `attnscope scan --help` for the words.

    `bos` says whether sequences begin with BOS: "auto" as the tokenizer or a GGUF header wants it, "yes" or "no".
    `dtype`, `device` and `random_init` are for models loaded by name; one in memory is scanned as it is. So is
    `device_map`: "auto", a JSON file or a mapping from parts of the model to devices, "cpu" and "disk". With
    `stream_weights` all sequences go through one block after the other, whose weights alone are in memory. `accumulate`
    is the precision of attention statistics: float32 rounds as the model's own attention does; None takes float64
    wherever logits are so large that float32 would show. With `checkpoint`, what is done is kept there when the scan is
    interrupted, and `resume` goes on with it. `keep_text` puts the texts of the few sequences that findings point at
    into the survey, so that the report can show them. `each(key, values, samples)` is told of the numbers of every
    sequence, which a survey only sums (not of those that a resumed scan had already read). `progress(stage, done,
    total, tokens)` is told of sequences and tokens.

    `workers` processes, or the workers of a Ray cluster (`engine="ray"`, at `address`), share the shards of the corpus;
    finished shards gather in `store`, where a scan of the same plan finds them again. `shard="3/64"` does the third of
    64 parts of them and gives the survey of that part, which is empty where there are fewer shards than parts;
    `attnscope.merge(store)` makes the whole.
    """
    tell = progress or silent
    words = _names_of(measures)
    choose(words)
    refuse_unusable_seed(seed)
    refuse_unknown_bos(bos)
    loading = Loading(dtype, device, random_init, seed, allow_pickle, trust_remote_code)
    loading = replace(loading, device_map=device_map, stream_weights=stream_weights)
    sampling = Sampling(samples, max_tokens, batch_size, seed, field, bos)
    request = Request(model, corpus, tokenizer, tuple(words), loading, sampling, accumulate)
    path = None if checkpoint is None else named_path(checkpoint, "checkpoint")
    hands = Hands(workers, engine, address, gpus_per_worker)
    if workers is not None or engine != "local":
        from attnscope.commands.scan.workers import spread

        if shard is not None:
            raise RefusalError("One part of a job array is done by one process: give --shard or --workers, not both.")
        if each is not None:
            raise RefusalError("Workers do not hand out the numbers of every sequence: leave workers= or each= out.")
        return spread(request, hands, store, path, resume=resume, keep_text=keep_text, tell=tell)
    return _alone(request, store, shard, path, resume=resume, keep_text=keep_text, each=each, tell=tell)


def _alone(
    request: Request,
    store: str | Path | None,
    shard: str | None,
    checkpoint: Path | None,
    *,
    resume: bool,
    keep_text: bool,
    each: Each | None,
    tell: AdvanceReading,
) -> Survey:
    """In this process, from the first shard to the last; with a store or a checkpoint, each is kept when it is done."""
    mine = None if shard is None else part(shard)
    if mine is not None and store is None:
        raise RefusalError("The parts of a job array meet in a store: name its folder with --store.")
    keeper: Checkpoint | None = None
    before: Survey | None = None
    kept: Store | None = None

    def planned(plan: Plan) -> None:  # what does not fit is refused before any work is done
        nonlocal keeper, before, kept
        keeper = Checkpoint(checkpoint if store is None else None, plan)
        before = keeper.restore() if resume else None
        if before is None and not (resume and keeper.shards is not None and keeper.shards.exists()):
            keeper.clear()
        where = keeper.shards if store is None else store
        # Streamed weights are read once for as many sequences as there is room for, not once a shard.
        apart = plan.shards > 1 and not request.loading.stream_weights
        if where is not None and (store is not None or apart):
            kept = Store.open(where, plan.to_json(), plan.digest, plan.shards)

    with opened(request, tell, planned) as place:
        assert keeper is not None
        if kept is None:
            survey = _in_one(place, keeper, before, each, tell)
        else:
            numbers = range(place.plan.shards) if mine is None else mine.shards(place.plan.shards)
            one_by_one(place, kept, numbers, keeper, before, each, tell)
            files = [(kept.place, shard_name(kept.digest, number)) for number in numbers]
            if files:
                survey = folded(files, partial=mine is not None)
            else:  # more parts than shards, which is no failure: torchrun would end all for it
                cards = {measure.card.name: measure.card for measure in place.plan.chosen}
                survey = Survey.empty(counted(place.origin, 0, 0, {}), cards)
        with uninterrupted():
            if keep_text and mine is None:
                survey = with_excerpts(survey, place.cut, place.loaded.tokenizer)
            if kept is None:
                keeper.save(survey)  # until the caller has put the survey where it belongs
        return survey


def _in_one(
    place: Workplace, keeper: Checkpoint, before: Survey | None, each: Each | None, tell: AdvanceReading
) -> Survey:
    """All shards as one, where nothing is kept of each for itself."""
    shard = Shard(place.plan, place.subject, place.origin, before, each)
    every = (batch for number in range(place.plan.shards) for batch in place.cut.shard(number))
    observe(
        shard,
        every,
        keeper,
        0,
        lambda: tell("scanning", shard.sequences, place.plan.samples, shard.tokens),
        place.by_block(tell),
    )
    with uninterrupted():
        return shard.finished()


@contextmanager
def opened(
    request: Request, tell: AdvanceReading = silent, planned: Callable[[Plan], None] = lambda _: None
) -> Iterator[Workplace]:
    """Load, cut, plan, and find out where things are in the model; `planned` hears of the plan before the last."""
    tell("loading", 0, 0, 0)
    chosen = choose(request.measures)
    loaded = loaded_model(request.model, request.tokenizer, request.loading)
    with looking_at(loaded.model), keeping_its_modules(loaded.model):
        text = text_or_stream(request.corpus, request.sampling)
        cut = cut_for(loaded, text, request.sampling)
        prepared = cut.head
        chosen = _with_a_place(chosen, request.measures, loaded, prepared)
        chosen = _with_what_is_looked_for(chosen, loaded, text)
        plan = Plan.of(loaded, cut, chosen, request.sampling, request.accumulate)
        planned(plan)
        tell("probing", 0, plan.samples, 0)
        with refusing_what_does_not_run(loaded), without_gradients(), quiet():
            first = prepared.batches[0].to(precision_and_place(loaded.model)[1])
            subject = Subject.of(loaded.model, first.inputs, forward_options(loaded))
            origin = provenance(loaded, prepared, subject.anatomy, verified(subject, prepared), plan)
            if request.loading.stream_weights:
                refuse_without_chain(subject, prepared.batches[0])
        origin["corpus"] |= files_of(text)
        yield Workplace(loaded, cut, plan, subject, origin, request.loading.stream_weights)


def _with_what_is_looked_for(chosen: tuple[Measure, ...], loaded: Loaded, text: object) -> tuple[Measure, ...]:
    """Also what random weights and repeated tokens are looked at for."""
    wanted = {measure.card.name for measure in chosen}
    if isinstance(text, Corpus) and text.drawn:
        wanted.add("induction")
    if loaded.provenance.get("weights") == "random" and "entropy" in wanted:
        wanted.add("logit_phase")
    return choose(sorted(wanted))


def _with_a_place(
    chosen: tuple[Measure, ...], words: Iterable[str], loaded: Loaded, prepared: Batches
) -> tuple[Measure, ...]:
    """Without measures of pictures among words and of gates where there are none, unless asked for by name."""
    absent = set() if holds_placeholders(loaded.model, (batch.inputs for batch in prepared)) else {"media"}
    absent |= set() if gated(loaded.model) else {"gate"}
    return tuple(m for m in chosen if absent.isdisjoint(m.reads) or m.card.name in words)


def _names_of(measures: str | Iterable[str]) -> list[str]:
    """Measure words from a list or a comma-separated string."""
    words = measures.split(",") if isinstance(measures, str) else list(measures)
    return [word.strip() for word in words if word.strip()]
