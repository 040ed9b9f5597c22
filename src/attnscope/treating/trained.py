"""A remedy that is trained: the control first, then the same training with the remedy in the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.exchanging.installed import installed
from attnscope.exchanging.save_treated import save_treated
from attnscope.models.train import Recipe
from attnscope.records.treatment import Training
from attnscope.treating.arms import batch_of_step, held_out_losses, looked_at
from attnscope.treating.fine_tuning import fine_tuned, put_back
from attnscope.treating.trial import Result, Trial

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
