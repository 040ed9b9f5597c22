"""The sentences of a survey: verdict, headline numbers, what was read, and what could not be measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.readings import raised, uniform_attention
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Trial
from attnscope.core.finding import SEVERITIES, SEVERITY_WORDS, Finding, Severity
from attnscope.core.words import count, numeral
from attnscope.reports.words import Verdict, beginning_words

if TYPE_CHECKING:
    import pandas


def sentences(survey: Survey) -> tuple[str, ...]:
    """Return the findings at the default thresholds, worst first."""
    return tuple(finding.sentence for finding in diagnose(survey))


def site_title(stack: str, site: str, *, alone: bool = False) -> str:
    """Return `decoder, cross-attention`, without the stack if it is the model's only one (`alone`)."""
    what = "self-attention with different numbers of queries and keys" if site == "uneven" else f"{site}-attention"
    if alone:
        return "residual stream" if site in ("stream", "middle") else what
    return stack if site in ("stream", "middle") else f"{stack}, {what}"


def proof(survey: Survey) -> str:
    """Return how the numbers were checked: `verified, largest difference 5e-7`."""
    found = survey.provenance.get("verify")
    if not isinstance(found, dict) or not found.get("passed"):
        return "not verified"
    difference = found.get("largest_difference")
    if not isinstance(difference, float | int):
        return "verified"
    return f"verified, largest difference {numeral(float(difference), 1)}"


def model_name(survey: Survey) -> str:
    return str(_section(survey, "model").get("name") or "unnamed model")


_COUNTED = {"sequences": "sequences", "tokens": "tokens"}


def corpus_words(survey: Survey) -> tuple[str, ...]:
    """Describe what was read: `wikitext`, `64 sequences`, `16,384 tokens`, and whether BOS came first."""
    corpus = _section(survey, "corpus")
    words = [str(corpus["name"])] if corpus.get("name") else []
    if isinstance(corpus.get("files_read"), int):
        words.append(f"{count(corpus['files_read'], 'file')} read and {corpus.get('files_skipped', 0):,} skipped")
    # Of pictures and sound, `tokens` counts samples, which are the sequences once more.
    kinds = {"sequences": corpus["counts"]} if isinstance(corpus.get("counts"), str) else _COUNTED
    words += [f"{corpus[k]:,} {kind}" for k, kind in kinds.items() if isinstance(corpus.get(k), int)]
    return (*words, *beginning_words(survey.provenance))


def missing_words(survey: Survey) -> tuple[str, ...]:
    """Return one sentence per reason why requested measures are missing, in the order of their cards."""
    reasons = _section(survey, "not_measured")
    measured = {key.measure for key in survey.cells}
    titles: dict[str, list[str]] = {}
    for name in sorted(reasons, key=lambda n: (n not in survey.cards, n)):
        if name not in measured:
            why = reasons[name] if isinstance(reasons[name], list) else [reasons[name]]
            reason = " ".join("; ".join(str(w).rstrip(".") for w in why).split())
            titles.setdefault(reason, []).append(survey.cards[name].title if name in survey.cards else name)
    return tuple(
        f"{', '.join(some[:-1])}{' and ' if some[1:] else ''}{some[-1]}"
        f" {'were' if some[1:] else 'was'} not measured{': ' if reason else ''}{reason}."
        for reason, some in titles.items()
    )


def notes(survey: Survey) -> tuple[str, ...]:
    """Return the notes of the anatomy, the verifier and the loader."""
    found = survey.provenance.get("notes")
    return tuple(str(note) for note in found) if isinstance(found, list) else ()


def _section(survey: Survey, name: str) -> dict[str, Any]:
    found = survey.provenance.get(name)
    return found if isinstance(found, dict) else {}


