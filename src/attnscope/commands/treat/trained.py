"""Apply a remedy, either trained beside a control or without training (including BOS in front).

The control is trained first, then the model with the remedy, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.commands.scan.diagnose import diagnose
from attnscope.commands.scan.run import scan
from attnscope.commands.treat.arms import (
    Trial,
    TrialResult,
    batch_of_step,
    fine_tuned,
    measured_arm,
    restored,
    sequence_losses,
)
from attnscope.commands.treat.record import Training
from attnscope.commands.treat.train import Recipe
from attnscope.core.errors import RefusalError
from attnscope.core.words import blocks, count, numeral
from attnscope.data.batches import Batches
from attnscope.hf.installed import installed, largest_logits, save_treated
from attnscope.hf.loading.load import precision_and_place

ARMS = ("control", "treated")
BATCHES = 8  # batches of training text, to set up remedies without training
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
Prepared = tuple[dict[str, Any], Sequence[int] | None, tuple[str, ...]]  # settings, blocks, notes


@dataclass(frozen=True)
class Kept:
    """The folder of unfinished training, and whether to resume it."""

    folder: Path
    resume: bool

    def of(self, arm: str) -> Path:
        return self.folder / arm

    def clear(self) -> None:
        """Remove the files of earlier training, and no others."""
        for arm in ARMS:
            for path in self.folder.glob(f"{arm}.*"):
                path.unlink()


def trained(trial: Trial, recipe: Recipe, everything: bool, kept: Kept | None) -> TrialResult:
    """Train both arms from the same weights.

    `everything` trains all parameters, else only the projections of treated blocks. The treated arm also trains the
    parameters that the remedy adds.
    """
    chosen, model = trial.chosen, trial.loss.loaded.model
    options = {"blocks": chosen.layers or None, "seed": trial.sampling.seed, **chosen.settings}
    with installed(model, chosen.name, **options) as variant:
        near = {id(parameter) for parameter in variant.projections().values()}
        chosen = replace(chosen, layers=tuple(variant.layers))
        added = sum(parameter.numel() for parameter in variant.parameters().values())
    own = {name: parameter for name, parameter in model.named_parameters() if everything or id(parameter) in near}
    if not own:
        raise RefusalError(
            f"No projections of {trial.loss.loaded.name} were found to train, because its weights are zero or do not "
            "affect its attention: load other weights, or pass `train='all'`."
        )
    if kept is not None and not kept.resume:
        kept.clear()
    plan = _plan(trial, everything)
    tuned = partial(fine_tuned, trial.loss, trial.text.training, seed=trial.sampling.seed, progress=trial.progress)
    with restored(model, own):
        path = None if kept is None else kept.of("control")
        curve, seconds = tuned(own, recipe, stage="training the control", kept=path, plan=plan)
        control = trial.measured("the control", f" after {recipe.steps} steps", curve=curve, seconds=seconds)
    with restored(model, own), installed(model, chosen.name, **options) as treated:
        parameters: dict[str, nn.Parameter] = {**own, **treated.parameters()}
        losses = sequence_losses(trial.loss, trial.text.held_out)
        path = None if kept is None else kept.of("treated")
        remedy = {"remedy": chosen.name, "settings": repr(chosen.settings), "layers": list(chosen.layers)}
        stage, buffers = f"training with {chosen.name}", treated.buffers()
        curve, seconds = tuned(parameters, recipe, stage=stage, beside=buffers, kept=path, plan={**plan, **remedy})
        title = f" with {chosen.name} after {recipe.steps} steps"
        after = trial.measured("the treated model", title, curve=curve, seconds=seconds)
        if trial.save is not None:
            trial.progress("saving the treated model", 0, 0)
            save_treated(model, trial.save, tokenizer=trial.loss.loaded.tokenizer)
    training = Training(
        steps=recipe.steps,
        rate=recipe.rate,
        batch_size=trial.sampling.batch_size,
        max_tokens=trial.sampling.max_tokens or 0,
        seed=trial.sampling.seed,
        parameters="all" if everything else "added",
        trained=sum(parameter.numel() for parameter in own.values()),
        added=added,
        tokens=_tokens(trial, recipe.steps),
    )
    return TrialResult(chosen, after, control, training, start=sum(losses) / len(losses))


def _plan(trial: Trial, everything: bool) -> dict[str, Any]:
    """Return what determines the numbers of both arms, in addition to recipe and seed."""
    return {
        "model": trial.loss.loaded.sha256,
        "text": trial.text.training.fingerprint(),
        "sampling": asdict(trial.sampling),
        "everything": everything,
    }


def _tokens(trial: Trial, steps: int) -> int:
    return sum(batch_of_step(trial.text.training, trial.sampling.seed, step).tokens for step in range(steps))


def without_training(trial: Trial) -> TrialResult:
    """Install a remedy without training, and measure it.

    Its settings (largest logits, the best temperature) come from training text, never from held-out text.
    """
    prepare = {"qk_clip": _for_qk_clip, "temperature": _for_temperature}.get(trial.chosen.name, _as_asked)
    settings, layers, notes = prepare(trial)
    model = trial.loss.loaded.model
    temperature = settings.pop("temperature", None)
    with installed(model, trial.chosen.name, blocks=layers, **settings) as treated:
        used = {**trial.chosen.settings, **({} if temperature is None else {"temperature": temperature})}
        chosen = replace(trial.chosen, layers=tuple(treated.layers), settings=used)
        if temperature is not None:
            _fill(treated.parameters().values(), float(temperature))
        arm = trial.measured("the treated model", f" with {chosen.name}")
        if trial.save is not None:
            save_treated(model, trial.save, tokenizer=trial.loss.loaded.tokenizer)
    return TrialResult(chosen, arm, notes=notes)


def bos_first(trial: Trial) -> TrialResult:
    """Measure the same held-out tokens with BOS in front, in windows that do not get longer.

    The loss is taken over the tokens that both arms predict.
    """
    loaded = trial.loss.loaded
    beginning = trial.text.held_out.beginning
    if trial.text.text is None or beginning is None or beginning.token is None:
        raise RefusalError(f"{loaded.name} has no BOS token to put in front of a text: choose another remedy.")
    if beginning.begins:
        raise RefusalError(
            f"Sequences of {loaded.name} begin with BOS already: choose another remedy, or pass `bos='no'`."
        )
    text, before = trial.text.held_out, None
    longest = max(batch.inputs["input_ids"].shape[1] for batch in text)
    if longest >= min(n for n in (trial.sampling.max_tokens, loaded.positions) if n is not None):
        # Full windows have no room for BOS: both arms read them without their last token.
        text = replace(text, batches=tuple(batch.shortened(longest - 1) for batch in text))
        before = measured_arm(trial.loss, text, "the text without BOS", trial.progress)
    # Without BOS the first token has no context and is not predicted; with BOS it is skipped as well.
    skipping, with_bos = replace(trial.loss, skip_first=1), _put_first(text, beginning.token)
    treated = measured_arm(skipping, with_bos, "the text with BOS", trial.progress, title=" with BOS")
    return TrialResult(trial.chosen, treated, before=before)


def _put_first(batches: Batches, token: int) -> Batches:
    """Return the batches with a token in front of every sequence."""
    changed = []
    for batch in batches:
        ids = batch.inputs["input_ids"]
        inputs = {"input_ids": torch.cat([ids.new_full((len(ids), 1), token), ids], dim=1)}
        mask = None
        if batch.mask is not None:
            mask = torch.cat([batch.mask.new_ones(len(ids), 1), batch.mask], dim=1)
            if not bool(mask.all()):
                inputs["attention_mask"] = mask.long()
        changed.append(replace(batch, inputs=inputs, mask=mask, tokens=batch.tokens + len(batch)))
    begins = None if batches.beginning is None else replace(batches.beginning, begins=True, why="it was put first")
    return replace(batches, batches=tuple(changed), beginning=begins)


def _as_asked(trial: Trial) -> Prepared:
    return dict(trial.chosen.settings), trial.chosen.layers or None, ()


def _for_qk_clip(trial: Trial) -> Prepared:
    """Measure the largest logit of every head on training text."""
    settings, layers, _ = _as_asked(trial)
    threshold = float(settings.get("threshold", 100.0))
    device = precision_and_place(trial.loss.loaded.model)[1]
    trial.progress("largest logits", 0, 0)
    inputs = (batch.to(device).inputs for batch in trial.text.training.batches[:BATCHES])
    logits = largest_logits(trial.loss.loaded, inputs)
    largest = {block: row for block, row in logits.items() if layers is None or block in layers}
    above = sum(logit > threshold for row in largest.values() for logit in row.tolist())
    most = max(float(row.max()) for row in largest.values())
    note = (
        f"The largest logit on training text is {numeral(most, 3)}; {count(above, 'head')} "
        f"{'has' if above == 1 else 'have'} one above the threshold of {numeral(threshold, 3)}."
    )
    return {**settings, "max_logit": largest}, layers, (note,)


def _for_temperature(trial: Trial) -> Prepared:
    """Find one temperature for all blocks with almost uniform heads, on training text."""
    settings, layers, _ = _as_asked(trial)
    few = replace(trial.text.training, batches=trial.text.training.batches[:BATCHES])
    if layers is None:
        survey = scan(trial.loss.loaded, few, measures=["entropy"], keep_text=False, trial=False)
        findings = diagnose(survey, trial.thresholds)
        layers = sorted({layer for f in findings if f.kind == "uniform_heads" for layer, _ in f.heads}) or None
    if "temperature" in settings:
        return settings, layers, ()
    losses = {}
    with installed(trial.loss.loaded.model, "temperature", blocks=layers, **settings) as treated:
        for number, temperature in enumerate(TEMPERATURES):
            trial.progress("trying temperatures", number, len(TEMPERATURES))
            _fill(treated.parameters().values(), temperature)
            each = sequence_losses(trial.loss, few)
            losses[temperature] = sum(each) / len(each)
    best = min(losses, key=lambda temperature: losses[temperature])
    where = "all blocks" if layers is None else blocks(layers)
    note = f"Of {len(TEMPERATURES)} temperatures for {where}, {best:g} has the lowest loss on training text."
    return {**settings, "temperature": best}, layers, (note,)


def _fill(parameters: Iterable[nn.Parameter], value: float) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter.fill_(value)
