"""The parts of a scan: a plan is plain data, a subject needs no loader, and shards add up to the whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnscope.commands.scan.plan import ScanPlan, Subject
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.shard import Shard
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.core.registry import choose
from attnscope.data.batches import Batch, Batches
from attnscope.data.shards import InMemory
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import batches_for
from attnscope.hf.loading.options import Sampling
from tests.specimens import TEXT, byte_tokenizer, tiny_llama

SAMPLING = Sampling(samples=6, max_tokens=24, batch_size=2)


def scan_shard(
    plan: ScanPlan,
    subject: Subject,
    batches: Iterable[Batch],
    origin: dict[str, Any] | None = None,
    after_each: Callable[[Shard], None] = lambda _: None,
) -> Survey:
    shard = Shard(plan, subject, origin)
    for batch in batches:
        shard.observe(batch)
        after_each(shard)
    return shard.finished()


def _planned() -> tuple[ScanPlan, Subject, Batches]:
    loaded = in_memory(tiny_llama(), byte_tokenizer())
    prepared = batches_for(loaded, [TEXT], SAMPLING)
    # There are no pictures in this text and no gates in this model.
    measured = tuple(m for m in choose(["default"]) if not {"media", "gate"} & set(m.reads))
    plan = ScanPlan.of(loaded, InMemory(prepared), measured, SAMPLING, torch.float32)
    with torch.inference_mode():
        subject = Subject.of(loaded.model, prepared.batches[0].inputs, {"use_cache": False})
    return plan, subject, prepared


def test_shards_make_the_survey_of_the_whole_bit_for_bit() -> None:
    plan, subject, prepared = _planned()
    whole = scan(tiny_llama(), [TEXT], tokenizer=byte_tokenizer(), samples=6, max_tokens=24, batch_size=2)
    first, *rest = prepared.batches
    model = {"name": "tiny", "hash": plan.model, "stacks": []}
    origin: dict[str, Any] = {"model": model, "corpus": {"name": "text", "hash": plan.corpus}, "dtype": plan.dtype}
    together = scan_shard(plan, subject, rest, origin=origin) | scan_shard(plan, subject, [first], origin=origin)
    assert together.cells == whole.cells
    assert together.cards == whole.cards
    assert together.provenance["corpus"]["sequences"] == 6


def test_a_shard_continues_from_the_survey_of_an_interrupted_one() -> None:
    plan, subject, prepared = _planned()
    seen: list[int] = []
    whole = scan_shard(plan, subject, prepared, after_each=lambda shard: seen.append(shard.sequences))
    assert seen == [2, 4, 6]
    begun = Shard(plan, subject)
    begun.observe(prepared.batches[0])
    resumed = Shard(plan, subject, before=begun.survey())
    for batch in prepared.batches[1:]:
        resumed.observe(batch)
    assert resumed.finished().cells == whole.cells
    assert (resumed.sequences, resumed.tokens) == (6, 6 * 24)


def test_a_subject_needs_nothing_but_a_module_and_a_batch() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = tiny_llama()

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.inside(tokens, use_cache=False).logits
            return answer

    model = Wrapped().eval()
    tokens = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(0))
    plan, _, _ = _planned()
    with torch.inference_mode():
        subject = Subject.of(model, {"tokens": tokens})
    survey = scan_shard(plan, subject, Batches.of([{"tokens": tokens}]))
    assert survey.values("entropy").shape == (3, 4)


def test_a_plan_is_plain_data() -> None:
    plan, _, _ = _planned()
    assert ScanPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    other = ScanPlan.from_json(plan.to_json() | {"seed": 5, "max_tokens": None})
    assert plan.differences(other) == ("max_tokens", "seed")
    assert [measure.card.name for measure in plan.chosen] == list(plan.measures)
    assert plan.accumulation == torch.float32


@pytest.mark.parametrize("plan", [None, [], 3, "text", {}, {"seed": "x"}])
def test_a_plan_of_another_type_is_refused(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(FieldError):
        ScanPlan.from_json(plan)
    path = tmp_path / "survey.partial.json"
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "samples": 2, "max_tokens": 12}
    done = scan(tiny_llama(), [TEXT], **options)
    Survey({**done.provenance, "resume": plan}, done.cards, done.cells).save(path)
    with pytest.raises(RefusalError, match="not an interrupted scan of this version"):
        scan(tiny_llama(), [TEXT], **options, checkpoint=path, resume=True)