def verdict(survey: Survey, findings: Sequence[Finding] | None = None, thresholds: Thresholds | None = None) -> Verdict:
    """Say whether the model is healthy, has something to know, or something is wrong, and state what is wrong."""
    if not survey.cells:
        return Verdict("note", "Nothing was measured.")
    found = diagnose(survey, thresholds) if findings is None else findings
    wrong = [finding for finding in found if finding.severity == "wrong"]
    known = sum(finding.severity == "to_know" for finding in found)
    if wrong:
        more = f" {count(len(wrong) - 1, 'more finding')} of this severity." if wrong[1:] else ""
        return Verdict("critical", f"Something is wrong: {_inside(wrong[0].sentence)}{more}")
    unseen = survey.trial is not None and not survey.trial.loss
    blind = "The loss is unknown, so most damage would not be seen: compare it with a checkpoint that works."
    if known:
        matters = "matters" if known == 1 else "matter"
        lead = "nothing wrong was found" if unseen else "nothing is wrong"
        told = (
            f"To know: {lead}, and {count(known, 'finding')} {matters} when the model is quantised, served or changed."
        )
        return Verdict("note", f"{told} {blind}" if unseen else told)
    if unseen:
        return Verdict("calm", f"Nothing wrong was found. {blind}")
    return Verdict("calm", "Healthy: nothing is wrong.")


def _inside(sentence: str) -> str:
    """Return a sentence for the middle of another one; abbreviations keep their capitals."""
    first = sentence.split(" ", maxsplit=1)[0]
    return sentence[:1].lower() + sentence[1:] if first[1:].islower() or len(first) == 1 else sentence


def facts(survey: Survey) -> tuple[str, ...]:
    """Return what the trial showed: the loss beside token frequencies, and which tests the model passed."""
    trial = survey.trial
    if trial is None:
        return ()
    said = [_loss_words(trial)] if trial.loss else []
    return (*said, *_test_words(trial))


def _loss_words(trial: Trial) -> str:
    what = "the next token" if trial.task == "next token" else "masked tokens"
    per_byte = "" if math.isnan(trial.bits_per_byte) else f", {numeral(trial.bits_per_byte, 3)} bits per byte"
    base = "" if math.isnan(trial.unigram) else f"; token frequencies alone give {numeral(trial.unigram, 3)}"
    return (
        f"Loss: it predicts {what} with {numeral(trial.mean_loss, 3)} nats per token{per_byte}{base}"
        f" ({count(len(trial.loss), 'window')}, {sum(trial.counts):,} predicted tokens)."
    )


def _test_words(trial: Trial) -> Iterator[str]:
    """Yield one sentence with the tests that the model passed."""
    passed = []
    if trial.exposures and all(each.moved <= each.rounding for each in trial.exposures):
        passed.append("later tokens do not change earlier states")
    if trial.order > trial.order_rounding:
        passed.append("positions matter")
    tried = [(part, best) for part in trial.parts if (best := trial.best(part)) is not None]
    if tried:
        part, best = min(tried, key=lambda pair: trial.cost(pair[1]))
        chosen = f"the {len(tried)} of {len(trial.parts)} half blocks with the steepest slopes or smallest writes"
        if trial.cost(best) < 0:
            gain = numeral(-trial.cost(best), 2)
            lowers = f"the best lowers the loss by {gain} nats ({part.words} times {best.factor:g})"
        else:
            lowers = "none lowers the loss"
        passed.append(f"of {chosen}, rescaled, {lowers}")
    if passed:
        yield f"Tried: {'; '.join(passed)}."


def severity_counts(findings: Sequence[Finding]) -> dict[Severity, tuple[int, str]]:
    """Return the number of findings of each severity, most severe first, and its name."""
    counts = {severity: sum(item.severity == severity for item in findings) for severity in reversed(SEVERITIES)}
    return {s: (n, "notes" if s == "note" and n != 1 else SEVERITY_WORDS[s]) for s, n in counts.items()}


@dataclass(frozen=True)
class Headline:
    label: str
    value: str
    note: str


