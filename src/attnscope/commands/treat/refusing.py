"""What cannot be treated as asked, said before it costs anything: by names and numbers alone, then by the model.

An option that a remedy would not read is refused too: whoever gives it expects it to do something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.commands.treat.choosing import needs_training
from attnscope.commands.treat.halves import GivenLoss
from attnscope.commands.treat.pruning import refuse_odd_settings, refuse_what_has_no_next_token
from attnscope.core.errors import RefusalError
from attnscope.core.finding import AUTO, BOS, PRUNE
from attnscope.core.registry import variants
from attnscope.core.words import count
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.exchanging.exchange import chosen_sites
from attnscope.hf.exchanging.plan import sorted_settings
from attnscope.hf.installed import installed
from attnscope.hf.loading.load import Loaded


@dataclass(frozen=True)
class Asked:
    """Options as they were given; None where nobody gave them."""

    remedy: str
    training: bool = True
    steps: int | None = None
    rate: float | None = None
    train: str | None = None
    resume: bool = False
    layers: tuple[int, ...] | None = None
    heads: int | None = None
    keep_loss: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def refuse_first(asked: Asked) -> None:
    """Before anything is loaded."""
    _refuse_what_nobody_reads(asked)
    _refuse_odd_numbers(asked)
    if asked.remedy == PRUNE:
        refuse_odd_settings(asked.settings)
    elif asked.remedy not in (AUTO, BOS):
        variant = variants()[asked.remedy]
        sorted_settings(variant, _of_variant(asked))
        _refuse_odd_temperature(asked)
        if not variant.card.keys_are_tokens:
            raise RefusalError(
                f"{asked.remedy} does not give every token a weight of its own, so that no finding could be measured "
                "again: choose another remedy, or measure its loss in a training of your own with attnscope.installed."
            )


def refuse_what_does_not_fit(asked: Asked, loaded: Loaded, loss: GivenLoss | None) -> None:
    """Before anything is measured: blocks and heads that the model does not have, and what cannot go into it."""
    if asked.remedy == PRUNE:
        refuse_what_has_no_next_token(loaded, loss)
        heads = sum(site.heads for site in prunable(loaded.model, anatomy(loaded.model)).values())
        if asked.heads is not None and asked.heads > heads:
            raise RefusalError(f"{loaded.name} has {count(heads, 'head')}: {asked.heads} cannot be taken out of it.")
    elif asked.remedy == "qk_clip":  # which is made of logits that are not known yet
        chosen_sites(loaded.model, anatomy(loaded.model), variants()["qk_clip"], asked.layers, None)
    elif asked.remedy not in (AUTO, BOS):
        with installed(loaded, asked.remedy, layers=asked.layers, **_of_variant(asked)):
            pass


def _of_variant(asked: Asked) -> dict[str, Any]:
    """A temperature is a parameter of its variant, which here can be set."""
    return {name: value for name, value in asked.settings.items() if (asked.remedy, name) != ("temperature",) * 2}


def _refuse_odd_temperature(asked: Asked) -> None:
    given = asked.settings.get("temperature", 1.0)
    if asked.remedy == "temperature" and (
        isinstance(given, bool) or not isinstance(given, int | float) or not given > 0
    ):
        raise RefusalError(f"A temperature of {given} divides no logits: give a number above 0, such as 0.8.")


def _refuse_odd_numbers(asked: Asked) -> None:
    if asked.steps is not None and asked.steps < 1:
        raise RefusalError(f"Training needs steps, and {asked.steps} are none: give 1 or more.")
    if asked.rate is not None and not 0 < asked.rate < float("inf"):
        raise RefusalError(f"A learning rate of {asked.rate:g} trains nothing: give a number above 0, such as 1e-4.")
    if asked.heads is not None and asked.heads < 1:
        raise RefusalError(f"{asked.heads} heads are none to take out: give 1 or more.")
    if asked.keep_loss is not None and not asked.keep_loss >= 0:
        raise RefusalError(f"A loss cannot be kept within {asked.keep_loss}: give nats per token, such as 0.05.")
    if asked.heads is not None and asked.keep_loss is not None:
        raise RefusalError(
            "How many heads to take out and how much loss to keep are two answers to one question: give one."
        )


def _refuse_what_nobody_reads(asked: Asked) -> None:
    name = asked.remedy
    for option, given in (("heads", asked.heads), ("keep_loss", asked.keep_loss)):
        if given is not None and name != PRUNE:
            raise RefusalError(
                f"{_option(option)} is about taking heads out, which {name} does not: leave it out, or choose "
                "`remedy='prune'`."
            )
    if asked.layers is not None and name in (PRUNE, BOS):
        raise RefusalError(f"{name} does not go into blocks, so `blocks=` says nothing to it: leave it out.")
    if asked.settings and name in (AUTO, BOS):
        which = "A remedy that is yet to be chosen" if name == AUTO else name
        raise RefusalError(
            f"{which} has no setting '{next(iter(asked.settings))}': leave `settings=` out, or name a remedy."
        )
    if asked.training and (name == AUTO or needs_training(name)):
        return
    why = f"{name} trains nothing" if asked.training else "nothing is trained with `training=False`"
    for option in ("steps", "rate", "train"):
        if getattr(asked, option) is not None:
            raise RefusalError(f"{why[0].upper()}{why[1:]}, so {_option(option)} has no meaning: leave it out.")
    if asked.resume:
        raise RefusalError(f"{why[0].upper()}{why[1:]}, so there is nothing to go on with: leave `resume=` out.")


def unused(asked: Asked, chosen: str) -> tuple[str, ...]:
    """What was asked of a training that the remedy chosen by `auto` does not need."""
    given = [_option(option) for option in ("steps", "rate", "train") if getattr(asked, option) is not None]
    return (f"{chosen} trains nothing: {', '.join(given)} had no meaning.",) if given else ()


def _option(name: str) -> str:
    return f"`{name}=`"
