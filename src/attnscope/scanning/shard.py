"""scan_shard(plan, subject, batches) -> Survey: one part of a corpus, observed.

Surveys merge exactly, so the shards of a corpus make the survey of the whole, whoever observes them and in whatever
order: one process, several, or a cluster. What is done so far can be had at any time (`Shard.survey`), and holds whole
batches only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attnscope.core.interrupts import uninterrupted
from attnscope.hf.anatomy.anatomy import weights_in_turn
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating
from attnscope.records.survey.ledger import Each, Ledger
from attnscope.records.survey.missing import Missing
from attnscope.records.survey.provenance import counted
from attnscope.records.survey.survey import Survey
from attnscope.scanning.by_block import AfterBlock, observe_by_block
from attnscope.scanning.observer import Observer
from attnscope.scanning.plan import Plan
from attnscope.scanning.provenance import missing
from attnscope.scanning.subject import Subject
from attnscope.trace.batches import Batch


class Shard:
    """Observations of one plan on one subject; begins with what `before` holds. Mutable while a scan runs. Of several
    shards one reads the `weights`."""

    def __init__(
        self,
        plan: Plan,
        subject: Subject,
        origin: dict[str, Any] | None = None,
        before: Survey | None = None,
        each: Each | None = None,
        weights: bool = True,
    ) -> None:
        self.subject = subject
        self._origin = origin or {"model": {"stacks": []}, "corpus": {}}
        cards = {measure.card.name: measure.card for measure in plan.chosen}
        self._ledger = Ledger(cards, each) if before is None else Ledger.from_survey(before)
        self._observer = Observer(plan.chosen, self._ledger, plan.accumulation)
        self.sequences, self.tokens = 0, 0
        self.whole = True  # whether the ledger holds whole batches only
        self._told: dict[str, str] = {} if before is None else before.provenance.get("not_measured", {})
        if weights:
            self._read_weights(anew=before is None)
        if before is not None:
            corpus = before.provenance["corpus"]
            self.sequences, self.tokens = corpus["sequences"], corpus["tokens"]
            self._observer.tokens.update({s["name"]: s["tokens"] for s in before.provenance["model"]["stacks"]})

    def observe_by_block(self, batches: Sequence[Batch], after_block: AfterBlock) -> None:
        """Batches that go through the model together, block by block: they count when they left the last one."""
        self.whole = False
        with evaluating(self.subject.model), without_gradients(), quiet():
            observe_by_block(self.subject, self._observer, batches, after_block)
        with uninterrupted():
            self.sequences += sum(len(batch) for batch in batches)
            self.tokens += sum(batch.tokens for batch in batches)
            self.whole = True

    def observe(self, batch: Batch) -> None:
        """A batch is entered whole or not at all: Ctrl-C waits while it is."""
        with evaluating(self.subject.model), without_gradients(), quiet():
            self.subject.observe(self._observer, batch)
        with uninterrupted():
            self.whole = False
            self._observer.commit()
            self.sequences, self.tokens = self.sequences + len(batch), self.tokens + batch.tokens
            self.whole = True

    def survey(self) -> Survey:
        """What is done so far."""
        with uninterrupted():
            origin = counted(self._origin, self.sequences, self.tokens, self._observer.tokens)
            return self._ledger.survey(origin)

    def finished(self) -> Survey:
        """All of it, with a word on measures that this model does not allow."""
        return self.missing().said_of(self.survey())

    def missing(self) -> Missing:
        return missing(self._observer, self._told)

    def _read_weights(self, *, anew: bool) -> None:
        """Numbers of weights are entered once; what they lack is learned each time, also where a scan goes on."""
        for frame in weights_in_turn(self.subject.model, self.subject.anatomy):
            self._observer.receive(frame)
        if anew:
            self._observer.finish(None)
            self._observer.commit()
        else:
            self._observer.discard()


def scan_shard(
    plan: Plan,
    subject: Subject,
    batches: Iterable[Batch],
    *,
    origin: dict[str, Any] | None = None,
    after_each: Callable[[Shard], None] | None = None,
) -> Survey:
    """The survey of these batches. `origin` is its provenance; `after_each` is called when a batch is entered."""
    shard = Shard(plan, subject, origin)
    for batch in batches:
        shard.observe(batch)
        if after_each is not None:
            after_each(shard)
    return shard.finished()