def headlines(survey: Survey, table: pandas.DataFrame, thresholds: Thresholds | None = None) -> tuple[Headline, ...]:
    """Return size, residual, rank, sinks, spike and NaNs, for page and terminal. Measures not taken are skipped."""
    chosen = thresholds or Thresholds()
    lines: list[Headline] = []
    for stack in survey.stacks:
        rows = table[table["stack"] == stack]
        which = f" ({stack})" if len(survey.stacks) > 1 else ""
        lines += [_size(survey, rows, stack, which)]
        lines += _ends(survey, rows, "relative_residual", "Residual left at the end", which)
        lines += _ends(survey, rows, "effective_rank", "Effective rank at the end", which)
        lines += _sinks(survey, rows, stack, which, chosen.sink_mass)
        lines += _spike(rows, which)
    broken = int(table["nonfinite"].sum())
    if broken:
        lines.append(Headline("NaN or infinite", f"{broken:,}", "observations excluded from every number"))
    return tuple(lines)


def _size(survey: Survey, rows: pandas.DataFrame, stack: str, which: str) -> Headline:
    heads = rows[rows["head"].notna()]
    if heads.empty:
        depth = int(rows["layer"].max())
        return Headline(f"Blocks{which}", f"{depth:,}", "no number per head was taken")
    layers, per_layer = heads["layer"].nunique(), int(heads["head"].max()) + 1
    every = heads[["site", "layer", "head"]].drop_duplicates()
    crossing = int((every["site"] == "cross").sum())
    note = f"{count(len(every), 'head')} in all" + (f", {crossing:,} of them in cross-attention" if crossing else "")
    stacks = survey.provenance.get("model", {}).get("stacks", [])
    others = len(next((s.get("kinds", {}) for s in stacks if s["name"] == stack), {}))
    if others:
        note += f"; {count(others, 'more block')} without softmax attention"
    return Headline(f"Blocks × heads{which}", f"{layers} × {per_layer}", note)


def _ends(survey: Survey, rows: pandas.DataFrame, measure: str, label: str, which: str) -> list[Headline]:
    column = rows[(rows["measure"] == measure) & (rows["site"] == "stream")]
    column = column[np.isfinite(column["mean"])].sort_values("layer")
    if column.empty:
        return []
    first, last = column.iloc[0], column.iloc[-1]
    note = f"{survey.cards[measure].unit}; {numeral(float(first['mean']))} entering block {first['layer']}"
    return [Headline(f"{label}{which}", numeral(float(last["mean"])), note.lstrip("; "))]


def _sinks(survey: Survey, rows: pandas.DataFrame, stack: str, which: str, threshold: float) -> list[Headline]:
    """Return the share of heads above the threshold of the `sink` finding."""
    masses = rows[(rows["measure"] == "sink_mass") & (rows["site"] == "self")]
    masses = masses[masses["part"] == survey.cards["sink_mass"].parts[0]] if len(masses) else masses
    means = masses["mean"].to_numpy(float)
    means = means[np.isfinite(means)]
    if not means.size:
        return []
    bar = raised(threshold, uniform_attention(survey, stack, "self"))
    share = float((means > bar).mean())
    return [Headline(f"Heads that sink{which}", f"{share:.0%}", f"put over {bar:.3g} of their mass on the first token")]


def _spike(rows: pandas.DataFrame, which: str) -> list[Headline]:
    spikes = rows[(rows["measure"] == "spike") & np.isfinite(rows["peak"])]
    if spikes.empty:
        return []
    top = spikes.loc[spikes["peak"].idxmax()]
    spot = top["peak_where"] or {}
    last = int(rows.loc[rows["site"] == "stream", "layer"].max())
    block = f"{'inside' if top['site'] == 'middle' else 'entering'} block {top['layer']}"
    after = (top["site"], top["layer"]) == ("stream", last)
    place = ["after the last block" if after else block] + [f"{k} {spot[k]}" for k in ("token", "channel") if k in spot]
    return [Headline(f"Largest activation{which}", numeral(float(top["peak"])), ", ".join(place))]
