"""Run a paper's claims again: `reproduce("dong2021", out="folder")` gives verdicts, numbers, charts and a page.

    attnscope.reproduce()                          every paper that can be run, with its claims
    attnscope.reproduce("dong2021")                quick, in memory
    attnscope.reproduce("dong2021", preset="paper", seeds=5, out="dong2021", resume=True)

A claim that does not hold is a result like any other. What stops a run (Ctrl-C, a full disk) leaves the checkpoint, and
`resume=True` goes on from there to the same numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from importlib.resources import files
from operator import index
from pathlib import Path
from typing import Any, overload

from attnscope import __version__
from attnscope.commands.reproduce.record import CHARTS, PAGE, RESULTS, Reproduction
from attnscope.core.card import digest, names
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.experiment import Bound, Claim, Experiment, ExperimentCard, Result
from attnscope.core.files import named_path
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import experiments
from attnscope.core.stamp import numbered_seeds
from attnscope.papers.desk import KeepingDesk

# What can be reproduced, without importing it: the experiments import torch, and a list of them should not.
#
# `cards.json`, beside this file, holds the card of every experiment with the hash of the file that defines it; it is
# written by `tools/experiment_cards.py` (`make tables`). A file that is new or has changed since is imported and asked
# itself, so the list is right either way, and quick where nothing has changed.

ROOM = "attnscope.papers.experiments"
FILE = "cards.json"


def cards() -> dict[str, ExperimentCard]:
    """Every experiment's card, by name."""
    written = _written()
    return {name: _card(name, written.get(name)) for name in names(ROOM)}


def card_named(paper: str, known: Mapping[str, ExperimentCard]) -> ExperimentCard:
    """By name, or by the number of its paper where that is one experiment's alone."""
    by_number = [one for one in known.values() if one.paper == paper.lower().removeprefix("arxiv:")]
    if len(by_number) == 1:
        return by_number[0]
    if paper not in known:
        raise RefusalError(f"There is no experiment called '{paper}'.{nearest(paper, known)}")
    return known[paper]


def cards_json(experiments: Mapping[str, Experiment]) -> bytes:
    """The file beside this one."""
    data = {name: {"sha256": digest(ROOM, name), **_document(one.card)} for name, one in sorted(experiments.items())}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _card(name: str, written: Mapping[str, Any] | None) -> ExperimentCard:
    if written is not None and written["sha256"] == digest(ROOM, name):
        return _read(name, written)
    from attnscope.core.registry import experiments

    return experiments()[name].card


@cache
def _written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files("attnscope.papers").joinpath(FILE).read_text("utf-8"))
    return found


def _document(card: ExperimentCard) -> dict[str, Any]:
    return {
        "title": card.title,
        "paper": card.paper,
        "summary": card.summary,
        "advice": card.advice,
        "takes": dict(card.takes),
        "seeds": dict(card.seeds),
        "claims": [
            {
                "name": claim.name,
                "paper": claim.paper,
                "statement": claim.statement,
                "expected": claim.expected,
                "holds": [[one.quantity, one.relation, one.limit] for one in claim.holds],
                "fails": [[one.quantity, one.relation, one.limit] for one in claim.fails],
                **({"given": [[one.quantity, one.relation, one.limit] for one in claim.given]} if claim.given else {}),
            }
            for claim in card.claims
        ],
    }


def _read(name: str, written: Mapping[str, Any]) -> ExperimentCard:
    claims = (
        Claim(
            claim["name"],
            claim["paper"],
            claim["statement"],
            claim["expected"],
            tuple(Bound(*one) for one in claim["holds"]),
            tuple(Bound(*one) for one in claim["fails"]),
            tuple(Bound(*one) for one in claim.get("given", ())),
        )
        for claim in written["claims"]
    )
    words = {key: written[key] for key in ("title", "paper", "summary", "advice", "takes", "seeds")}
    return ExperimentCard(name=name, claims=tuple(claims), **words)


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
    chosen = experiment_named(paper)
    if preset not in chosen.presets:
        raise RefusalError(f"There is no preset called '{preset}'.{nearest(preset, chosen.presets)}")
    which = seeds_of(chosen.seeds[preset] if seeds is None else seeds)
    folder = None if out is None else named_path(out, "folder")
    if resume and folder is None:
        raise RefusalError("Only a run with a folder can be resumed: name the folder with --out.")
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
    done = recorded(chosen, preset, which, result, desk.seconds)
    if folder is not None:
        done.save(folder / RESULTS)  # data first: whatever happens while charts are drawn, the numbers are there
        progress("drawing", 0, 0)
        draw(done, folder)
        desk.clear()
    return done


def recorded(chosen: Experiment, preset: str, seeds: tuple[int, ...], result: Result, seconds: float) -> Reproduction:
    """What an experiment gave back, as a record: plain data, judged by the experiment's claims."""
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
    """Every figure as a file, and last the page."""
    from attnscope.report.export import save

    for figure in done.figures:
        chart = done.chart(figure.name)
        stem = re.sub(r"[^\w.-]+", "-", figure.name)
        for suffix in (".png", ".svg"):
            save(chart, folder / CHARTS / f"{stem}{suffix}")
    done.write_page(folder / PAGE)


def experiment_named(paper: str) -> Experiment:
    """By name, or by the number of its paper where that is one experiment's alone."""
    known = experiments()
    return known[card_named(paper, {name: one.card for name, one in known.items()}).name]


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
