"""Re-run a paper's claims: `reproduce("dong2021", out="folder")` gives verdicts, numbers, charts and a page.

    attnscope.reproduce()                          all experiments with their claims
    attnscope.reproduce("dong2021")                quick, in memory
    attnscope.reproduce("dong2021", preset="paper", seeds=5, out="dong2021", resume=True)

A claim that does not hold is a result like any other. An interrupted run (Ctrl-C, a full disk) leaves a checkpoint, and
`resume=True` continues from it to the same numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from operator import index
from pathlib import Path
from typing import overload

from attnscope import __version__
from attnscope.commands.reproduce.record import CHARTS, PAGE, RESULTS, Reproduction
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Experiment, Result
from attnscope.core.files import named_path
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import experiments
from attnscope.core.stamp import numbered_seeds
from attnscope.papers.cards import card_named
from attnscope.papers.checkpoints import SavedSession


@overload
def reproduce(paper: None = None) -> tuple[Experiment, ...]: ...
@overload
def reproduce(
    paper: str,
    preset: str = "quick",
    *,
    seeds: int | Sequence[int] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    progress: Advance = silent,
) -> Reproduction: ...
def reproduce(
    paper: str | None = None,
    preset: str = "quick",
    *,
    seeds: int | Sequence[int] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    progress: Advance = silent,
) -> Reproduction | tuple[Experiment, ...]:
    """Re-run the claims of one paper, or list all experiments.

    Parameters
    ----------
    paper : str, optional
        The name of an experiment. If it is left out, all experiments are returned.
    preset : str
        "quick", or another preset of the experiment, such as "paper".
    seeds : int or sequence of int, optional
        How many seeds to use, or a list of them. Default: the preset's.
    out : str or Path, optional
        A folder for numbers, charts and the page.
    resume : bool
        Continue an interrupted run from the checkpoint in `out`.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Reproduction or tuple of Experiment
        The verdict on each claim, with numbers. A claim that does not hold is a result like any other.

    Raises
    ------
    RefusalError
        If the experiment or the preset is unknown, or `resume` is given without `out`.

    Examples
    --------
    >>> names = [experiment.name for experiment in attnscope.reproduce()]
    >>> found = attnscope.reproduce("dong2021")  # doctest: +SKIP
    """
    if paper is None:
        return tuple(experiments().values())
    chosen = experiment_named(paper)
    if preset not in chosen.presets:
        raise RefusalError(f"There is no preset called '{preset}'.{nearest(preset, chosen.presets)}")
    which = seeds_of(chosen.seeds[preset] if seeds is None else seeds)
    folder = None if out is None else named_path(out, "folder")
    if resume and folder is None:
        raise RefusalError("Only a run with a folder can be resumed: name the folder with `out=`.")
    params = chosen.presets[preset]
    plan = {
        "experiment": chosen.name,
        "preset": preset,
        "params": asdict(params),
        "seeds": which,
        "attnscope": __version__,
    }
    session = SavedSession(folder, plan, progress)
    session.open(resume)
    with session.interruptible(), one_thread():
        result = chosen.run(params, which, session)
    done = recorded(chosen, preset, which, result, session.seconds)
    if folder is not None:
        done.save(folder / RESULTS)  # before the charts, so that the numbers are saved even if drawing fails
        progress("drawing", 0, 0)
        draw(done, folder)
        session.clear()
    return done


def recorded(chosen: Experiment, preset: str, seeds: tuple[int, ...], result: Result, seconds: float) -> Reproduction:
    """Return the record of a finished experiment: plain data with a verdict on each claim."""
    measured = {
        name: tuple(math.nan if value is None else float(value) for value in values)
        for name, values in result.measured.items()
    }
    return Reproduction(
        attnscope=__version__,
        experiment=chosen.name,
        title=chosen.title,
        paper=chosen.paper,
        summary=chosen.summary,
        preset=preset,
        params=plain(asdict(chosen.presets[preset])),
        seeds=seeds,
        seconds=round(seconds, 1),
        claims=chosen.judged(replace(result, measured=measured)),
        remarks=result.remarks,
        measured=measured,
        records=tuple(plain(result.records)),
        figures=result.figures,
        advice=chosen.advice,
    )


def draw(done: Reproduction, folder: Path) -> None:
    """Save every chart as PNG and SVG, then write the page."""
    from attnscope.reports.export import save

    for figure in done.figures:
        chart = done.chart(figure.name)
        stem = re.sub(r"[^\w.-]+", "-", figure.name)
        for suffix in (".png", ".svg"):
            save(chart, folder / CHARTS / f"{stem}{suffix}")
    done.write_page(folder / PAGE)


def experiment_named(paper: str) -> Experiment:
    """Find an experiment by name, or by arXiv number if only one experiment has it."""
    known = experiments()
    return known[card_named(paper, {name: experiment.card for name, experiment in known.items()}).name]


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    try:
        which = tuple(index(seed) for seed in numbered_seeds(seeds, "the whole experiment"))
    except TypeError:
        raise RefusalError("Every seed is a whole number: say how many, or which in a list.") from None
    if not which or len(set(which)) < len(which) or min(which) < 0:
        raise RefusalError("An experiment needs at least one seed, each once and not negative: try `seeds=3`.")
    return which


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the context, so that sums are taken in the same order everywhere; models here are small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
