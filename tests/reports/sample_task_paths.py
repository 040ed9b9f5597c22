"""Heads over twenty-four prompts, made by hand: one that carries the task, one against it, others around zero."""

from __future__ import annotations

import math

from attnscope.commands.task_paths.record import PromptRow, Removal, TaskPaths

MEANS = ((2.0, 0.0, 0.1), (-1.0, 0.05, 0.0))


def sample_task_paths(prompts: int = 24, removal: bool = True) -> TaskPaths:
    rows = []
    for number in range(prompts):
        values = tuple(
            tuple(mean + 0.2 * math.sin(7 * number + 3 * block + head) for head, mean in enumerate(row))
            for block, row in enumerate(MEANS)
        )
        gone = tuple(tuple(1.2 * value + 0.1 for value in row) for row in values)
        total = sum(map(sum, values))
        rows.append(
            PromptRow(
                place=f"task.jsonl, line {number + 1}",
                text=f"Prompt {number} <b>",
                target=" right",
                against=" wrong",
                tokens=5,
                value=0.5 + total,
                loss=1.0,
                alone=0.5,
                values=values,
                paths=gone,
                removal=Removal(gone, gone) if removal else None,
            )
        )
    return TaskPaths(
        model="a model",
        class_name="Model",
        stack="decoder",
        dtype="float64",
        task="task.jsonl",
        kind="difference",
        removal="zero" if removal else None,
        prompts=tuple(rows),
        notes=("A note.",),
        provenance={"model": {"name": "a model"}},
    )
