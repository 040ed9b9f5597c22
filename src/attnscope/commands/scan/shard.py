"""scan_shard(plan, subject, batches) -> Survey: one part of a corpus, observed.

Surveys merge exactly, so the shards of a corpus make the survey of the whole, whoever observes them and in whatever
order: one process, several, or a cluster. What is done so far can be had at any time (`Shard.survey`), and holds whole
batches only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnscope.commands.scan.by_block import AfterBlock, observe_by_block
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.observer import Observer
from attnscope.commands.scan.plan import Plan, Subject, missing
from attnscope.commands.scan.survey.ledger import Each, Ledger, Missing
from attnscope.commands.scan.survey.provenance import Excerpts, Sequences, counted, samples_behind
from attnscope.commands.scan.survey.shards import remove_store
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.decoding import FieldError
from attnscope.core.errors import RefusalError
from attnscope.core.progress import uninterrupted
from attnscope.data.batches import Batch
from attnscope.data.shards import Cut
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.weights import weights_in_turn
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.outputs import word
from attnscope.hf.loading.quiet import quiet

# A checkpoint: the survey of the batches of one shard done so far, with what it takes to go on.
#
# Because surveys merge exactly and sequences are always drawn in the same order, a scan that went on from a checkpoint
# gives the same survey, bit for bit, as one that was never interrupted.

_EVERY_SECONDS = 30.0


@dataclass
class Checkpoint:
    """Where a partial survey is kept; `path=None` keeps nothing."""

    path: Path | None
    plan: Plan
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def shards(self) -> Path | None:
        """Where the shards gather that are finished, beside the one that is not."""
        return None if self.path is None else shards_beside(self.path)

    def clear(self) -> None:
        """A new scan begins: what an earlier one left behind must not be taken for its work."""
        if self.path is not None:
            self.refuse_folder(self.path)
            self.path.unlink(missing_ok=True)
            remove_store(shards_beside(self.path))

    def restore(self) -> Survey | None:
        """What there is to go on with; None where there is nothing."""
        if self.path is None or not self.path.exists():
            return None
        self.refuse_folder(self.path)
        partial = Survey.load(self.path)
        try:
            plan = Plan.from_json(partial.provenance.get("resume"))
            whole = {"sequences", "tokens"} <= partial.provenance["corpus"].keys()
            stacks = partial.provenance["model"]["stacks"]
        except (FieldError, KeyError) as error:
            raise RefusalError(
                f"'{self.path}' is not an interrupted scan of this version ({error}): remove it, or scan without "
                "`resume=True`."
            ) from error
        if not whole or any("tokens" not in stack for stack in stacks):
            raise RefusalError(f"'{self.path}' does not say what was read: remove it, or scan without `resume=`.")
        changed = self.plan.differences(plan)
        if changed:
            # The fingerprint of the sequences follows from other settings: it is named only where nothing else is.
            follows = ("tokens", "shards", "shard_tokens")
            changed = tuple(name for name in changed if name not in follows) or ("choice of sequences",)
            raise RefusalError(
                f"The interrupted scan in '{self.path}' had another {', '.join(changed).replace('_', ' ')}: "
                "give the same options again, or scan without `resume=`."
            )
        return partial

    @staticmethod
    def refuse_folder(path: Path) -> None:
        """What is done is kept in a file: a folder of its name is somebody's."""
        if path.is_dir():
            raise RefusalError(f"'{path}' is a folder, and what is done is kept in a file there: remove or rename it.")

    @property
    def due(self) -> bool:
        """Whether half a minute has passed: a killed process loses no more than that."""
        return self.path is not None and time.monotonic() - self._saved_at > _EVERY_SECONDS

    def save(self, survey: Survey, shard: int = 0) -> None:
        """Write the survey of what is done so far of a shard."""
        if self.path is None:
            return
        kept = {**survey.provenance, "resume": self.plan.to_json(), "shard": shard}
        with uninterrupted():
            replace(survey, provenance=kept).save(self.path)
        self._saved_at = time.monotonic()

    def finished(self) -> None:
        """The shard that was kept here is in the store now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def shards_beside(path: Path) -> Path:
    """`survey.partial.json` has its shards in `survey.partial.shards`."""
    return path.with_name(f"{path.name.removesuffix('.json')}.shards")


# The texts behind a survey's findings: tokens of the few sequences in which the largest values were seen, as words and
# as the model was given them.
#
#     survey = with_excerpts(survey, cut, tokenizer)
#
# Findings of the usual thresholds decide which; under others, a finding may point at a sequence whose text was not
# kept.


def wanted_samples(survey: Survey) -> frozenset[int]:
    """Numbers of the sequences that findings point at. Tokens are counted along the input of the first stack: those of
    a decoder behind an encoder are others."""
    first = survey.stacks[0] if survey.stacks else ""
    return frozenset(samples_behind(finding for finding in diagnose(survey) if finding.stack == first))


def texts_of(wanted: frozenset[int], batches: Iterable[Batch], tokenizer: Tokenizer) -> tuple[Excerpts, Sequences]:
    """The words of these sequences, and what the model was given of them."""
    kept: Excerpts = {}
    given: Sequences = {}
    for batch in batches:
        for row, sample in enumerate(batch.samples):
            if sample in wanted and "input_ids" in batch.inputs:
                given[sample] = _given(batch, row)
                kept[sample] = tuple(word(tokenizer, token) for token in given[sample]["input_ids"])
    return dict(sorted(kept.items())), dict(sorted(given.items()))


def with_excerpts(survey: Survey, cut: Cut, tokenizer: Tokenizer | None) -> Survey:
    """The survey with the texts; unchanged where the corpus is not one of texts."""
    if tokenizer is None:
        return survey
    wanted = wanted_samples(survey)
    kept, given = texts_of(wanted, cut.holding(wanted), tokenizer)
    return replace(survey, excerpts=kept, sequences=given) if kept else survey


def _given(batch: Batch, row: int) -> dict[str, tuple[int, ...]]:
    """The tokens of one sequence without padding, those that a decoder read too: `view` gives them to a model again."""
    masks = {"input_ids": batch.mask, "decoder_input_ids": batch.decoder_mask}
    rows = {name: (batch.inputs[name][row], mask) for name, mask in masks.items() if name in batch.inputs}
    return {name: tuple((ids if mask is None else ids[mask[row]]).tolist()) for name, (ids, mask) in rows.items()}


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
