"""Unraveling attention via convex duality (arXiv:2205.08078): the floor under every training of heads, certified.

linear     heads sum_j X W1_j X^T X W2_j with weight decay: the convex twin solved by a proximal method of our own, by
           CVXPY, written down as heads, and met from above by descent with 1, 2, ... heads
gated      the same with gates that a ReLU would open, fixed beforehand: a nuclear norm for each gate
digits     handwritten digits, each row of pixels a token: a size at which the certificate is printed, and CVXPY is slow

Data of the first two are random; sizes and penalty are those measured before (12 sequences, 4 tokens, width 3,
2 answers, beta 2). Heads have no softmax: the theorem is about these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment, median
from attnscope.papers.trials.clipped_networks import digits_at_hand
from attnscope.papers.trials.convex_floor import NOT_INSTALLED, digits_floor, floor_and_heads
from attnscope.papers.trials.curves import by_seed, curve

PAPER = "2205.08078"
KINDS = ("linear", "gated")


@dataclass(frozen=True)
class Params:
    samples: int = 12
    tokens: int = 4
    width: int = 3
    answers: int = 2
    beta: float = 2.0
    gates: int = 3
    heads: tuple[int, ...] = (1, 2, 3, 4, 6)
    starts: int = 3
    descent: int = 600
    digits_beta: float = 5.0
    digits_accuracy: float = 1e-4
    digits_steps: int = 2000
    digits_descent: int = 60


FULL = replace(Params(), starts=10, descent=2000, digits_beta=2.0, digits_accuracy=1e-5, digits_descent=400)


def digits_part(params: Params, seed: int) -> dict[str, Any]:
    return digits_floor(params.digits_beta, params.digits_accuracy, seed, params.digits_steps, params.digits_descent)


def of(rows: Sequence[Mapping[str, Any]], part: str, **which: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part and all(row[key] == value for key, value in which.items())]


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for kind in KINDS:
        floor = of(rows, "floor", kind=kind)[0]
        heads = of(rows, "heads", kind=kind)
        numbers[f"{kind}_gap"] = floor["gap"]
        numbers[f"{kind}_written_down"] = floor["written_down"]
        if floor["cvxpy"] is not None:
            numbers[f"{kind}_beside_cvxpy"] = floor["cvxpy"]
        numbers[f"{kind}_lowest_descent"] = min(min(row["all"]) for row in heads)
        numbers[f"{kind}_one_head"] = heads[0]["best"]
        enough = [row["best"] for row in heads if row["heads"] >= floor["largest_rank"]]
        if enough:
            numbers[f"{kind}_enough_heads"] = enough[0]
    for row in of(rows, "digits"):
        numbers |= {f"digits_{name}": row[name] for name in ("gap", "written_down", "descent", "heads")}
        numbers["digits_right_above_majority"] = row["right"] - row["majority"]
    return numbers


def twice(*bounds: tuple[str, Any, float]) -> tuple[Bound, ...]:
    return tuple(Bound(f"{kind}_{name}", relation, limit) for kind in KINDS for name, relation, limit in bounds)


CLAIMS = (
    Claim(
        "optimum_is_certified",
        PAPER,
        "The convex twin is solved to global optimality: the duality gap bounds what is left.",
        "gap at most 1e-6 of the objective, heads with and without gates",
        holds=twice(("gap", "<=", 1e-6)),
    ),
    Claim(
        "optimum_is_cvxpys",
        PAPER,
        "Our proximal method finds CVXPY's optimum.",
        "within 1e-5 of it (not run without the extra `convex`)",
        holds=twice(("beside_cvxpy", "<=", 1e-5)),
        fails=(Bound("linear_beside_cvxpy", ">=", 1e-2),),
    ),
    Claim(
        "heads_written_down",
        PAPER,
        "The optimum is as many heads as it has rank: its singular vectors are their weights, at the same cost.",
        "cost within 1e-8 of the optimum, in float64",
        holds=twice(("written_down", "<=", 1e-8)),
    ),
    Claim(
        "never_beaten",
        PAPER,
        "Training heads by descent never gets below the convex optimum, whatever their number and start.",
        "no start lower by more than 1e-6 of it (the gap allowed above)",
        holds=twice(("lowest_descent", ">=", -1e-6)),
        fails=(Bound("linear_lowest_descent", "<=", -1e-4),),
    ),
    Claim(
        "one_head_is_not_enough",
        PAPER,
        "With fewer heads than the rank, descent stays above.",
        "one head: best start above by at least .01 of the optimum",
        holds=twice(("one_head", ">=", 0.01)),
    ),
    Claim(
        "enough_heads_meet_it",
        PAPER,
        "With as many heads as the rank, or more, descent meets it.",
        "best start above by at most .002 of the optimum (measured before, other data: nothing with 6 heads)",
        holds=twice(("enough_heads", "<=", 0.002)),
    ),
    Claim(
        "certified_on_digits",
        PAPER,
        "On a real task the optimum is certified, better than chance, and not beaten by descent.",
        "gap at most 1e-3 of the objective, at least .3 above the majority, descent not lower by more than 1e-3",
        holds=(
            Bound("digits_gap", "<=", 1e-3),
            Bound("digits_right_above_majority", ">=", 0.3),
            Bound("digits_descent", ">=", -1e-3),
            Bound("digits_written_down", "<=", 1e-8),
        ),
    ),
)


@experiment(
    title="The convex floor under heads",
    paper=PAPER,
    summary="Heads without softmax have a convex twin: its optimum, certified, is what training can reach at best.",
    advice=(
        "For attention without softmax (linear, or with fixed ReLU gates) training can be judged, not only "
        "compared: the convex twin gives the best loss there is, with a certificate, and its rank says how many "
        "heads are needed. If training stays above it, add heads up to that rank or restart; beyond it more heads "
        "are waste. Use it as an oracle on small problems, such as probes on frozen tokens; it does not speak of "
        "softmax attention."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "16 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def convex2022(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Mapping[str, Any]] = []
    for seed in seeds:
        for kind in KINDS:
            gates = params.gates if kind == "gated" else 0
            rows += session.part(f"{kind}-{seed}", partial(floor_and_heads, params, gates, seed, session))
        if digits_at_hand():
            session.advance("digits", seeds.index(seed), len(seeds))
            rows.append(session.part(f"digits-{seed}", partial(digits_part, params, seed)))
    measured: dict[str, list[float]] = {}
    for some in by_seed(rows, seeds):
        for name, value in numbers_of(some).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, tuple(rows), figures(rows), remarks(measured, of(rows, "floor")))


def figures(rows: Sequence[Mapping[str, Any]]) -> tuple[Figure, ...]:
    heads = [p for kind in KINDS for p in curve(of(rows, "heads", kind=kind), "heads", "best", f"{kind} heads")]
    floors = [
        Point.over([row[what] for row in of(rows, "floor", kind=kind)], kind, words)
        for kind in KINDS
        for what, words in (("objective", "optimum"), ("gap", "gap, relative"), ("rank", "heads needed"))
    ]
    return (
        Figure(
            "descent",
            "Training from above",
            "Best of several starts, over the certified optimum; median and range over seeds.",
            "heads (for each gate)",
            "cost above the optimum, relative",
            tuple(heads),
            log=True,
        ),
        Figure("floors", "The optimum and its certificate", "Median over seeds.", "", "", tuple(floors), kind="table"),
    )


def remarks(measured: Mapping[str, Sequence[float]], floors: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    left = measured.get("linear_enough_heads")
    enough = f"{100 * median(left):.2g}%" if left else "was not tried"
    said = [
        "What follows: a layer whose loss does not fall can be too narrow or badly trained, and for heads of this kind "
        f"the two can be told apart: one head stayed {100 * median(measured['linear_one_head']):.0f}% above the "
        f"optimum at its best, with as many heads as the optimum has rank {enough}. For heads with softmax there is no "
        "such floor; the number of heads that this one asks for is a guess to begin with, not a law."
    ]
    if "digits_gap" in measured:
        said.append(
            f"Digits: {median(measured['digits_heads']):.0f} heads are optimal at this penalty, certified to "
            f"{median(measured['digits_gap']):.1e} of the objective; a short descent ended "
            f"{100 * median(measured['digits_descent']):.1f}% above."
        )
    for row in floors:
        if row["cvxpy"] is None and row["cvxpy_said"] != NOT_INSTALLED:
            said.append(
                f"CVXPY did not solve {row['kind']} heads, seed {row['seed']}, to optimality ({row['cvxpy_said']}): "
                "nothing is compared with it there."
            )
    if not digits_at_hand() or any(row["cvxpy_said"] == NOT_INSTALLED for row in floors):
        said.append("CVXPY or digits were left out: pip install 'attnscope[convex]' brings both.")
    return tuple(said)
