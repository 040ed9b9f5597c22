"""Make the trial of a scan: the loss of a few windows, and what changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnscope.commands.scan.survey.trial import Exposure, HeadTrial, Part, Rescaled, Trial
from attnscope.commands.scan.trial.exposure import exposures, first_floats, order_effect
from attnscope.commands.scan.trial.parts import (
    Place,
    Sizes,
    Slopes,
    head_sites,
    one_head_scaled,
    one_scaled,
    places_of,
    shared_blocks,
    silent_halves,
    sized,
    slopes,
)
from attnscope.commands.scan.trial.weights import odd_weights
from attnscope.commands.scan.trial.windows import (
    TOKENS,
    WHOLE_TOKENS,
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
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch, Batches
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.intercepting.restoring import evaluating, keeping_its_modules, without_gradients
from attnscope.hf.loading.load import ERRORS_OF_MODELS, Loaded
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.loading.quiet import quiet

FEW = 8  # windows for slopes, and as many others for rescaling
LOUD, WEAK, SILENT, HEADS = 2, 1, 2, 1  # most parts with a positive slope, a negative one, a small write; and heads
LESS, MORE = (0.0, 0.5, 0.8), (1.25, 2.0)  # factors that are tried
PROMISING = 0.01  # nats; a factor that lowers the loss by this on the first windows is tried on all others
SMALL = 1e-2  # a part that writes less than this share of the stream may be dead

Result = TypeVar("Result")


def trial_of(loaded: Loaded, found: Anatomy, prepared: Batches) -> Trial:
    """Return the trial of a model. What fails is left out, with a note."""
    with evaluating(loaded.model), without_gradients(), quiet(), keeping_its_modules(loaded.model):
        causal = bool(found.stacks) and should_be_causal(loaded, found)
        # A causal model can read the beginning of a text. A masked model was trained on whole sequences.
        windows = windows_of(prepared, tokens=TOKENS if causal else WHOLE_TOKENS)
        return _Attempt(loaded, found, windows, causal).trial()


def should_be_causal(loaded: Loaded, found: Anatomy) -> bool:
    """Return whether the last stack must not see later tokens: by its configuration, or by the masks that were seen."""
    config = getattr(loaded.model, "config", None)
    both_ways = any(getattr(config, name, False) is True for name in ("use_bidirectional_attention", "bidirectional"))
    if both_ways or getattr(config, "is_causal", None) is False:
        return False
    own = [site.causal for site in found.sites if site.stack == found.stacks[-1].name and site.site == "self"]
    return loaded.kind == "causal" or (bool(own) and all(own))


@dataclass(frozen=True)
class _Reply:
    """Questions, and the outputs of the model as it is."""

    asked: Sequence[Question]
    outputs: Sequence[Tensor]


class _Attempt:
    def __init__(self, loaded: Loaded, found: Anatomy, windows: tuple[Batch, ...], causal: bool) -> None:
        self.loaded, self.found, self.windows, self.causal = loaded, found, windows, causal
        self.few = first_windows(windows, FEW)
        self.notes: list[str] = []
        self.losses: tuple[float, ...] = ()
        self.options: dict[str, Any] = {"use_cache": False} if "use_cache" in loaded.accepts else {}

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
        self.losses = losses
        exposed = self._try("later tokens", self._exposures) if self.causal else ()
        order = self._try("positions", self._order) or (math.nan, math.nan)
        start = FEW if len(losses) >= 2 * FEW else 0
        parts, heads = self._try("parts", lambda: self._parts(asked, start)) or ((), ())
        vocabulary = self.loaded.vocab_size or 1 + max((int(q.targets.max()) for q in asked), default=0)
        return Trial(
            fingerprint(self.windows),
            task,
            counts=tuple(n for question in asked for n in question.counts),
            loss=losses,
            bytes=bytes_of(asked, self.loaded.tokenizer) if task == "next token" else (),
            unigram=unigram_loss(asked, self.windows, vocabulary) if task else math.nan,
            exposures=exposed or (),
            order=order[0],
            order_rounding=order[1],
            parts=parts,
            heads=heads,
            tried_from=start,
            weights=weights,
            notes=tuple(self.notes),
        )

    def _try(self, what: str, attempt: Callable[[], Result]) -> Result | None:
        """Return the result, or None with a note if the model's code fails or refuses its input."""
        try:
            return attempt()
        except (*ERRORS_OF_MODELS, RefusalError) as error:  # an exchanged attention refuses other positions
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:120].rstrip(".")
            named = reason if isinstance(error, RefusalError) else f"{type(error).__name__}: {reason}"
            short = "memory ran out" if out_of_memory(error) else named
            self.notes.append(f"Not tried: {what} ({short}).")
            return None

    def _exposures(self) -> tuple[Exposure, ...]:
        return exposures(self.model, self.found, self.few, self.options)

    def _order(self) -> tuple[float, float]:
        return order_effect(self.model, self.found, self.few, self.options, self.loaded.accepts, self.causal)

    def _parts(self, asked: Sequence[Question], start: int) -> tuple[tuple[Part, ...], tuple[HeadTrial, ...]]:
        """Measure what parts write and the slopes of the loss, then rescale the parts with the largest slopes.

        Slopes come from the first windows, and rescaling is tried on those from `start` on: a slope that is large by
        chance does not help on other windows.
        """
        places, sites = places_of(self.found), head_sites(self.model, self.found)
        nothing = torch.empty(0, 0, dtype=torch.long)
        first = _questions_from(asked, 0) or tuple(Question(batch.inputs, nothing) for batch in self.few)
        later = _questions_from(asked, start) or first
        sizes = [Sizes() for _ in places]
        with sized(self.model, places, sizes):
            for question in first:
                self._run(question.inputs)
        found = None
        if asked and not shared_blocks(self.found):
            found = self._try("slopes", lambda: slopes(self.model, places, sites, first, self.options))
        reply = _Reply(later, [first_floats(self._run(question.inputs)) for question in later])
        rescaled = {
            number: self._rescaled(reply, factors, partial(one_scaled, self.model, places[number]))
            for number, factors in _candidates([each.median for each in sizes], found).items()
        }
        if start:
            self._confirm(rescaled, places, asked, start)
        parts = [
            Part(
                place.stack,
                place.layer,
                place.half,
                sizes[n].median,
                sizes[n].most_varying,
                math.nan if found is None else found.places[n],
                found.heads.get((place.stack, place.layer), ()) if found and place.half == "attention" else (),
                rescaled.get(n, ()),
            )
            for n, place in enumerate(places)
            if math.isfinite(sizes[n].median) and math.isfinite(sizes[n].most_varying)
        ]
        parts += [Part(*place, write=0.0, varies=0.0) for place in silent_halves(self.found)]
        ordered = tuple(sorted(parts, key=lambda part: (part.stack, part.layer, part.half)))
        return ordered, tuple(self._heads(sites, found, reply))

    def _confirm(
        self,
        rescaled: dict[int, tuple[Rescaled, ...]],
        places: Sequence[Place],
        asked: Sequence[Question],
        start: int,
    ) -> None:
        """Run the most promising factor of each part on all other windows too, if it lowers the loss at all."""
        rest = _questions_from(asked, start + FEW, len(self.losses))
        usual = self.losses[start : start + FEW]
        for number, tried in rescaled.items():
            promising = min(tried, key=lambda each: _mean_difference(each.loss, usual), default=None)
            if promising is None or not rest or _mean_difference(promising.loss, usual) > -PROMISING:
                continue
            reply = _Reply(rest, [first_floats(self._run(question.inputs)) for question in rest])
            more = self._rescaled(reply, (promising.factor,), partial(one_scaled, self.model, places[number]))
            longer = replace(promising, loss=promising.loss + more[0].loss) if more else promising
            rescaled[number] = tuple(longer if each is promising else each for each in tried)

    def _heads(self, sites: Sequence[Site], found: Slopes | None, reply: _Reply) -> Iterator[HeadTrial]:
        """Remove the heads with the largest slopes."""
        if found is None:
            return
        every = [(s, site, h) for site in sites for h, s in enumerate(found.heads[site.stack, site.layer]) if s > 0]
        for slope, site, head in sorted(every, key=lambda each: -each[0])[:HEADS]:
            tried = self._rescaled(reply, (0.0,), partial(one_head_scaled, self.model, site, head))
            yield HeadTrial(site.stack, site.layer, head, slope, tried)

    def _rescaled(
        self, reply: _Reply, factors: Sequence[float], scaled: Callable[[float], AbstractContextManager[None]]
    ) -> tuple[Rescaled, ...]:
        """Run the later windows with each factor; leave out a factor that gives numbers that are not finite."""
        found = []
        for factor in factors:
            losses: list[float] = []
            moved = size = 0.0
            with scaled(factor):
                for question, usual in zip(reply.asked, reply.outputs, strict=True):
                    output = self._run(question.inputs)
                    moved += float((first_floats(output) - usual).float().square().sum())
                    size += float(usual.float().square().sum())
                    logits = predicted(output, question.targets) if len(question.targets) else None
                    if logits is not None:
                        losses += window_losses(logits, question.targets.to(logits.device)).tolist()
            if all(map(math.isfinite, (*losses, moved))) and size:
                found.append(Rescaled(factor, tuple(losses), math.sqrt(moved / size)))
        return tuple(found)

    def _run(self, inputs: Mapping[str, Tensor]) -> Any:
        device = next((p.device for p in self.model.parameters() if not p.is_meta), torch.device("cpu"))
        return self.model(**{name: tensor.to(device) for name, tensor in inputs.items()}, **self.options)


