"""A remedy that is trained: the control first, then the same training with the remedy in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.run import scan
from attnscope.commands.treat.arms import batch_of_step, fine_tuned, held_out_losses, looked_at, put_back
from attnscope.commands.treat.record import Training
from attnscope.commands.treat.train import Recipe
from attnscope.commands.treat.trial import Result, Trial
from attnscope.core.errors import RefusalError
from attnscope.core.words import blocks, count, numeral
from attnscope.data.batches import Batches
from attnscope.hf.installed import installed, largest_logits, save_treated
from attnscope.hf.loading.running import precision_and_place

ARMS = ("control", "treated")


@dataclass(frozen=True)
class Kept:
    """Where unfinished training is kept, and whether to go on with what is there."""

    folder: Path
    resume: bool

    def of(self, arm: str) -> Path:
        return self.folder / arm

    def clear(self) -> None:
        """What earlier training has left there, and nothing else that somebody may keep in that folder."""
        for arm in ARMS:
            for path in self.folder.glob(f"{arm}.*"):
                path.unlink()


def trained(trial: Trial, recipe: Recipe, everything: bool, kept: Kept | None) -> Result:
    """Both arms, from the same weights; `everything` trains all parameters and not only those that the remedy concerns.

    The control trains the parameters of the model that the treated one trains, no more and no fewer: the treated one
    has its own beside them.
    """
    losing, chosen = trial.losing, trial.chosen
    model = losing.loaded.model
    put = {"layers": chosen.layers or None, "seed": trial.sampling.seed, **chosen.settings}
    with installed(model, chosen.name, **put) as looked:
        near = {id(one) for one in looked.projections().values()}
        chosen = replace(chosen, layers=tuple(looked.layers))
        added = sum(one.numel() for one in looked.parameters().values())
    own = {name: one for name, one in model.named_parameters() if everything or id(one) in near}
    if kept is not None and not kept.resume:
        kept.clear()
    common: dict[str, Any] = {"seed": trial.sampling.seed, "progress": trial.progress}
    plan = _plan(trial, everything)
    with put_back(model, own):
        curve, seconds = fine_tuned(
            losing,
            trial.text.training,
            own,
            recipe,
            stage="training the control",
            kept=None if kept is None else kept.of("control"),
            plan=plan,
            **common,
        )
        control = looked_at(
            losing,
            trial.text.held_out,
            "the control",
            trial.progress,
            curve=curve,
            seconds=seconds,
            title=f" after {recipe.steps} steps",
        )
    with put_back(model, own), installed(model, chosen.name, **put) as treated:
        parameters: dict[str, nn.Parameter] = {**own, **treated.parameters()}
        losses = held_out_losses(losing, trial.text.held_out)
        curve, seconds = fine_tuned(
            losing,
            trial.text.training,
            parameters,
            recipe,
            stage=f"training with {chosen.name}",
            beside=treated.buffers(),
            kept=None if kept is None else kept.of("treated"),
            plan={**plan, "remedy": chosen.name, "settings": repr(chosen.settings), "layers": list(chosen.layers)},
            **common,
        )
        after = looked_at(
            losing,
            trial.text.held_out,
            "the treated model",
            trial.progress,
            curve=curve,
            seconds=seconds,
            title=f" with {chosen.name} after {recipe.steps} steps",
        )
        if trial.save is not None:
            trial.progress("saving the treated model", 0, 0)
            save_treated(model, trial.save, tokenizer=losing.loaded.tokenizer)
    training = Training(
        steps=recipe.steps,
        rate=recipe.rate,
        batch_size=trial.sampling.batch_size,
        max_tokens=trial.sampling.max_tokens or 0,
        seed=trial.sampling.seed,
        parameters="all" if everything else "added",
        trained=sum(one.numel() for one in own.values()),
        added=added,
        tokens=_tokens(trial, recipe.steps),
    )
    return Result(chosen, after, control, training, start=sum(losses) / len(losses))


def _plan(trial: Trial, everything: bool) -> dict[str, Any]:
    """What decides the numbers of both arms beside recipe and seed."""
    return {
        "model": trial.losing.loaded.sha256,
        "text": trial.text.training.fingerprint(),
        "sampling": asdict(trial.sampling),
        "everything": everything,
    }


def _tokens(trial: Trial, steps: int) -> int:
    return sum(batch_of_step(trial.text.training, trial.sampling.seed, step).tokens for step in range(steps))


# Remedies that do their work at once: nothing is trained, and what is treated stands beside what was before.

BATCHES = 8  # of training text, from which a remedy without training takes what it must know
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


def without_training(trial: Trial) -> Result:
    """What the remedy must know (largest logits, the best temperature) is taken from training text, never from the text
    it is measured on."""
    settings, layers, notes = {
        "qk_clip": _for_qk_clip,
        "temperature": _for_temperature,
    }.get(trial.chosen.name, _as_asked)(trial)
    model = trial.losing.loaded.model
    degrees = settings.pop("temperature", None)
    with installed(model, trial.chosen.name, layers=layers, **settings) as treated:
        told = {**trial.chosen.settings, **({} if degrees is None else {"temperature": degrees})}
        chosen = replace(trial.chosen, layers=tuple(treated.layers), settings=told)
        if degrees is not None:
            _set(treated.parameters().values(), float(degrees))
        looked = looked_at(
            trial.losing, trial.text.held_out, "the treated model", trial.progress, title=f" with {chosen.name}"
        )
        if trial.save is not None:
            save_treated(model, trial.save, tokenizer=trial.losing.loaded.tokenizer)
    return Result(chosen, looked, notes=notes)


def bos_first(trial: Trial) -> Result:
    """The same held-out tokens with BOS in front, in windows no longer than was asked for; loss over the tokens that
    both are asked for."""
    loaded = trial.losing.loaded
    beginning = trial.text.held_out.beginning
    if trial.text.text is None or beginning is None or beginning.token is None:
        raise RefusalError(f"{loaded.name} has no BOS token that could be put before a text: choose another remedy.")
    if beginning.begins:
        raise RefusalError(
            f"Sequences of {loaded.name} begin with BOS already: choose another remedy, or pass `bos='no'`."
        )
    text, before = trial.text.held_out, None
    longest = max(batch.inputs["input_ids"].shape[1] for batch in text)
    if longest >= _room(trial):
        # Windows that are full have no room for one more: both arms read them without their last token.
        text = replace(text, batches=tuple(batch.shortened(longest - 1) for batch in text))
        before = looked_at(trial.losing, text, "the text without BOS", trial.progress)
    # Without BOS nothing stands before the first token, so it cannot be asked for; with BOS it is left out as well.
    treated = looked_at(
        replace(trial.losing, skip_first=1),
        _put_first(text, beginning.token),
        "the text with BOS",
        trial.progress,
        title=" with BOS",
    )
    return Result(trial.chosen, treated, before=before)


def _room(trial: Trial) -> int:
    limits = (trial.sampling.max_tokens, trial.losing.loaded.positions)
    return min(one for one in limits if one is not None)


def _put_first(batches: Batches, token: int) -> Batches:
    """Every sequence with the token in front of it."""
    made = []
    for batch in batches:
        ids = batch.inputs["input_ids"]
        inputs = {"input_ids": torch.cat([ids.new_full((len(ids), 1), token), ids], dim=1)}
        mask = None
        if batch.mask is not None:
            mask = torch.cat([batch.mask.new_ones(len(ids), 1), batch.mask], dim=1)
            if not bool(mask.all()):
                inputs["attention_mask"] = mask.long()
        made.append(replace(batch, inputs=inputs, mask=mask, tokens=batch.tokens + len(batch)))
    begins = None if batches.beginning is None else replace(batches.beginning, begins=True, why="it was put first")
    return replace(batches, batches=tuple(made), beginning=begins)


def _as_asked(trial: Trial) -> tuple[dict[str, Any], Sequence[int] | None, tuple[str, ...]]:
    return dict(trial.chosen.settings), trial.chosen.layers or None, ()


def _for_qk_clip(trial: Trial) -> tuple[dict[str, Any], Sequence[int] | None, tuple[str, ...]]:
    """The largest logit of every head on training text."""
    settings, layers, _ = _as_asked(trial)
    threshold = float(settings.get("threshold", 100.0))
    place = precision_and_place(trial.losing.loaded.model)[1]
    trial.progress("largest logits", 0, 0)
    seen = largest_logits(
        trial.losing.loaded, (batch.to(place).inputs for batch in trial.text.training.batches[:BATCHES])
    )
    largest = {layer: one for layer, one in seen.items() if layers is None or layer in layers}
    above = [
        (block, head) for block, row in largest.items() for head, one in enumerate(row.tolist()) if one > threshold
    ]
    most = max(float(row.max()) for row in largest.values())
    told = (
        f"The largest logit on training text is {numeral(most, 3)}; {count(len(above), 'head')} "
        f"{'has' if len(above) == 1 else 'have'} one above the threshold of {numeral(threshold, 3)}."
    )
    return {**settings, "max_logit": largest}, layers, (told,)


def _for_temperature(trial: Trial) -> tuple[dict[str, Any], Sequence[int] | None, tuple[str, ...]]:
    """One temperature for all heads of the blocks with heads that are almost uniform; which blocks and which
    temperature is seen on training text alone."""
    settings, layers, _ = _as_asked(trial)
    few = replace(trial.text.training, batches=trial.text.training.batches[:BATCHES])
    if layers is None:
        survey = scan(trial.losing.loaded, few, measures=["entropy"], keep_text=False)
        found = diagnose(survey, trial.thresholds)
        layers = sorted({layer for f in found if f.kind == "uniform_heads" for layer, _ in f.heads}) or None
    if "temperature" in settings:
        return settings, layers, ()
    losses = {}
    with installed(trial.losing.loaded.model, "temperature", layers=layers, **settings) as treated:
        for number, tried in enumerate(TEMPERATURES):
            trial.progress("trying temperatures", number, len(TEMPERATURES))
            _set(treated.parameters().values(), tried)
            each = held_out_losses(trial.losing, few)
            losses[tried] = sum(each) / len(each)
    best = min(losses, key=lambda tried: losses[tried])
    where = "all blocks" if layers is None else blocks(layers)
    told = f"Of {len(TEMPERATURES)} temperatures for {where}, {best:g} has the lowest loss on training text."
    return {**settings, "temperature": best}, layers, (told,)


def _set(parameters: Any, value: float) -> None:
    with torch.no_grad():
        for one in parameters:
            one.fill_(value)
