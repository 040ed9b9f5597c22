"""Make the trial of a scan: the loss of a few windows, and what changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import HeadRemoval, Part, Trial
from attnscope.commands.scan.trial.exposure import exposures, first_floats, order_effect
from attnscope.commands.scan.trial.parts import (
    Sizes,
    Slopes,
    head_sites,
    places_of,
    sized,
    slopes,
    without,
    without_head,
)
from attnscope.commands.scan.trial.weights import odd_weights
from attnscope.commands.scan.trial.windows import (
    Question,
    bytes_of,
    fingerprint,
    first_windows,
    predicted,
    questions,
    run_losses,
    unigram_loss,
    window_losses,
    windows_of,
)
from attnscope.data.batches import Batch, Batches
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.intercepting.restoring import evaluating, keeping_its_modules, without_gradients
from attnscope.hf.loading.load import ERRORS_OF_MODELS, Loaded
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.quiet import quiet

FEW = 8  # windows for slopes and removals
LIKELY = 4  # parts with the largest slopes that are removed
SILENT = 4  # parts with the smallest writes that are removed
HEADS = 2  # heads with the largest slopes that are removed
SMALL = 1e-2  # a part that writes less than this share of the stream may be dead

Result = TypeVar("Result")


def trial_of(loaded: Loaded, found: Anatomy, prepared: Batches) -> Trial:
    """Return the trial of a model. What fails is left out, with a note."""
    with evaluating(loaded.model), without_gradients(), quiet(), keeping_its_modules(loaded.model):
        return _Attempt(loaded, found, windows_of(prepared)).trial()


def should_be_causal(loaded: Loaded, found: Anatomy) -> bool:
    """Return whether the last stack must not see later tokens: by its configuration, or by the masks that were seen."""
    config = getattr(loaded.model, "config", None)
    both_ways = any(getattr(config, name, False) is True for name in ("use_bidirectional_attention", "bidirectional"))
    if both_ways or getattr(config, "is_causal", None) is False:
        return False
    own = [site.causal for site in found.sites if site.stack == found.stacks[-1].name and site.site == "self"]
    return loaded.kind == "causal" or (bool(own) and all(own))


@dataclass
class _Attempt:
    loaded: Loaded
    found: Anatomy
    windows: tuple[Batch, ...]

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        accepts = self.loaded.accepts
        self.options: dict[str, Any] = {"use_cache": False} if "use_cache" in accepts else {}
        self.causal = bool(self.found.stacks) and should_be_causal(self.loaded, self.found)

    @property
    def model(self) -> nn.Module:
        return self.loaded.model

    def trial(self) -> Trial:
        """Return the trial."""
        weights = self._try("weights", lambda: odd_weights(self.model, self.found)) or ()
        if not self.found.stacks or not self.windows:
            return Trial(fingerprint(self.windows), None, weights=weights, notes=tuple(self.notes))
        task, asked = questions(self.loaded, self.windows, self.causal)
        losses = self._try("the loss", lambda: run_losses(self.model, asked, self.options)) if task else None
        if losses is None or not all(map(math.isfinite, losses)):
            task, asked, losses = None, (), ()
        few = first_windows(self.windows, FEW)
        exposed = self._try("later tokens", lambda: self._exposures(few)) if self.causal else ()
        order = self._try("positions", lambda: self._order(few))
        parts, heads = self._try("parts", lambda: self._parts(few, asked)) or ((), ())
        vocabulary = self.loaded.vocab_size or 1 + max((int(q.targets.max()) for q in asked), default=0)
        return Trial(
            fingerprint(self.windows),
            task,
            counts=tuple(n for question in asked for n in question.counts),
            loss=losses,
            bytes=bytes_of(asked, self.loaded.tokenizer) if task == "next token" else (),
            unigram=unigram_loss(asked, self.windows, vocabulary) if task else math.nan,
            exposures=exposed or (),
            order=math.nan if order is None else order[0],
            order_rounding=math.nan if order is None else order[1],
            parts=parts,
            heads=heads,
            weights=weights,
            notes=tuple(self.notes),
        )

    def _try(self, what: str, attempt: Callable[[], Result]) -> Result | None:
        """Return the result, or None with a note if the model's code fails."""
        try:
            return attempt()
        except ERRORS_OF_MODELS as error:
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:120]
            short = "memory ran out" if out_of_memory(error) else f"{type(error).__name__}: {reason}"
            self.notes.append(f"Not tried: {what} ({short}).")
            return None

    def _exposures(self, few: Sequence[Batch]) -> Any:
        return exposures(self.model, self.found, few, self.options)

    def _order(self, few: Sequence[Batch]) -> tuple[float, float]:
        return order_effect(self.model, self.found, few, self.options, self.loaded.accepts, self.causal)

    def _parts(
        self, few: Sequence[Batch], asked: Sequence[Question]
    ) -> tuple[tuple[Part, ...], tuple[HeadRemoval, ...]]:
        places, sites = places_of(self.found), head_sites(self.model, self.found)
        few_asked = _first_questions(asked, sum(map(len, few)))
        inputs = [question.inputs for question in few_asked] or [batch.inputs for batch in few]
        sizes = [Sizes() for _ in places]
        with sized(self.model, places, sizes):
            outputs = [first_floats(self._run(each)) for each in inputs]
        found = None
        if few_asked:
            found = self._try("slopes", lambda: slopes(self.model, places, sites, few_asked, self.options))
        removed: dict[int, tuple[tuple[float, ...], float]] = {}
        for number in _candidates([each.median for each in sizes], found):
            with without(self.model, places[number]):
                removed[number] = self._compared(inputs, few_asked, outputs)
        parts = tuple(
            Part(
                place.stack,
                place.layer,
                place.half,
                sizes[n].median,
                sizes[n].most_varying,
                math.nan if found is None else found.places[n],
                found.heads.get((place.stack, place.layer), ()) if found and place.half == "attention" else (),
                *removed.get(n, ((), math.nan)),
            )
            for n, place in enumerate(places)
            if math.isfinite(sizes[n].median) and math.isfinite(sizes[n].most_varying)
        )
        return parts, self._heads(sites, found, inputs, few_asked, outputs)

    def _heads(
        self,
        sites: Sequence[Site],
        found: Slopes | None,
        inputs: Sequence[Mapping[str, Tensor]],
        asked: Sequence[Question],
        outputs: Sequence[Tensor],
    ) -> tuple[HeadRemoval, ...]:
        """Remove the heads with the largest slopes."""
        if found is None:
            return ()
        ranked = sorted(
            ((slope, site, head) for site in sites for head, slope in enumerate(found.heads[site.stack, site.layer])),
            key=lambda each: -each[0],
        )
        removals = []
        for slope, site, head in ranked[:HEADS]:
            if slope > 0:
                with without_head(self.model, site, head):
                    loss, _ = self._compared(inputs, asked, outputs)
                removals.append(HeadRemoval(site.stack, site.layer, head, loss))
        return tuple(removals)

    def _compared(
        self, inputs: Sequence[Mapping[str, Tensor]], asked: Sequence[Question], outputs: Sequence[Tensor]
    ) -> tuple[tuple[float, ...], float]:
        """Run again. Return the loss of each window, and how far outputs moved, relative to their norm."""
        losses: list[float] = []
        moved = size = 0.0
        for number, each in enumerate(inputs):
            output = self._run(each)
            moved += float((first_floats(output) - outputs[number]).float().square().sum())
            size += float(outputs[number].float().square().sum())
            logits = predicted(output, asked[number].targets) if asked else None
            if logits is not None:
                losses += window_losses(logits, asked[number].targets.to(logits.device)).tolist()
        finite = all(map(math.isfinite, losses)) and math.isfinite(moved)
        return (tuple(losses) if finite else ()), (math.sqrt(moved / size) if finite and size else math.nan)

    def _run(self, inputs: Mapping[str, Tensor]) -> Any:
        device = next((p.device for p in self.model.parameters() if not p.is_meta), torch.device("cpu"))
        return self.model(**{name: tensor.to(device) for name, tensor in inputs.items()}, **self.options)


def _first_questions(asked: Sequence[Question], rows: int) -> tuple[Question, ...]:
    """Return the questions of the first rows."""
    found: list[Question] = []
    for question in asked:
        room = rows - sum(len(each.targets) for each in found)
        if room >= len(question.targets):
            found.append(question)
        elif room > 0:
            inputs = {n: t[:room] if len(t) == len(question.targets) else t for n, t in question.inputs.items()}
            found.append(Question(inputs, question.targets[:room]))
    return tuple(found)


def _candidates(medians: Sequence[float], found: Slopes | None) -> list[int]:
    """Return the places to remove: those with the largest positive slopes, and those that write next to nothing."""
    numbers = range(len(medians))
    small = sorted((n for n in numbers if medians[n] < SMALL), key=lambda n: medians[n])[:SILENT]
    if found is None:
        return small
    steep = sorted((n for n in numbers if found.places[n] > 0), key=lambda n: -found.places[n])[:LIKELY]
    return list(dict.fromkeys((*steep, *small)))
