"""What a trial measured, for the page and the terminal: a table of replaced words, and the input shaded by effects."""

from __future__ import annotations

import math

from attnscope.commands.explain.conclusions import answer_number, part_kind, part_words, telling
from attnscope.commands.explain.pictures import patches, sound
from attnscope.commands.explain.record import Explanation, Input
from attnscope.commands.explain.tried import Trial, Tried
from attnscope.commands.paths.vocabulary import quoted, signed
from attnscope.core.words import count, numeral, percent
from attnscope.reports.colours import STEPS
from attnscope.reports.document import Section, Table
from attnscope.reports.tabs import Drawing, Shade, ShadedText, Tab

ARROW = " Behind an arrow stands what the model says with that replacement, if it is another answer."
ROWS = 6  # rows of the table in a terminal
SHOWN = 2  # replacements in a row of the table


def trial_section(found: Explanation) -> tuple[Section, ...]:
    """Tabulate every word that was tried: what took its place, and the answer with it."""
    trial = found.trial
    if trial is None:
        return ()
    listing = [*trial.words, *([trial.asking] if trial.asking else []), *trial.pairs]
    weighted = any(replacement.fit < 1 for one in listing for replacement in one.every)
    lines = tuple(
        (
            (one.word if one in trial.pairs else part_words(found, one)).replace("the patches in ", ""),
            _place(found, trial, one),
            _replacements(found, trial, one),
            answer_number(trial, one.after),
            f"{answer_number(trial, one.low)} to {answer_number(trial, one.high)}",
            *([percent(_fit(one))] if weighted else []),
            signed(one.effect),
        )
        for one in listing
    )
    media = next((read.kind for read in found.inputs if read.kind != "text"), "")
    by = "a blank one, by the mean of all and by another one" if media else "others of its kind"
    if any(one.chosen == "likely" for word in listing for one in word.every):
        by = "others that the model expects there, and by similar ones"
    how = (
        f"Each {part_kind(found)} was replaced by {by}, and the model ran on {count(trial.inputs, 'changed input')}. "
        f"The answer without a change is {answer_number(trial, trial.before)}. 'Answer' is the median of replacements, "
        f"'effect' the mean fall of {_measure(trial)}.{ARROW * any(one.says for word in listing for one in word.every)}"
    )
    fits = (
        " 'Fit' is 100% if the whole text is as likely with the replacements as without them; replacements after which "
        "it is less likely count less."
    )
    heading = (
        "patches" if media == "image" else "part" if media else "word",
        "token",
        "replaced by",
        "answer",
        "range",
        *(["fit"] if weighted else []),
        "effect",
    )
    table = Table(heading, lines, align="lrlrr" + "r" * (len(heading) - 5), brief=ROWS)
    return (Section("Tried on the model", background=(how + fits * weighted,), tables=(table,), link="Trial"),)


def _measure(trial: Trial) -> str:
    return "the logarithm of the probability" if trial.unit == "probability" else "the number"


def _fit(tried: Tried) -> float:
    return math.fsum(one.fit for one in tried.every) / len(tried.every)


def _place(found: Explanation, trial: Trial, tried: Tried) -> str:
    if tried is trial.asking:
        return "asks"
    first = str(tried.tokens[0])
    return f"{tried.input} {first}" if len(found.inputs) > 1 else first


def _replacements(found: Explanation, trial: Trial, tried: Tried) -> str:
    """List the most telling replacements, each with what the model then says, if that is something else."""
    text = next(read.kind == "text" for read in found.inputs if read.name == tried.input)
    bare = not text or tried in trial.pairs
    shown = sorted(tried.every, key=telling, reverse=True)[:SHOWN]
    words = [quoted(one.text, bare=bare) + (f" → {quoted(one.says)}" if one.says else "") for one in shown]
    more = len(tried.every) - len(shown)
    return ", ".join(words) + (f" and {more} more" if more else "")


def measured_tab(found: Explanation) -> tuple[Tab, ...]:
    """Shade every part by its measured effect. What was not tried has no colour."""
    trial = found.trial
    if trial is None:
        return ()
    reach = max((abs(one.effect) for one in trial.words), default=0.0) or 1.0
    diverging = any(one.effect < 0 for one in trial.words)
    blocks: list[ShadedText | Drawing] = []
    for read in found.inputs:
        label = read.name if len(found.inputs) > 1 else ""
        effects = {token: one for one in trial.words if one.input == read.name for token in one.tokens}
        if read.kind == "text":
            shades = _shades(found, read, effects, reach, diverging)
            blocks.append(ShadedText(shades, label))
        elif effects:
            row = [effects[place].effect if place in effects else 0.0 for place in range(len(read.tokens))]
            drawing = patches(read, row, label) or sound(read, row, label)
            blocks += [drawing] if drawing else []
    if not blocks:
        return ()
    caption = f"How far {_measure(trial)} falls when a {part_kind(found)} is replaced. {len(trial.words)} tried."
    ends = (f"{chr(8722)}{numeral(reach)} rises", f"+{numeral(reach)} falls") if diverging else ("0", numeral(reach))
    return (Tab("Measured effect", tuple(blocks), caption=caption, ends=ends, diverging=diverging),)


def _shades(
    found: Explanation, read: Input, effects: dict[int, Tried], reach: float, diverging: bool
) -> tuple[Shade, ...]:
    trial = found.trial
    assert trial is not None
    shades = []
    for place, text in enumerate(as_written(read.tokens)):
        one = effects.get(place)
        answers = read is found.inputs[-1] and place == found.position
        mark = "underlined" if answers else ""
        if one is None:
            shades.append(Shade(text, "", "", mark))
            continue
        share = one.effect / reach
        step = round(((1 + share) / 2 if diverging else share) * (STEPS - 1))
        reading = f"{part_words(found, one)}: the answer goes to {answer_number(trial, one.after)}"
        shades.append(Shade(text, f"{'d' if diverging else 'q'}{step}", reading, mark))
    return tuple(shades)


def as_written(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Return tokens that read like the text when joined. Some vocabularies put the space into the next token; others
    mark pieces that continue a word (##ing)."""
    if len(tokens) < 2 or any(token[:1].isspace() for token in tokens):
        return tokens
    return tuple(
        token.removeprefix("##") if token.startswith("##") else f"{' ' if place else ''}{token}"
        for place, token in enumerate(tokens)
    )
