"""The sentences and the document of a task: which heads carry it, and whether values agree with removal."""

from __future__ import annotations

from math import isinf

from attnscope.commands.paths.vocabulary import head_name, signed
from attnscope.commands.task_paths.record import Agreement, TaskHead, TaskPaths
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed
from attnscope.stats.intervals import ENOUGH, fewest
from attnscope.stats.spread import Correlation

HEADING = ("head", "value", "error", "95% interval", "sure", "lost when removed")
NAMED = 4  # heads that a sentence can name
SHOWN, BRIEF = 24, 10  # heads in charts, and in a terminal without --verbose
OF = {"values": "Shapley values", "paths": "all paths through a head"}
AGAINST = {"target": "the change of the target", "loss": "the growth of the loss"}
REPLACED = {"zero": "its output replaced by zero", "mean": "its output replaced by its mean over the prompt's tokens"}


CHARTS = "attnscope.commands.task_paths.chart"


def document(task: TaskPaths) -> Document:
    bars = Figure(
        "heads",
        "The heads that are worth most",
        drawn_by(f"{CHARTS}:head_bars", task),
        caption="Points: mean Shapley value over prompts. Lines: 95% interval of each head (bootstrap-t). Faint: the "
        "sign is not known, once all heads are taken into account.",
        summary="Mean value of the largest heads with their intervals.",
    )
    values = Figure(
        "values",
        "All heads",
        drawn_by(f"{CHARTS}:head_map", task),
        caption="Mean value of every head; orange adds, blue subtracts.",
    )
    background = (
        "On every prompt a path through k heads is shared equally among them, and the shares of a head add up to its "
        "exact Shapley value. Values are averaged over prompts, and resampled prompts give the intervals."
    )
    columns = len(HEADING) - (task.removal is None)
    prompts = (
        (row.text, row.target, row.against or "", numeral(row.value), "" if row.loss is None else numeral(row.loss))
        for row in task.prompts
    )
    return Document(
        verdict(task),
        f"Which heads carry {task.task}?",
        about=(f"{task.model} · {task.class_name} · {task.dtype} · {count(len(task.prompts), 'prompt')}",),
        sections=(
            Section("Findings", sentences=_sentences(task), notes=task.notes),
            Section("Heads", background=(background,), figures=(bars, values)),
            *_removal(task),
            Section(
                "Heads, the largest mean value first",
                tables=(Table(HEADING[:columns], tuple(row[:columns] for row in head_rows(task)), brief=BRIEF),),
                link="Numbers",
            ),
            Section(
                "Prompts",
                tables=(Table(("prompt", "target", "against", "value", "loss"), tuple(prompts), align="lllrr"),),
                detail=True,
            ),
        ),
        provenance=rows(task.provenance),
        command="paths",
    )


def _removal(task: TaskPaths) -> tuple[Section, ...]:
    """Return a section that compares values with the effect of removals, or nothing if no head was removed."""
    if task.removal is None:
        return ()
    replaced = REPLACED[task.removal]
    scatter = Figure(
        "removal",
        "Values and removal",
        drawn_by(f"{CHARTS}:removal_scatter", task),
        caption=f"Every head; removed means {replaced}, and everything after it is recomputed. On the dashed line both "
        "numbers are equal.",
        summary="Mean value of every head and the change of the target without it.",
    )
    agreement = Table(("of every head", "with", "Spearman", "Pearson"), agreement_rows(task), align="llrr", brief=0)
    background = (
        "A value is the contribution of a head while patterns, norms and gates are frozen. When the head is removed "
        f"({replaced}), those after it change: if that matters, the two numbers differ. Intervals are 95% over prompts."
    )
    return (Section("Removal", background=(background,), figures=(scatter,), tables=(agreement,)),)


def verdict(task: TaskPaths) -> Verdict:
    sure = [head for head in task.heads if head.sure]
    what = f"{target_words(task)} of {count(len(task.prompts), 'prompt')}"
    if len(task.prompts) < 2:
        return Verdict("warning", "One prompt has no error bar: give two or more to learn which heads carry a task.")
    needed = fewest(len(task.places))
    if len(task.prompts) < needed:
        few = count(len(task.prompts), "prompt").capitalize()
        return Verdict("warning", f"{few} are too few to be sure of the sign of any head: give {needed} or more.")
    if not sure:
        return Verdict("warning", f"The sign of no head of {len(task.places)} is known for {what}.")
    adds, takes = ([head for head in sure if side * head.value > 0] for side in (1, -1))
    if not adds:
        return Verdict("note", f"No head surely adds to {what}; {_named(takes)} {_speak(takes)} against it.")
    sentence = f"{_named(adds)} {'carries' if len(adds) == 1 else 'carry'} {what}"
    against = f"; {_named(takes)} {_speak(takes)} against it" if takes else ""
    return Verdict("note", f"{sentence[0].upper()}{sentence[1:]}{against}.")