def _mean_difference(losses: Sequence[float], usual: Sequence[float]) -> float:
    """Return the mean difference of losses; 0 without losses."""
    return math.fsum(a - b for a, b in zip(losses, usual, strict=False)) / max(1, min(len(losses), len(usual)))


def _questions_from(asked: Sequence[Question], start: int, most: int = FEW) -> tuple[Question, ...]:
    """Return the questions of at most `most` windows from number `start` on."""
    found: list[Question] = []
    number = 0
    for question in asked:
        rows = range(max(0, start - number), min(len(question.targets), start + most - number))
        if rows:
            part = slice(rows.start, rows.stop)
            inputs = {n: t[part] if len(t) == len(question.targets) else t for n, t in question.inputs.items()}
            found.append(Question(inputs, question.targets[part]))
        number += len(question.targets)
    return tuple(found)


def _candidates(medians: Sequence[float], found: Slopes | None) -> dict[int, tuple[float, ...]]:
    """Return the places to rescale, each with its factors: the steepest ones, and those that write next to nothing."""
    numbers = range(len(medians))
    chosen: dict[int, tuple[float, ...]] = {}
    if found is not None:
        order = sorted(numbers, key=lambda n: -found.places[n])
        chosen |= {n: LESS for n in order[:LOUD] if found.places[n] > 0}
        chosen |= {n: MORE for n in order[-WEAK:] if found.places[n] < 0}
    small = sorted((n for n in numbers if medians[n] < SMALL), key=lambda n: medians[n])[:SILENT]
    return chosen | {n: (0.0,) for n in small if n not in chosen}
