"""task_paths(model, prompts) -> TaskPaths: which heads carry a task, with error bars over its prompts.

    task = attnscope.task_paths("pocket", [{"text": "The cat saw the", "target": " dog"}, ...])
    task.sentences(), task.heads[:5], task.agreement, task.chart()

Every prompt is decomposed exactly, on its own (`pathways.heads`), and error bars come from resampling prompts. Values
are compared with the effect of removing a head and recomputing everything after it (`removals`). A value describes the
network frozen on this text: if the two differ, the network is not linear in that head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from attnscope.commands.paths.reading import aim, fitting, refusing_what_is_not_followed
from attnscope.commands.paths.removals import removals, surprise
from attnscope.commands.task_paths.ledger import Ledger
from attnscope.commands.task_paths.record import PromptRow, TaskPaths, Values
from attnscope.core.errors import RefusalError, nearest, one_of
from attnscope.core.progress import Advance, silent
from attnscope.data.prompts import Prompt, Prompts
from attnscope.data.prompts import prompts as read_prompts
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.intercepting.owners import every_tensor
from attnscope.hf.intercepting.restoring import looking_at, with_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, precision_and_place, refusing_what_does_not_run
from attnscope.hf.loading.one_text import Reading, reading
from attnscope.hf.loading.options import Loading, Sampling, TextOptions, with_options
from attnscope.hf.loading.outputs import Entries, entries
from attnscope.hf.loading.quiet import quiet
from attnscope.pathways.heads import head_table

PRECISIONS = ("float64", "float32")
REMOVALS = ("zero", "mean", "none")


@with_options(TextOptions)
@with_gradients()
def task_paths(
    model: str | Path | nn.Module | Loaded,
    prompts: str | Path | Prompts | Iterable[Any],
    *,
    removal: str = "zero",
    stack: str | None = None,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: Advance = silent,
    **kwargs: Unpack[TextOptions],
) -> TaskPaths:
    """Value every head on every prompt of a task, with error bars over prompts.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model. A model in memory is copied into `dtype`.
    prompts : str, Path, Prompts or iterable of mappings
        A file of JSON lines, or mappings with `text`, `target` and optionally `against`.
    removal : str
        What replaces a removed head: "zero", "mean" (over the prompt's tokens), or "none" to skip the removal check.
    stack : str, optional
        The stack to decompose. Default: the last.
    loading, sampling : Loading, Sampling
        How the model is loaded and how prompts begin.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords. `dtype` is "float64" or "float32".
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    checkpoint : Path, optional
        A file that keeps every finished prompt.
    resume : bool
        Continue from `checkpoint`.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    TaskPaths
        The value of every head, and the effect of removing it.

    Raises
    ------
    RefusalError
        If a prompt is unusable, the model cannot be decomposed, or `checkpoint` belongs to other settings.

    Examples
    --------
    >>> prompts = [{"text": "The cat saw the", "target": " do"}, {"text": "The man saw the", "target": " do"}]
    >>> task = attnscope.task_paths("pocket", prompts)
    """
    one_of(removal, REMOVALS, "removal")
    one_of(loading.dtype, PRECISIONS, "dtype")
    drawn = {"seed": loading.seed} if loading.random_init else {}
    task = read_prompts(prompts)
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    work = _Work(loaded, task, removal, stack, sampling.bos)
    settings = {
        "model": loaded.sha256 or loaded.name,
        "prompts": task.sha256,
        "dtype": loading.dtype,
        "stack": stack,
        "bos": sampling.bos,
        "removal": removal,
        **drawn,
    }
    ledger = Ledger(checkpoint, settings)
    with looking_at(loaded.model), quiet():
        work.look(progress)
        ledger.open(resume)
        for number, prompt in enumerate(task.every):
            if number not in ledger.rows:
                progress("prompts", len(ledger.rows), len(task))
                ledger.add(number, work.row(prompt))
        progress("prompts", len(task), len(task))
    return TaskPaths(
        model=loaded.name,
        class_name=loaded.class_name,
        stack=stack or work.structure.stacks[-1].name,
        dtype=str(precision_and_place(loaded.model)[0]).removeprefix("torch."),
        task=task.name,
        kind="logit" if task.every[0].against is None else "difference",
        removal=None if not work.sites else "zero" if removal == "zero" else "mean",
        prompts=tuple(ledger.rows[number] for number in range(len(task))),
        notes=tuple(work.notes),
        provenance=loaded.stamped(prompts={"name": task.name, "count": len(task), "sha256": task.sha256}, **drawn),
    )


class _Work:
    """One model and one task. The anatomy of the first prompt is used for all."""

    structure: Anatomy
    sites: dict[int, Site]

    def __init__(self, loaded: Loaded, task: Prompts, removal: str, stack: str | None, bos: str) -> None:
        self.loaded, self.task, self.removal, self.stack, self.bos = loaded, task, removal, stack, bos
        self.notes: dict[str, None] = {}

    def look(self, progress: Advance) -> None:
        """Find the heads, and read all prompts, so that an unusable prompt is refused at once and not after hours."""
        answers: Entries | None = None
        for number, prompt in enumerate(self.task.every):
            progress("reading prompts", number, len(self.task))
            with _at(prompt):
                read = reading(self.loaded, prompt.text, self.bos)
                if answers is None:
                    with refusing_what_does_not_run(self.loaded), torch.no_grad():
                        self.structure = anatomy(self.loaded.model, read.batch)
                        output = self.loaded.model(**read.batch)
                    self._refuse_stack()
                    answers = entries(self.loaded, next(t for t in every_tensor(output) if t.is_floating_point()))
                    if answers.output == "states":
                        raise RefusalError(
                            f"{self.loaded.class_name} returns states and no logits, so a prompt has no target: choose "
                            "a model with a head."
                        )
                numbers = [answers.number(word) for word in (prompt.target, prompt.against) if word is not None]
                if len(set(numbers)) < len(numbers):
                    raise RefusalError("Its target and 'against' are the same token: choose two that differ.")
        self.sites = {} if self.removal == "none" else self._removable()

    def _refuse_stack(self) -> None:
        names = [one.name for one in self.structure.stacks]
        if not names:
            raise RefusalError(
                f"{self.loaded.class_name} has no blocks that pass a stream of tokens on: choose another model."
            )
        if self.stack is not None and self.stack not in names:
            raise RefusalError(f"There is no stack called '{self.stack}'.{nearest(self.stack, names)}")

    def _removable(self) -> dict[int, Site]:
        try:
            return prunable(self.loaded.model, self.structure, self.stack)
        except RefusalError as refusal:
            self.notes[f"Values are not checked by removing heads: {refusal}"] = None
            return {}

    def row(self, prompt: Prompt) -> PromptRow:
        with _at(prompt):
            read = reading(self.loaded, prompt.text, self.bos)
            with fitting(len(read.words)):
                return self._valued(prompt, read)

    def _valued(self, prompt: Prompt, read: Reading) -> PromptRow:
        loaded = self.loaded
        with refusing_what_is_not_followed(loaded):
            network = freeze(loaded.model, read.batch, self.structure, self.stack)
        goal = aim(loaded, network, read, prompt.target, prompt.against, None)
        assert goal.entry is not None
        table = head_table(network, goal.target)
        removed = None
        if self.sites:
            how: Literal["zero", "mean"] = "zero" if self.removal == "zero" else "mean"
            removed = removals(loaded, read, goal, self.sites, network.layers, how, silent)
        for note in goal.notes:
            self.notes[f"{prompt.place}: {note}"] = None
        return PromptRow(
            place=prompt.place,
            text=prompt.text,
            target=goal.goal.word or "",
            against=goal.goal.other,
            tokens=len(read.words),
            value=float(goal.target(network.output)),
            loss=float(surprise(network.output, goal)[0]),
            alone=float(table.lengths[0]),
            values=_nested(table.shapley),
            paths=_nested(table.contributions.sum(-1)),
            removal=removed,
        )


@contextmanager
def _at(prompt: Prompt) -> Iterator[None]:
    """Add the name of the prompt to a refusal."""
    try:
        yield
    except RefusalError as refusal:
        raise RefusalError(f"{prompt.place}: {refusal.sentence}") from refusal


def _nested(values: Tensor) -> Values:
    return tuple(map(tuple, values.tolist()))