def _speak(heads: list[TaskHead]) -> str:
    return "speaks" if len(heads) == 1 else "speak"


def _named(heads: list[TaskHead]) -> str:
    rest = len(heads) - NAMED
    words = [f"{head_name(head.block, head.head)} ({signed(head.value)} ± {numeral(head.error, 2)})" for head in heads]
    return listed([*words[:NAMED], *([f"{count(rest, 'other')}"] if rest > 0 else [])])


def target_words(task: TaskPaths) -> str:
    return "the logit of the right token" if task.kind == "logit" else "the right token's logit minus the wrong one's"


def _sentences(task: TaskPaths) -> tuple[str, ...]:
    sentences = []
    value, alone = (
        sum(getattr(prompt, name) for prompt in task.prompts) / len(task.prompts) for name in ("value", "alone")
    )
    sentences.append(
        f"On average over prompts the target is {numeral(value)}; paths through no head give {signed(alone)}, and the "
        f"{len(task.places)} heads together {signed(value - alone)}."
    )
    if len(task.prompts) >= fewest(len(task.places)):
        sure = sum(head.sure for head in task.heads)
        sentences.append(
            f"The sign of {count(sure, 'head')} of {len(task.places)} is known, with 95% confidence for all heads "
            "together; bars and intervals are of each head alone."
        )
    sentences += [agreement_words(agreement) for agreement in task.agreement[:2]]
    if parted := parting(task):
        sentences.append(parted)
    if 1 < len(task.prompts) < ENOUGH:
        few = count(len(task.prompts), "prompt")
        sentences.append(f"{few.capitalize()} are too few to be sure of the interval of a single head: give {ENOUGH}.")
    return tuple(sentences)


def agreement_words(agreement: Agreement) -> str:
    pearson, spearman = agreement.pearson, agreement.spearman
    what = f"{OF[agreement.of][0].upper()}{OF[agreement.of][1:]} and {AGAINST[agreement.against]}"
    if pearson is None or spearman is None:
        return f"{what} when a head is removed cannot be correlated: one of them is the same for all heads."
    sentence = (
        f"{what} when a head is removed correlate over heads with {_near(spearman)} (Spearman) and {_near(pearson)} "
        "(Pearson)."
    )
    if spearman.reliable is None:
        return sentence
    first, second = (f"{side:.2f}" for side in spearman.reliable)
    return (
        f"{sentence} The reliabilities of the two over prompts are {first} and {second}: noise lowers a "
        "correlation, or raises it if both share the noise."
    )


def _near(found: Correlation) -> str:
    return f"{found.value:.2f} [{found.low:.2f} to {found.high:.2f}]"


def parting(task: TaskPaths) -> str:
    """Return a sentence on the head whose value differs most from the effect of its removal."""
    known = [head for head in task.heads if head.removed is not None]
    if not known:
        return ""
    worst = max(known, key=lambda head: abs(head.value - (head.removed or 0.0)))
    assert worst.removed is not None
    return (
        f"They differ most for {head_name(worst.block, worst.head)}: its value is {signed(worst.value)}, all paths "
        f"through it carry {signed(worst.paths)}, and removing it {effect(worst.removed)}. "
        "The first two differ because paths are shared with other heads, the last two because everything after the "
        "head is recomputed."
    )


def effect(removed: float) -> str:
    """Return what removing a head does to the target, from the target before minus the target after."""
    return f"{'raises' if removed < 0 else 'lowers'} the target by {numeral(abs(removed))}"


def interval(head: TaskHead) -> str:
    if isinf(head.low) or isinf(head.high):
        return "unknown"
    return f"{signed(head.low)} to {signed(head.high)}"


def head_rows(task: TaskPaths) -> tuple[tuple[str, ...], ...]:
    """Return one row for each head, the largest first."""
    return tuple(
        (
            head_name(head.block, head.head),
            signed(head.value),
            "unknown" if head.error == float("inf") else numeral(head.error, 2),
            interval(head),
            "yes" if head.sure else "no",
            "" if head.removed is None else signed(head.removed),
        )
        for head in task.heads
    )


def agreement_rows(task: TaskPaths) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            OF[agreement.of],
            AGAINST[agreement.against],
            *("" if c is None else _near(c) for c in (agreement.spearman, agreement.pearson)),
        )
        for agreement in task.agreement
    )
