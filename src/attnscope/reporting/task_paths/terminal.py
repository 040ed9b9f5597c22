"""Which heads carry a task, in a terminal: the verdict, heads with their errors, and the check by removal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnscope.core.visible import clean
from attnscope.records.task_paths import TaskPaths
from attnscope.reporting.task_paths.words import HEADING, agreement_lines, lines, sentences, verdict
from attnscope.reporting.terminal import opening, section

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
