"""An experiment small enough to run in every test: trained parts, a figure of every kind, text that must be escaped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.commands.treat.train import Recipe, train
from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.models.tasks import loss_on, sort_task

NASTY = "<script>alert(1)</script>\"'&[x]"


@dataclass(frozen=True)
class Params:
    steps: int = 6
    word: str = NASTY


def trained(params: Params, seed: int, session: Session) -> dict[str, Any]:
    task = sort_task(20, 5, seed)
    model = Nano(Config(vocab_size=10, width=8, heads=2, layers=1, norm="post", max_tokens=8), seed)
    losses = train(
        model,
        lambda m, rng: loss_on(task, m, rng, 4),
        Recipe(params.steps, 1e-2),
        seed=seed,
        kept=session.state_path(f"part-{seed}"),
        advance=session.advance,
    )
    return {"seed": seed, "losses": losses}


@experiment(
    title=f"Title {NASTY}",
    paper="0000.00000",
    summary=f"Summary {NASTY}.",
    presets={"quick": Params(), "paper": Params(steps=20)},
    takes={"quick": "no time", "paper": "no time"},
    seeds={"quick": 2, "paper": 3},
    claims=(
        Claim("held", "0000.00000", f"Held {NASTY}", "finite", (Bound("loss", "<=", 1e9),)),
        Claim("missed", "0000.00000", "Missed", "tiny", (Bound("loss", "<=", 1e-9),)),
        Claim("denied", "0000.00000", "Denied", "huge", (Bound("loss", ">=", 1e9),), (Bound("loss", "<=", 1e8),)),
        Claim("left", "0000.00000", "Left out", "something", (Bound("unmeasured", ">=", 0.0),)),
    ),
)
def stand_in(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    parts = [session.part(f"part-{seed}", partial(trained, params, seed, session)) for seed in seeds]
    rows = tuple(
        Point(step, loss, f"{NASTY} {part['seed']}", NASTY, 0.9 * loss, 1.1 * loss)
        for part in parts
        for step, loss in enumerate(part["losses"])
    )
    marked = tuple(replace(row, panel=f"panel {int(row.x) % 2}", dashed=int(row.x) % 2 == 1) for row in rows)
    words = (f"Figure {NASTY}", f"Caption {NASTY}", "x", "y")
    figures = (
        Figure("curves", *words, rows, log=True),
        Figure("bars", *words, rows, "bars"),
        Figure("tracks", *words, marked, "tracks"),
    )
    return Result({"loss": [part["losses"][-1] for part in parts]}, tuple(parts), figures, (f"Remark {NASTY}",))
