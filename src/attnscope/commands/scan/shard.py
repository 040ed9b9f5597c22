"""Observe one shard of a corpus, keep a checkpoint of it, and add the texts behind findings.

Surveys merge exactly, so the shards of a corpus make the survey of the whole, in any order and by any process.
Sequences are always drawn in the same order, so a resumed scan gives the same survey, bit for bit, as one that was
never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnscope.commands.scan.by_block import AfterBlock, observe_by_block
from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.observer import Observer
from attnscope.commands.scan.plan import ScanPlan, Subject
from attnscope.commands.scan.survey.builder import Each, NotMeasured, SurveyBuilder
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

_EVERY_SECONDS = 30.0


@dataclass
class Checkpoint:
    """A file with the survey of an unfinished shard; with `path=None` nothing is saved."""

    path: Path | None
    plan: ScanPlan
    _saved_at: float = field(default_factory=time.monotonic)

    @property
    def shards(self) -> Path | None:
        """The store of finished shards, beside the file."""
        return None if self.path is None else shards_beside(self.path)

    def clear(self) -> None:
        """Remove the files of an earlier scan."""
        if self.path is not None:
            self._refuse_folder(self.path)
            self.path.unlink(missing_ok=True)
            remove_store(shards_beside(self.path))

    def restore(self) -> Survey | None:
        """Return the survey of the interrupted scan, or None. Refuse a scan of another plan."""
        if self.path is None or not self.path.exists():
            return None
        self._refuse_folder(self.path)
        partial = Survey.load(self.path)
        try:
            plan = ScanPlan.from_json(partial.provenance.get("resume"))
            whole = {"sequences", "tokens"} <= partial.provenance["corpus"].keys()
            stacks = partial.provenance["model"]["stacks"]
        except (FieldError, KeyError) as error:
            raise RefusalError(
                f"'{self.path}' is not an interrupted scan of this version ({error}): remove it, or scan without "
                "`resume=True`."
            ) from error
        if not whole or any("tokens" not in stack for stack in stacks):
            raise RefusalError(
                f"'{self.path}' does not say which sequences were read: remove it, or scan without `resume=`."
            )
        changed = self.plan.differences(plan)
        if changed:
            # These depend on other settings: name them only if nothing else differs.
            follows = ("tokens", "shards", "shard_tokens")
            changed = tuple(name for name in changed if name not in follows) or ("choice of sequences",)
            raise RefusalError(
                f"The interrupted scan in '{self.path}' had another {', '.join(changed).replace('_', ' ')}: "
                "give the same options again, or scan without `resume=`."
            )
        return partial

    @staticmethod
    def _refuse_folder(path: Path) -> None:
        if path.is_dir():
            raise RefusalError(
                f"'{path}' is a folder, but the checkpoint needs a file of that name: remove or rename the folder."
            )

    @property
    def due(self) -> bool:
        """Return whether half a minute has passed since the last save. A killed process loses no more than that."""
        return self.path is not None and time.monotonic() - self._saved_at > _EVERY_SECONDS

    def save(self, survey: Survey, shard: int = 0) -> None:
        """Write the survey of an unfinished shard."""
        if self.path is None:
            return
        provenance = {**survey.provenance, "resume": self.plan.to_json(), "shard": shard}
        with uninterrupted():
            replace(survey, provenance=provenance).save(self.path)
        self._saved_at = time.monotonic()

    def finished(self) -> None:
        """Remove the file, because its shard is in the store."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def shards_beside(path: Path) -> Path:
    """Return `survey.partial.shards` for `survey.partial.json`."""
    return path.with_name(f"{path.name.removesuffix('.json')}.shards")


def wanted_samples(survey: Survey) -> frozenset[int]:
    """Return the sequences that findings (at the default thresholds) point at.

    Only the first stack counts: a decoder after an encoder reads other tokens.
    """
    first = survey.stacks[0] if survey.stacks else ""
    return frozenset(samples_behind(finding for finding in diagnose(survey) if finding.stack == first))


def texts_of(wanted: frozenset[int], batches: Iterable[Batch], tokenizer: Tokenizer) -> tuple[Excerpts, Sequences]:
    """Return the words of these sequences, and the token ids that the model read."""
    words: Excerpts = {}
    ids: Sequences = {}
    for batch in batches:
        for row, sample in enumerate(batch.samples):
            if sample in wanted and "input_ids" in batch.inputs:
                ids[sample] = _token_ids(batch, row)
                words[sample] = tuple(word(tokenizer, token) for token in ids[sample]["input_ids"])
    return dict(sorted(words.items())), dict(sorted(ids.items()))


