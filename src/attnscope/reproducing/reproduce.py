"""Run a paper's claims again: `reproduce("dong2021", out="folder")` gives verdicts, numbers, charts and a page.

    attnscope.reproduce()                          every paper that can be run, with its claims
    attnscope.reproduce("dong2021")                quick, in memory
    attnscope.reproduce("dong2021", preset="paper", seeds=5, out="dong2021", resume=True)

A claim that does not hold is a result like any other. What stops a run (Ctrl-C, a full disk) leaves the checkpoint, and
`resume=True` goes on from there to the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import escape
from operator import index
from pathlib import Path
from typing import Any, overload

from attnscope import __version__
from attnscope.core.construction import Advance, silent
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import VERDICTS, Claim, Experiment, Result
from attnscope.core.files import write_atomically
from attnscope.core.plain import plain
from attnscope.core.registry import experiments
from attnscope.core.seeds import numbered_seeds
from attnscope.reproducing.desk import KeepingDesk

FORMAT = "attnscope-reproduction"
VERSION = 1
RESULTS = "results.json"
PAGE = "page.html"
CHARTS = "charts"


@dataclass(frozen=True, repr=False)
class Reproduction:
    """What came out: the claims beside their numbers, and everything behind them."""

    experiment: Experiment
    preset: str
    seeds: tuple[int, ...]
    result: Result
    claims: tuple[Claim, ...]
    seconds: float
    folder: Path | None = None

    @property
    def counts(self) -> dict[str, int]:
        return {verdict: sum(claim.verdict == verdict for claim in self.claims) for verdict in VERDICTS}

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(
            {
                "format": FORMAT,
                "version": VERSION,
                "attnscope": __version__,
                "experiment": self.experiment.name,
                "title": self.experiment.title,
                "paper": self.experiment.paper,
                "summary": self.experiment.summary,
                "preset": self.preset,
                "params": asdict(self.experiment.presets[self.preset]),
                "seeds": self.seeds,
                "seconds": round(self.seconds, 1),
                "counts": self.counts,
                "claims": [claim.to_json() for claim in self.claims],
                "remarks": self.result.remarks,
                "measured": self.result.measured,
                "records": self.result.records,
                "figures": [figure.to_json() for figure in self.result.figures],
            }
        )
        return data

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        return f"<Reproduction of {self.experiment.name}, preset {self.preset}: {counts}>"

    def _repr_html_(self) -> str:
        from attnscope.reporting.reproduction.page import measured_words

        rows = "".join(
            f"<tr><th>{escape(claim.verdict)}</th><td>{escape(claim.statement)}</td><td>{escape(claim.expected)}</td>"
            f"<td>{'<br>'.join(map(escape, measured_words(claim)))}</td></tr>"
            for claim in self.claims
        )
        said = "".join(f"<p>{escape(remark)}</p>" for remark in self.result.remarks)
        title = f"<p><b>{escape(self.experiment.title)}</b>, preset {escape(self.preset)}</p>"
        return f"<div>{title}<table>{rows}</table>{said}</div>"

    def save(self, folder: Path) -> None:
        """Results, charts, and last the page."""
        from attnscope.charts.experiment_figure import experiment_figure
        from attnscope.charts.export import save
        from attnscope.reporting.reproduction.page import render

        content = json.dumps(self.to_json(), allow_nan=False, indent=1).encode("utf-8")
        write_atomically(folder / RESULTS, content)
        for figure in self.result.figures:
            chart = experiment_figure(figure)
            for suffix in (".png", ".svg"):
                save(chart, folder / CHARTS / f"{figure.name}{suffix}")
        write_atomically(folder / PAGE, render(self).encode("utf-8", errors="replace"))


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
    """Run the claims of one paper; without a paper, say which there are. `seeds` is how many, or which."""
    if paper is None:
        return tuple(experiments().values())
    chosen = named(paper)
    if preset not in chosen.presets:
        raise RefusalError(f"There is no preset called '{preset}'.{nearest(preset, chosen.presets)}")
    which = seeds_of(chosen.seeds[preset] if seeds is None else seeds)
    folder = None if out is None else Path(out)
    if resume and folder is None:
        raise RefusalError("Only a run with a folder can be gone on with: name it with --out.")
    params = chosen.presets[preset]
    plan = {
        "experiment": chosen.name,
        "preset": preset,
        "params": asdict(params),
        "seeds": which,
        "attnscope": __version__,
    }
    desk = KeepingDesk(folder, plan, progress)
    desk.open(resume)
    with desk.interruptible(), one_thread():
        result = chosen.run(params, which, desk)
    done = Reproduction(chosen, preset, which, result, chosen.judged(result), desk.seconds, folder)
    if folder is not None:
        progress("drawing", 0, 0)
        done.save(folder)
        desk.clear()
    return done


def named(paper: str) -> Experiment:
    """By name, or by the number of its paper where that is one experiment's alone."""
    known = experiments()
    by_number = [one for one in known.values() if one.paper == paper.lower().removeprefix("arxiv:")]
    if len(by_number) == 1:
        return by_number[0]
    if paper not in known:
        raise RefusalError(f"There is no experiment called '{paper}'.{nearest(paper, known)}")
    return known[paper]


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    try:
        which = tuple(index(seed) for seed in numbered_seeds(seeds, "the whole experiment"))
    except TypeError:
        raise RefusalError("Every seed is a whole number: say how many, or which in a list.") from None
    if not which or len(set(which)) < len(which) or min(which) < 0:
        raise RefusalError("An experiment needs at least one seed, each once and none negative: try --seeds 3.")
    return which


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch adds in one order however many cores there are; these models are too small to gain from more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
