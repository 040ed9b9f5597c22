"""Universal approximation with softmax attention (arXiv:2504.15956): heads that clip, and networks made of them.

one head   clip(x, -5, 5) from p + 1 anchors: its error against p, sharp (beta large) and soft (beta x step = 1)
by hand    a function of one variable, linear between knots: one head for each knot
in place   a ReLU network trained on a function of two variables, then each unit exchanged for a head
digits     the same with a classifier of handwritten digits: how many answers change (needs scikit-learn)
trained    heads whose anchors are trained, 1 to 16 of them, beside a ReLU network with as many numbers

Everything is in float64: logits grow with p, and the identity behind the construction is about their differences. The
functions, sizes and training are ours; the paper's own experiments are on other ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment, median
from attnscope.papers.trials.clipped_networks import (
    HIGH,
    LOW,
    clipping_error,
    digits_at_hand,
    digits_by_heads,
    in_its_place,
    learned,
    wave_error,
)
from attnscope.papers.trials.curves import by_seed, curve, power_of

PAPER = "2504.15956"
SHARP = 1e4  # beta: anchors a hundredth of a step nearer have e^2 and more of the weight at 160 steps


@dataclass(frozen=True)
class Params:
    steps: tuple[int, ...] = (10, 40, 160)
    points: int = 20001
    wave_steps: tuple[int, ...] = (16, 64, 256)
    knots: int = 25
    widths: tuple[int, ...] = (2, 24, 12, 1)
    place_steps: tuple[int, ...] = (16, 64, 256)
    digit_widths: tuple[int, ...] = (32, 16)
    digit_steps: tuple[int, ...] = (2, 4, 16, 64)
    heads: tuple[int, ...] = (1, 2, 4, 8, 16)
    anchors: int = 8
    training: int = 1000


FULL = replace(
    Params(),
    steps=(10, 20, 40, 80, 160, 320),
    wave_steps=(16, 64, 256, 1024),
    place_steps=(16, 64, 256, 1024),
    training=4000,
)


def by_hand(params: Params) -> list[dict[str, Any]]:
    """One head and the wave: no seed decides anything here."""
    rows: list[dict[str, Any]] = []
    for steps in params.steps:
        for kind, beta in (("sharp", SHARP), ("soft", steps / (HIGH - LOW))):
            rows.append({"part": "one head", "kind": kind, "steps": steps} | clipping_error(steps, beta, params.points))
    for steps in params.wave_steps:
        rows.append({"part": "wave", "steps": steps} | wave_error(steps, params.knots, beta=50.0))
    return rows


def trained(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    session.advance("a network, unit by unit", 0, 3)
    rows = [{"part": "place"} | row for row in in_its_place(params.widths, params.place_steps, params.training, seed)]
    if digits_at_hand():
        session.advance("digits", 1, 3)
        found = digits_by_heads(params.digit_widths, params.digit_steps, params.training // 2, seed)
        rows += [{"part": "digits"} | row for row in found]
    for heads in params.heads:
        session.advance(f"{heads} heads", 2, 3)
        rows.append({"part": "trained"} | learned(heads, params.anchors, params.training, seed))
    return rows


def part(rows: Sequence[Mapping[str, Any]], name: str, **which: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == name and all(row[key] == value for key, value in which.items())]


def hand_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    numbers = {"identity_of_logits": max(row["identity"] for row in part(rows, "one head"))}
    for kind in ("sharp", "soft"):
        mine = part(rows, "one head", kind=kind)
        numbers[f"largest_{kind}_error_over_bound"] = max(row["error"] / row["bound"] for row in mine)
        numbers[f"least_{kind}_error_over_bound"] = min(row["error"] / row["bound"] for row in mine)
        numbers[f"power_of_steps_{kind}"] = power_of([row["steps"] for row in mine], [row["error"] for row in mine])
    waves = part(rows, "wave")
    numbers["wave_error_over_bound"] = max(row["beside_lines"] / row["bound"] for row in waves)
    numbers["power_of_steps_wave"] = power_of([row["steps"] for row in waves], [row["beside_lines"] for row in waves])
    return numbers


def seed_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    places, heads = part(rows, "place"), part(rows, "trained")
    errors = [row["heads"] for row in heads]
    numbers = {
        "network_error_over_bound": max(row["beside_network"] / row["bound"] for row in places),
        "power_of_steps_network": power_of([row["steps"] for row in places], [row["beside_network"] for row in places]),
        "trained_error_most_over_fewest_heads": errors[-1] / errors[0],
        "largest_trained_error_over_one_with_fewer_heads": max(
            after / before for before, after in itertools.pairwise(errors)
        ),
        "trained_error_of_one_head": errors[0],
        "trained_error_over_units": errors[-1] / heads[-1]["units"],
    }
    for row in part(rows, "digits")[-1:]:
        numbers |= {"digits_same_answers": row["same"], "digits_network_right": row["network_right"]}
    return numbers


CLAIMS = (
    Claim(
        "logits_are_squared_distances",
        PAPER,
        "Logits of a clipping head are -(y - anchor)^2 / step, up to a constant of the row.",
        "largest difference at most 16 units in the last place of the largest term (six operations each side)",
        holds=(Bound("identity_of_logits", "<=", 16 * 2.0**-53),),
        fails=(Bound("identity_of_logits", ">=", 1e-6),),
    ),
    Claim(
        "half_a_step",
        PAPER,
        "A sharp head is wrong by at most (b - a) / (2p), and by nearly that somewhere.",
        "largest error between .95 and 1 of the bound, for every p",
        holds=(Bound("largest_sharp_error_over_bound", "<=", 1.0), Bound("least_sharp_error_over_bound", ">=", 0.95)),
        fails=(Bound("largest_sharp_error_over_bound", ">", 1.01),),
    ),
    Claim(
        "twice_the_anchors_half_the_error",
        PAPER,
        "The error of a head halves when the number of anchors doubles, sharp or soft (beta x step = 1).",
        "power of p between -1.05 and -.95, both",
        holds=(
            *(Bound(f"power_of_steps_{kind}", ">=", -1.05) for kind in ("sharp", "soft")),
            *(Bound(f"power_of_steps_{kind}", "<=", -0.95) for kind in ("sharp", "soft")),
        ),
    ),
    Claim(
        "soft_heads_are_nearer",
        PAPER,
        "A head with beta x step = 1 is nearer than the bound of a sharp one (measured before: .56 to .58 of it).",
        "largest error at most .6 of (b - a) / (2p), for every p",
        holds=(Bound("largest_soft_error_over_bound", "<=", 0.6),),
    ),
    Claim(
        "a_function_of_one_variable",
        PAPER,
        "A sum of heads is as near to a piecewise linear function as its heads are to their units.",
        "error at most the sum of |weight| x half a step; power of p at most -.9",
        holds=(Bound("wave_error_over_bound", "<=", 1.0), Bound("power_of_steps_wave", "<=", -0.9)),
    ),
    Claim(
        "a_network_of_several_variables",
        PAPER,
        "Layers of heads in place of ReLU units give the network's answers, nearer with every anchor.",
        "error at most the bound carried through the layers; power of p at most -.8 (our limit; derived: -1)",
        holds=(Bound("network_error_over_bound", "<=", 1.0), Bound("power_of_steps_network", "<=", -0.8)),
    ),
    Claim(
        "a_classifier_of_digits",
        PAPER,
        "A trained classifier keeps its answers when every unit is exchanged for a head (64 anchors).",
        "at least .99 of the answers on images not trained on are the same, and the network has learned (.9 right)",
        holds=(Bound("digits_same_answers", ">=", 0.99), Bound("digits_network_right", ">=", 0.9)),
    ),
    Claim(
        "more_heads_less_error",
        PAPER,
        "Trained heads alone, without an MLP, fit a function better the more of them there are.",
        "16 heads at most .05 of the error of 1, which is itself under the variance; no step up by more than a tenth",
        holds=(
            Bound("trained_error_most_over_fewest_heads", "<=", 0.05),
            Bound("trained_error_of_one_head", "<=", 0.9),
            Bound("largest_trained_error_over_one_with_fewer_heads", "<=", 1.1),
        ),
    ),
)


@experiment(
    title="Attention alone approximates any function",
    paper=PAPER,
    summary="Heads that clip, built exactly; ReLU networks made of heads; error against anchors, sharpness and heads.",
    advice=(
        "Attention alone, without an MLP, can compute what ReLU networks compute: one head clips to within half a "
        "step of its anchors, and twice the anchors halve the error. This is of use to builders of hand-made "
        "models, and says that attention-only models fail for reasons of training, not of expressiveness. In "
        "practice an MLP does it cheaper; heads in its place are for proofs and for hardware that has nothing but "
        "attention."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "5 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def universal2025(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    hand = session.part("by-hand", partial(by_hand, params))
    rows = [row for seed in seeds for row in session.part(f"trained-{seed}", partial(trained, params, seed, session))]
    measured: dict[str, list[float]] = {name: [value] for name, value in hand_numbers(hand).items()}
    for some in by_seed(rows, seeds):
        for name, value in seed_numbers(some).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, (*hand, *rows), figures(params, hand, rows), remarks(measured, hand))


def figures(params: Params, hand: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> tuple[Figure, ...]:
    heads = [
        point
        for kind in ("sharp", "soft")
        for point in curve(part(hand, "one head", kind=kind), "steps", "error", f"{kind} head")
    ]
    bound = [
        Point(row["steps"], row["bound"], "(b - a) / (2p)", dashed=True) for row in part(hand, "one head", kind="sharp")
    ]
    inside = curve(part(hand, "one head", kind="soft"), "steps", "inside", "soft head, 1 and more inside the ends")
    networks = [
        *curve(part(hand, "wave"), "steps", "beside_lines", "one variable, by hand"),
        *curve(part(rows, "place"), "steps", "beside_network", "two variables, trained network"),
    ]
    fits = [
        *curve(part(rows, "trained"), "heads_number", "heads", f"trained heads of {params.anchors} anchors"),
        *curve(part(rows, "trained"), "heads_number", "units", "ReLU units, as many numbers", dashed=True),
    ]
    drawn = [
        Figure(
            "one_head",
            "One head as clip(x, -5, 5)",
            "Largest error against the number of anchors; a soft head is wrong at its ends and almost nowhere else.",
            "anchors",
            "largest error",
            (*heads, *inside, *bound),
            log=True,
            log_x=True,
        ),
        Figure(
            "networks",
            "Heads in the place of ReLU units",
            "Largest difference from the network that the heads stand for.",
            "anchors of a head",
            "largest difference",
            tuple(networks),
            log=True,
            log_x=True,
        ),
        Figure(
            "trained",
            "Heads that are trained",
            "Mean squared error over the variance of a function of two variables; median and range over seeds.",
            "heads",
            "error over variance",
            tuple(fits),
            log=True,
            log_x=True,
        ),
    ]
    if part(rows, "digits"):
        answers = [
            *curve(part(rows, "digits"), "steps", "same", "same answer as the network"),
            *curve(part(rows, "digits"), "steps", "heads_right", "heads right"),
            *curve(part(rows, "digits"), "steps", "network_right", "network right", dashed=True),
        ]
        words = "Share of held-out images; every unit of the classifier is a head."
        drawn.append(Figure("digits", "Digits read by heads", words, "anchors", "share", tuple(answers), log_x=True))
    return tuple(drawn)


def remarks(measured: Mapping[str, Sequence[float]], hand: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    soft = part(hand, "one head", kind="soft")[-1]
    said = (
        f"What follows: attention needs no MLP to be nonlinear. A head with fixed keys is a lookup table with "
        f"{soft['steps']} rows that softmax reads between the lines: inside its range a soft one is wrong by "
        f"{soft['inside']:.1e}, at its ends by {soft['error']:.1e}. It pays in size: a head stores a key and a value "
        "for every anchor, where a ReLU unit stores one of each. Where an MLP can stand it is the cheaper way; a head "
        "with keys that do not depend on the tokens (a learned prefix, a memory) is a small MLP: read it as one.",
        f"At equal size the trained heads' error was {median(measured['trained_error_over_units']):.2f} times that of "
        "ReLU units: the same order, and no claim about which is better.",
    )
    if "digits_same_answers" in measured:
        return said
    return (*said, "Digits were not read: pip install 'attnscope[convex]' brings scikit-learn and its images.")
