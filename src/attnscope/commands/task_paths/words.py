"""Which heads carry a task, in sentences: what is sure, what is not, and how far values agree with real removal."""

from __future__ import annotations

from attnscope.commands.paths.vocabulary import head_name, signed
from attnscope.commands.task_paths.record import Agreement, TaskHead, TaskPaths
from attnscope.core.words import count, numeral
from attnscope.reports.document import Document, Figure, Section, Table, drawn_by, rows
from attnscope.reports.words import Verdict, listed
from attnscope.stats.spread import Correlation

HEADING = ("head", "value", "error", "95% interval", "sure", "lost when removed")
FEW_PROMPTS = 10
FEWEST_FOR_SIGNS = 6  # of five, all speak for one sign in more than 5 of 100 draws
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
        caption="Points: mean Shapley value over prompts. Lines: 95% interval of each head over prompts drawn again. "
        "Faint: zero cannot be excluded once all heads are looked at.",
        summary="Mean value of the largest heads with their intervals.",
    )
    values = Figure(
        "values",
        "All heads",
        drawn_by(f"{CHARTS}:head_map", task),
        caption="Mean value of every head; orange adds, blue takes away.",
    )
    background = (
        "On every prompt a path through k heads is shared equally among them: that is a head's Shapley value, exactly. "
        "Values of single prompts are averaged, and prompts are drawn again and again to learn how far the average can "
        "be trusted."
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
        "Values beside real removal",
        drawn_by(f"{CHARTS}:removal_scatter", task),
        caption=f"Every head; removed means {replaced}, and everything behind it recomputes. On the dashed line both "
        "numbers are the same.",
        summary="Mean value of every head and what the target loses without it.",
    )
    agreement = Table(("of every head", "with", "Spearman", "Pearson"), agreement_rows(task), align="llrr", brief=0)
    background = (
        "A value says what a head carries while everything else stays where this text put it. When the head is really "
        f"removed ({replaced}), patterns, norms and gates behind it move: where that matters, the two numbers part. "
        "Intervals are 95% over prompts."
    )
    return (Section("Removal", background=(background,), figures=(scatter,), tables=(agreement,)),)


def verdict(task: TaskPaths) -> Verdict:
    sure = [one for one in task.heads if one.sure]
    what = f"{target_words(task)} of {count(len(task.prompts), 'prompt')}"
    if len(task.prompts) < 2:
        return Verdict("warning", "One prompt has no error bar: give two or more to learn which heads carry a task.")
    if len(task.prompts) < FEWEST_FOR_SIGNS:
        few = count(len(task.prompts), "prompt")
        return Verdict("warning", f"From {few} no sign of a head can be told from chance: give six or more.")
    if not sure:
        return Verdict("warning", f"No head of {len(task.places)} can be told from zero in {what}.")
    adds, takes = ([one for one in sure if side * one.value > 0] for side in (1, -1))
    if not adds:
        return Verdict("note", f"No head surely adds to {what}; {_named(takes)} {_speak(takes)} against it.")
    said = f"{_named(adds)} {'carries' if len(adds) == 1 else 'carry'} {what}"
    against = f"; {_named(takes)} {_speak(takes)} against it" if takes else ""
    return Verdict("note", f"{said[0].upper()}{said[1:]}{against}.")


def _speak(heads: list[TaskHead]) -> str:
    return "speaks" if len(heads) == 1 else "speak"


def _named(heads: list[TaskHead]) -> str:
    rest = len(heads) - NAMED
    words = [f"{head_name(one.block, one.head)} ({signed(one.value)} ± {numeral(one.error, 2)})" for one in heads]
    return listed([*words[:NAMED], *([f"{count(rest, 'other')}"] if rest > 0 else [])])


def target_words(task: TaskPaths) -> str:
    return "the logit of the right token" if task.kind == "logit" else "the right token's logit less the wrong one's"


def _sentences(task: TaskPaths) -> tuple[str, ...]:
    said = []
    value, alone = (sum(getattr(one, name) for one in task.prompts) / len(task.prompts) for name in ("value", "alone"))
    said.append(
        f"On average over prompts the target is {numeral(value)}; paths through no head give {signed(alone)}, and the "
        f"{len(task.places)} heads together {signed(value - alone)}."
    )
    if len(task.prompts) >= FEWEST_FOR_SIGNS:
        sure = sum(one.sure for one in task.heads)
        said.append(
            f"The sign of {count(sure, 'head')} of {len(task.places)} is known, with 95% confidence for all heads "
            "together; bars and intervals are of each head alone."
        )
    said += [agreement_words(one) for one in task.agreement[:2]]
    if parted := parting(task):
        said.append(parted)
    if 1 < len(task.prompts) < FEW_PROMPTS:
        few = count(len(task.prompts), "prompt")
        said.append(f"{few.capitalize()} are few: error bars are too narrow below {FEW_PROMPTS}.")
    return tuple(said)


def agreement_words(one: Agreement) -> str:
    what = f"{OF[one.of][0].upper()}{OF[one.of][1:]} and {AGAINST[one.against]} when a head is really removed"
    if one.pearson is None or one.spearman is None:
        return f"{what} cannot be correlated: one of them is the same for all heads."
    said = f"{what} correlate over heads with {_near(one.spearman)} (Spearman) and {_near(one.pearson)} (Pearson)."
    if one.spearman.reliable is None:
        return said
    first, second = (f"{side:.2f}" for side in one.spearman.reliable)
    return (
        f"{said} The reliabilities of the two over prompts are {first} and {second}: noise makes a "
        "correlation smaller, or larger where both share it."
    )


def _near(found: Correlation) -> str:
    return f"{found.value:.2f} [{found.low:.2f} to {found.high:.2f}]"


def parting(task: TaskPaths) -> str:
    """Return the head whose value differs most from the effect of its removal."""
    known = [one for one in task.heads if one.removed is not None]
    if not known:
        return ""
    worst = max(known, key=lambda one: abs(one.value - (one.removed or 0.0)))
    assert worst.removed is not None
    return (
        f"They part most at {head_name(worst.block, worst.head)}: its value is {signed(worst.value)}, all paths "
        f"through it carry {signed(worst.paths)}, and without it the target loses {signed(worst.removed)}. "
        "Between the first two, paths are shared with other heads; between the last two, what stands behind the head "
        "recomputes."
    )


def interval(one: TaskHead) -> str:
    if one.error == float("inf"):
        return "unknown"
    return f"{signed(one.low)} to {signed(one.high)}"


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
        (OF[one.of], AGAINST[one.against], *("" if c is None else _near(c) for c in (one.spearman, one.pearson)))
        for one in task.agreement
    )
