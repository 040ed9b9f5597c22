"""Unraveling attention via convex duality (arXiv:2205.08078): a certified lower bound on the training loss of heads.

linear     heads sum_j X W1_j X^T X W2_j with weight decay: we solve the convex twin by our own proximal method and by
           CVXPY, turn the solution back into heads, and compare it with gradient descent on 1, 2, ... heads
gated      the same with fixed 0/1 gates, like those of a ReLU: one nuclear norm per gate
digits     handwritten digits with rows of pixels as tokens: here CVXPY is slow, and the certificate still works

The first two use random data; their sizes and penalty are those of an earlier measurement (12 sequences, 4 tokens,
width 3, 2 outputs, beta 2). The theorem is about heads without softmax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.papers.trials.clipped_networks import digits_at_hand
from attnscope.papers.trials.convex_floor import NOT_INSTALLED, digits_floor, floor_and_heads
from attnscope.papers.trials.curves import Row, Rows, curves, measure_seeds, select

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


def numbers_of(rows: Rows) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for kind in KINDS:
        (floor,) = select(rows, part="floor", kind=kind)
        heads = select(rows, part="heads", kind=kind)
        numbers[f"{kind}_gap"] = floor["gap"]
        numbers[f"{kind}_written_down"] = floor["written_down"]
        if floor["cvxpy"] is not None:
            numbers[f"{kind}_beside_cvxpy"] = floor["cvxpy"]
        numbers[f"{kind}_lowest_descent"] = min(min(row["all"]) for row in heads)
        numbers[f"{kind}_one_head"] = heads[0]["best"]
        if enough := [row["best"] for row in heads if row["heads"] >= floor["largest_rank"]]:
            numbers[f"{kind}_enough_heads"] = enough[0]
    for row in select(rows, part="digits"):
        numbers |= {f"digits_{name}": row[name] for name in ("gap", "written_down", "descent", "heads")}
        numbers["digits_right_above_majority"] = row["right"] - row["majority"]
    return numbers


CLAIMS = claims(
    PAPER,
    """
    optimum_is_certified: The convex twin is solved to global optimality: the duality gap bounds the rest.
        expected: a gap of at most 1e-6 of the objective, with and without gates
        holds: linear_gap <= 1e-6, gated_gap <= 1e-6
    optimum_is_cvxpys: Our proximal method finds the same optimum as CVXPY.
        expected: within 1e-5 of it (not run without the extra `convex`)
        holds: linear_beside_cvxpy <= 1e-5, gated_beside_cvxpy <= 1e-5; fails: linear_beside_cvxpy >= 1e-2
    heads_written_down: The optimum can be written as one head per rank: its singular vectors are the weights.
        expected: the heads cost the optimum, within 1e-8, in float64
        holds: linear_written_down <= 1e-8, gated_written_down <= 1e-8
    never_beaten: Gradient descent never gets below the convex optimum, with any number of heads and any start.
        expected: no start lower by more than 1e-6 of the optimum (the gap allowed above)
        holds: linear_lowest_descent >= -1e-6, gated_lowest_descent >= -1e-6; fails: linear_lowest_descent <= -1e-4
    one_head_is_not_enough: With fewer heads than the rank, descent stays above the optimum.
        expected: the best start with one head is above it by at least .01 of the optimum
        holds: linear_one_head >= 0.01, gated_one_head >= 0.01
    enough_heads_meet_it: With as many heads as the rank, or more, descent reaches the optimum.
        expected: the best start is above it by at most .002 of the optimum (earlier, on other data: 0 with 6 heads)
        holds: linear_enough_heads <= 0.002, gated_enough_heads <= 0.002
    certified_on_digits: On a real task the optimum is certified, better than chance, and not beaten by descent.
        expected: gap at most 1e-3 of the objective, accuracy .3 above the majority, descent lower by at most 1e-3
        holds: digits_gap <= 1e-3, digits_right_above_majority >= 0.3, digits_descent >= -1e-3,
            digits_written_down <= 1e-8
    """,
)


@experiment(
    title="The convex floor under heads",
    paper=PAPER,
    summary="Heads without softmax have a convex twin: its certified optimum is the best that training can reach.",
    advice=(
        "For attention without softmax (linear, or with fixed ReLU gates) you can judge training, not only compare "
        "runs: the convex twin gives the best possible loss with a certificate, and its rank is the number of heads "
        "needed. If training stays above it, add heads up to that rank or restart; more heads are waste. Use it as an "
        "oracle on small problems, such as probes on frozen tokens. It says nothing about softmax attention."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "16 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def convex2022(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Row] = []
    digits = params.digits_beta, params.digits_accuracy, params.digits_steps, params.digits_descent
    for seed in seeds:
        for kind in KINDS:
            gates = params.gates if kind == "gated" else 0
            rows += session.part(f"{kind}-{seed}", partial(floor_and_heads, params, gates, seed, session))
        if digits_at_hand():
            session.advance("digits", seeds.index(seed), len(seeds))
            rows.append(session.part(f"digits-{seed}", partial(digits_floor, *digits, seed)))
    measured = measure_seeds(rows, seeds, numbers_of)
    return Result(measured, tuple(rows), figures(rows), remarks(measured, select(rows, part="floor")))


def figures(rows: Rows) -> tuple[Figure, ...]:
    labels = {kind: f"{kind} heads" for kind in KINDS}
    descent = tuple(curves(select(rows, part="heads"), "heads", "best", "kind", labels))
    floors = tuple(
        Point.over([row[column] for row in select(rows, part="floor", kind=kind)], kind, label)
        for kind in KINDS
        for column, label in (("objective", "optimum"), ("gap", "gap, relative"), ("rank", "heads needed"))
    )
    caption = "Best of several starts, relative to the certified optimum; median and range over seeds."
    axes = ("heads (for each gate)", "cost above the optimum, relative")
    return (
        Figure("descent", "Training from above", caption, *axes, descent, log=True),
        Figure("floors", "The optimum and its certificate", "Median over seeds.", "", "", floors, kind="table"),
    )


def remarks(measured: Mapping[str, Sequence[float]], floors: Rows) -> tuple[str, ...]:
    enough = measured.get("linear_enough_heads")
    above = f"{100 * median(enough):.2g}%" if enough else "was not tried"
    words = [
        "What follows: a block whose loss does not fall may be too narrow or badly trained; for heads of this kind the "
        f"two can be told apart. One head stayed {100 * median(measured['linear_one_head']):.0f}% above the optimum at "
        f"best; with as many heads as the optimum has rank: {above}. Heads with softmax have no such lower bound; "
        "the number of heads found here is only a first guess for them."
    ]
    if "digits_gap" in measured:
        words.append(
            f"Digits: {median(measured['digits_heads']):.0f} heads are optimal at this penalty, certified to "
            f"{median(measured['digits_gap']):.1e} of the objective; a short descent ended "
            f"{100 * median(measured['digits_descent']):.1f}% above."
        )
    words += [
        f"CVXPY did not solve {row['kind']} heads, seed {row['seed']}, to optimality ({row['cvxpy_said']}), so there "
        "is no comparison with it."
        for row in floors
        if row["cvxpy"] is None and row["cvxpy_said"] != NOT_INSTALLED
    ]
    if not digits_at_hand() or any(row["cvxpy_said"] == NOT_INSTALLED for row in floors):
        words.append("CVXPY or digits were left out: pip install 'attnscope[convex]' brings both.")
    return tuple(words)