def with_excerpts(survey: Survey, cut: Cut, tokenizer: Tokenizer | None) -> Survey:
    """Return the survey with the texts behind its findings; unchanged if the corpus has no texts."""
    if tokenizer is None:
        return survey
    wanted = wanted_samples(survey)
    words, ids = texts_of(wanted, cut.holding(wanted), tokenizer)
    return replace(survey, excerpts=words, sequences=ids) if words else survey


def _token_ids(batch: Batch, row: int) -> dict[str, tuple[int, ...]]:
    """Return one sequence without padding, as model arguments that `view` can run again."""
    masks = {"input_ids": batch.mask, "decoder_input_ids": batch.decoder_mask}
    rows = {name: (batch.inputs[name][row], mask) for name, mask in masks.items() if name in batch.inputs}
    return {name: tuple((ids if mask is None else ids[mask[row]]).tolist()) for name, (ids, mask) in rows.items()}


class Shard:
    """Collects the observations of one shard. Holds whole batches only, so `survey` can be called at any time.

    `before` is the survey of an interrupted run. Measures of weights are taken only with `weights`.
    """

    def __init__(
        self,
        plan: ScanPlan,
        subject: Subject,
        origin: dict[str, Any] | None = None,
        before: Survey | None = None,
        each: Each | None = None,
        *,
        weights: bool = True,
    ) -> None:
        self.subject = subject
        self._origin = origin or {"model": {"stacks": []}, "corpus": {}}
        cards = {measure.card.name: measure.card for measure in plan.chosen}
        self._builder = SurveyBuilder(cards, each) if before is None else SurveyBuilder.from_survey(before)
        self._observer = Observer(plan.chosen, self._builder, plan.accumulation)
        self.sequences, self.tokens = 0, 0
        self.whole = True  # False while a batch is added to the builder
        self._earlier_reasons: dict[str, str] = {} if before is None else before.provenance.get("not_measured", {})
        if weights:
            # A resumed scan has the numbers, but must find out again which measures are missing.
            for frame in weights_in_turn(subject.model, subject.anatomy):
                self._observer.receive(frame)
            if before is None:
                self._observer.finish(None)
                self._observer.commit()
            else:
                self._observer.discard()
        if before is not None:
            corpus = before.provenance["corpus"]
            self.sequences, self.tokens = corpus["sequences"], corpus["tokens"]
            self._observer.tokens.update({s["name"]: s["tokens"] for s in before.provenance["model"]["stacks"]})

    def observe_by_block(self, batches: Sequence[Batch], after_block: AfterBlock) -> None:
        """Run batches together, block by block. They are added after the last block."""
        self.whole = False
        with evaluating(self.subject.model), without_gradients(), quiet():
            observe_by_block(self.subject, self._observer, batches, after_block)
        with uninterrupted():
            self.sequences += sum(len(batch) for batch in batches)
            self.tokens += sum(batch.tokens for batch in batches)
            self.whole = True

    def observe(self, batch: Batch) -> None:
        """Run a batch and add it as a whole. Ctrl-C is deferred while it is added."""
        with evaluating(self.subject.model), without_gradients(), quiet():
            self.subject.observe(self._observer, batch)
        with uninterrupted():
            self.whole = False
            self._observer.commit()
            self.sequences, self.tokens = self.sequences + len(batch), self.tokens + batch.tokens
            self.whole = True

    def survey(self) -> Survey:
        """Return the survey so far."""
        with uninterrupted():
            return self._builder.survey(counted(self._origin, self.sequences, self.tokens, self._observer.tokens))

    def finished(self) -> Survey:
        """Return the survey, with the reasons for missing measures in its provenance."""
        return self.not_measured().added_to(self.survey())

    def not_measured(self) -> NotMeasured:
        return NotMeasured(
            {name: frozenset(fields) for name, fields in self._observer.lacking.items()},
            {
                name: {statistic: frozenset(blocks) for statistic, blocks in lost.items()}
                for name, lost in self._observer.without_meaning.items()
            },
            self._earlier_reasons,
        )
