"""Choose a remedy, and refuse unusable options before anything is computed.

Options that the remedy ignores are refused too, because the caller expects them to have an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnscope.commands.treat.halves import GivenLoss
from attnscope.commands.treat.pruning import refuse_odd_settings, refuse_what_has_no_next_token
from attnscope.commands.treat.record import Chosen
from attnscope.core.errors import RefusalError
from attnscope.core.finding import AUTO, BOS, PRUNE, TABLE, Finding, answered_by, candidates
from attnscope.core.registry import variants
from attnscope.core.variant import variant_cards
from attnscope.core.words import count
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.exchanging.exchange import chosen_sites
from attnscope.hf.exchanging.plan import sorted_settings
from attnscope.hf.installed import installed
from attnscope.hf.loading.load import Loaded

WITHOUT_VARIANT = {
    PRUNE: ("Heads removed", "The least valuable heads are removed.", "arXiv:1905.10650"),
    BOS: ("BOS in front", "Every sequence begins with the BOS token, as in training.", "arXiv:2309.17453"),
}


def needs_training(name: str) -> bool:
    return name not in WITHOUT_VARIANT and variant_cards()[name].trains


def chosen_for(remedy: str, findings: Sequence[Finding], training: bool = True) -> Chosen:
    """Return the named remedy; for "auto", the first in the table for the most severe finding.

    "auto" prefers a remedy that does not change the model before it is trained. Without `training` it skips remedies
    that need training.
    """
    if remedy != AUTO:
        return _described(remedy, _why(remedy, findings), asked=True)
    offered = [(row, name) for row, name in candidates(findings) if training or not needs_training(name)]
    if not offered:
        answered = ", ".join(row.finding for row in TABLE)
        raise RefusalError(
            f"No finding has a remedy{'' if training else ' without training'} (findings with one: {answered}): name "
            "one with `remedy=` to try it anyway."
        )
    keeping = (pair for pair in offered if pair[1] in WITHOUT_VARIANT or variant_cards()[pair[1]].keeps is not None)
    row, name = next(keeping, offered[0])
    others = tuple(dict.fromkeys(other for _, other in offered if other != name))
    return _described(name, f"{_sentence_of(row.finding, findings)} {row.why}", asked=False, alternatives=others)


def _why(name: str, findings: Sequence[Finding]) -> str:
    row = next((row for row in TABLE if name in row.remedies and any(f.kind == row.finding for f in findings)), None)
    return "It was asked for." if row is None else f"{_sentence_of(row.finding, findings)} {row.why}"


def _sentence_of(kind: str, findings: Sequence[Finding]) -> str:
    return next(finding.sentence for finding in findings if finding.kind == kind)


def _described(name: str, why: str, *, asked: bool, alternatives: tuple[str, ...] = ()) -> Chosen:
    if name in WITHOUT_VARIANT:
        title, summary, citation = WITHOUT_VARIANT[name]
        keeps = False
    else:
        card = variant_cards()[name]
        title, summary, citation, keeps = card.title, card.summary, card.citation, card.keeps is not None
    return Chosen(name, title, summary, citation, why, asked, answered_by(name), alternatives, keeps)


@dataclass(frozen=True)
class Asked:
    """The options of a treatment, with None for options that were not given."""

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
    """Refuse unusable names and numbers, before anything is loaded."""
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
                f"{asked.remedy} does not give every token a weight, so findings cannot be measured with it: choose "
                "another remedy, or train with attnscope.installed and compare losses."
            )


def refuse_what_does_not_fit(asked: Asked, loaded: Loaded, loss: GivenLoss | None) -> None:
    """Refuse blocks, heads and variants that do not fit the model, before anything is measured."""
    if asked.remedy == PRUNE:
        refuse_what_has_no_next_token(loaded, loss)
        heads = sum(site.heads for site in prunable(loaded.model, anatomy(loaded.model)).values())
        if asked.heads is not None and asked.heads > heads:
            raise RefusalError(
                f"{loaded.name} has {count(heads, 'head')}: {asked.heads} cannot be removed; give fewer."
            )
    elif asked.remedy == "qk_clip":  # it cannot be installed yet: its logits are unknown
        chosen_sites(loaded.model, anatomy(loaded.model), variants()["qk_clip"], asked.layers, None)
    elif asked.remedy not in (AUTO, BOS):
        with installed(loaded, asked.remedy, blocks=asked.layers, **_of_variant(asked)):
            pass


def _of_variant(asked: Asked) -> dict[str, Any]:
    """Return the settings without a temperature, which is a parameter of its variant and set by `treat`."""
    return {name: value for name, value in asked.settings.items() if (asked.remedy, name) != ("temperature",) * 2}


def _refuse_odd_temperature(asked: Asked) -> None:
    value = asked.settings.get("temperature", 1.0)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if asked.remedy == "temperature" and not usable:
        raise RefusalError(f"A temperature cannot be {value}: give a number above 0, such as 0.8.")


def _refuse_odd_numbers(asked: Asked) -> None:
    if asked.steps is not None and asked.steps < 1:
        raise RefusalError(f"Training needs 1 step or more, not {asked.steps}: change `steps=`.")
    if asked.rate is not None and not 0 < asked.rate < float("inf"):
        raise RefusalError(f"A learning rate cannot be {asked.rate:g}: give a number above 0, such as 1e-4.")
    if asked.heads is not None and asked.heads < 1:
        raise RefusalError(f"{asked.heads} heads cannot be removed: give 1 or more.")
    if asked.keep_loss is not None and not asked.keep_loss >= 0:
        raise RefusalError(f"`keep_loss=` cannot be {asked.keep_loss}: give nats per token, such as 0.05.")
    if asked.heads is not None and asked.keep_loss is not None:
        raise RefusalError("`heads=` and `keep_loss=` both say how many heads to remove: give one of them.")


def _refuse_what_nobody_reads(options: Asked) -> None:
    name = options.remedy
    for option, value in (("heads", options.heads), ("keep_loss", options.keep_loss)):
        if value is not None and name != PRUNE:
            raise RefusalError(
                f"{_option(option)} is an option of pruning, not of {name}: leave it out, or choose `remedy='prune'`."
            )
    if options.layers is not None and name in (PRUNE, BOS):
        raise RefusalError(f"{name} does not change single blocks, so `blocks=` has no effect: leave it out.")
    if options.settings and name in (AUTO, BOS):
        which = "A remedy that is chosen automatically" if name == AUTO else name
        raise RefusalError(
            f"{which} has no setting '{next(iter(options.settings))}': leave `settings=` out, or name a remedy."
        )
    if options.training and (name == AUTO or needs_training(name)):
        return
    why = f"{name} trains nothing" if options.training else "nothing is trained with `training=False`"
    for option in ("steps", "rate", "train"):
        if getattr(options, option) is not None:
            raise RefusalError(f"{why[0].upper()}{why[1:]}, so {_option(option)} has no effect: leave it out.")
    if options.resume and name != PRUNE:
        raise RefusalError(f"{why[0].upper()}{why[1:]}, so there is nothing to resume: leave `resume=` out.")


def unused(asked: Asked, chosen: str) -> tuple[str, ...]:
    """Return a note on training options that are ignored, because "auto" chose a remedy without training."""
    given = [_option(option) for option in ("steps", "rate", "train") if getattr(asked, option) is not None]
    return (f"{chosen} trains nothing: {', '.join(given)} had no effect.",) if given else ()


def _option(name: str) -> str:
    return f"`{name}=`"
