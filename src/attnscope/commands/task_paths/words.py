"""Which heads carry a task, in sentences: what is sure, what is not, and how far values agree with real removal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.commands.paths.chart_rows import head_name, signed
from attnscope.commands.task_paths.record import Agreement, TaskHead, TaskPaths
from attnscope.core.words import clean, count, numeral
from attnscope.reports.terminal import opening, section
from attnscope.reports.words import Verdict
from attnscope.stats.spread import Correlation

HEADING = ("head", "value", "standard error", "95% interval", "sure", "lost when removed")
FEW_PROMPTS = 10
FEWEST_FOR_SIGNS = 6  # of five, all speak for one sign in more than 5 of 100 draws
NAMED = 4  # heads that a sentence can name
SHOWN = 24  # heads that a chart and a table show
OF = {"values": "Shapley values", "paths": "all paths through a head"}
AGAINST = {"target": "the change of the target", "loss": "the growth of the loss"}
REPLACED = {"zero": "its output replaced by zero", "mean": "its output replaced by its mean over the prompt's tokens"}


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
    words = [*words[:NAMED], *([f"{count(rest, 'other')}"] if rest > 0 else [])]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def target_words(task: TaskPaths) -> str:
    return "the logit of the right token" if task.kind == "logit" else "the right token's logit less the wrong one's"


def sentences(task: TaskPaths) -> tuple[str, ...]:
    said = [verdict(task).sentence]
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
    """The head whose value is farthest from what its removal does."""
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


def lines(task: TaskPaths, most: int = SHOWN) -> list[tuple[str, ...]]:
    """One line for each head, the largest first."""
    made: list[tuple[str, ...]] = []
    for one in task.heads[:most]:
        error = "unknown" if one.error == float("inf") else numeral(one.error, 2)
        gone = "" if one.removed is None else signed(one.removed)
        made.append(
            (head_name(one.block, one.head), signed(one.value), error, interval(one), "yes" if one.sure else "no", gone)
        )
    return made


def agreement_lines(task: TaskPaths) -> list[tuple[str, ...]]:
    return [
        (OF[one.of], AGAINST[one.against], *("" if c is None else _near(c) for c in (one.spearman, one.pearson)))
        for one in task.agreement
    ]


# Which heads carry a task, in a terminal: the verdict, heads with their errors, and the check by removal.

BRIEF = 10  # heads without --verbose
SHORT = {"standard error": "error"}


def show(task: TaskPaths, *, verbose: bool = False) -> RenderableType:
    some = lines(task, len(task.heads) if verbose else BRIEF)
    columns = len(HEADING) - (task.removal is None)
    parts: list[RenderableType] = [
        *opening(verdict(task), f"{task.model}, {task.class_name}, {task.dtype}"),
        Text(""),
        *(Text(clean(sentence)) for sentence in sentences(task)[1:]),
        *(Text(clean(note), style="dim") for note in (task.notes if verbose else task.notes[:2])),
        section("Heads, the largest mean value first"),
        _table(tuple(SHORT.get(word, word) for word in HEADING[:columns]), [line[:columns] for line in some]),
    ]
    if task.agreement and verbose:
        parts += [
            section("Values beside real removal (95% intervals over prompts)"),
            _table(("of every head", "with", "Spearman", "Pearson"), agreement_lines(task)),
        ]
    return Group(*parts)


def _table(heading: tuple[str, ...], body: list[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for place in range(len(heading)):
        table.add_column(justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    table.add_row(*(Text(word, style="dim") for word in heading))
    for line in body:
        table.add_row(*(Text(clean(cell), style="" if n else "bold") for n, cell in enumerate(line)))
    return table
