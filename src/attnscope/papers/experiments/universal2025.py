"""Universal approximation with softmax attention (arXiv:2504.15956): heads that clip, and networks made of them.

one head   clip(x, -5, 5) from p + 1 anchors: its error against p, if sharp (large beta) and if soft (beta x step = 1)
by hand    a function of one variable, interpolated linearly between knots by one head per interval
in place   a ReLU network trained on a function of two variables, in which each unit is then replaced by a head
digits     the same for a classifier of handwritten digits: how many answers change (needs scikit-learn)
trained    1 to 16 heads with trained anchors, compared with a ReLU network with equally many weights

Everything is computed in float64, because logits grow with p and the construction depends on their differences. The
functions, sizes and training are ours, not the paper's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.papers.trials import clipped_networks
from attnscope.papers.trials.curves import Rows, curve, curves, measure_seeds, power_in, select

PAPER = "2504.15956"
SHARP = 1e4  # beta: at 160 steps, an anchor nearer by a hundredth of a step gets at least e^2 times the weight


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
    """Return the errors of one head and of the wave, which depend on no seed."""
    rows: list[dict[str, Any]] = []
    for steps in params.steps:
        for kind, beta in (("sharp", SHARP), ("soft", steps / (clipped_networks.HIGH - clipped_networks.LOW))):
            rows.append(
                {"part": "one head", "kind": kind, "steps": steps}
                | clipped_networks.clipping_error(steps, beta, params.points)
            )
    for steps in params.wave_steps:
        rows.append({"part": "wave", "steps": steps} | clipped_networks.wave_error(steps, params.knots, beta=50.0))
    return rows


def trained(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    session.advance("a network, unit by unit", 0, 3)
    networks = clipped_networks.replaced_by_heads(params.widths, params.place_steps, params.training, seed)
    rows = [{"part": "place"} | row for row in networks]
    if clipped_networks.digits_at_hand():
        session.advance("digits", 1, 3)
        digits = clipped_networks.digits_by_heads(params.digit_widths, params.digit_steps, params.training // 2, seed)
        rows += [{"part": "digits"} | row for row in digits]
    for heads in params.heads:
        session.advance(f"{heads} heads", 2, 3)
        rows.append({"part": "trained"} | clipped_networks.learned(heads, params.anchors, params.training, seed))
    return rows


def hand_numbers(rows: Rows) -> dict[str, float]:
    numbers = {"identity_of_logits": max(row["identity"] for row in select(rows, part="one head"))}
    for kind in ("sharp", "soft"):
        of_kind = select(rows, part="one head", kind=kind)
        shares = [row["error"] / row["bound"] for row in of_kind]
        numbers[f"largest_{kind}_error_over_bound"] = max(shares)
        numbers[f"least_{kind}_error_over_bound"] = min(shares)
        numbers[f"power_of_steps_{kind}"] = power_in(of_kind, "steps", "error")
    waves = select(rows, part="wave")
    numbers["wave_error_over_bound"] = max(row["beside_lines"] / row["bound"] for row in waves)
    numbers["power_of_steps_wave"] = power_in(waves, "steps", "beside_lines")
    return numbers


def seed_numbers(rows: Rows) -> dict[str, float]:
    places, heads = select(rows, part="place"), select(rows, part="trained")
    errors = [row["heads"] for row in heads]
    numbers = {
        "network_error_over_bound": max(row["beside_network"] / row["bound"] for row in places),
        "power_of_steps_network": power_in(places, "steps", "beside_network"),
        "trained_error_most_over_fewest_heads": errors[-1] / errors[0],
        "largest_trained_error_over_one_with_fewer_heads": max(
            after / before for before, after in itertools.pairwise(errors)
        ),
        "trained_error_of_one_head": errors[0],
        "trained_error_over_units": errors[-1] / heads[-1]["units"],
    }
    for row in select(rows, part="digits")[-1:]:
        numbers |= {"digits_same_answers": row["same"], "digits_network_right": row["network_right"]}
    return numbers


CLAIMS = claims(
    PAPER,
    f"""
    logits_are_squared_distances: Logits of a clipping head are -(y - anchor)^2 / step, up to a constant of the row.
        expected: largest difference at most 16 units in the last place of the largest term (six operations each side)
        holds: identity_of_logits <= {16 * 2.0**-53}; fails: identity_of_logits >= 1e-6
    half_a_step: The error of a sharp head is at most (b - a) / (2p), and nearly that somewhere.
        expected: largest error between .95 and 1 of the bound, for every p
        holds: largest_sharp_error_over_bound <= 1, least_sharp_error_over_bound >= 0.95
        fails: largest_sharp_error_over_bound > 1.01
    twice_the_anchors_half_the_error: Twice the anchors halve the error of a head, sharp or soft (beta x step = 1).
        expected: power of p between -1.05 and -.95, both
        holds: power_of_steps_sharp >= -1.05, power_of_steps_soft >= -1.05, power_of_steps_sharp <= -0.95,
            power_of_steps_soft <= -0.95
    soft_heads_are_nearer: A head with beta x step = 1 is nearer than the bound of a sharp one (before: .56 to .58 of
            it).
        expected: largest error at most .6 of (b - a) / (2p), for every p
        holds: largest_soft_error_over_bound <= 0.6
    a_function_of_one_variable: A sum of heads is as near to a piecewise linear function as its heads are to their
            units.
        expected: error at most the sum of |weight| x half a step; power of p at most -.9
        holds: wave_error_over_bound <= 1, power_of_steps_wave <= -0.9
    a_network_of_several_variables: Blocks of heads instead of ReLU units give the network's answers, nearer with every
            anchor.
        expected: error at most the bound carried through the blocks; power of p at most -.8 (our limit; derived: -1)
        holds: network_error_over_bound <= 1, power_of_steps_network <= -0.8
    a_classifier_of_digits: A trained classifier keeps its answers when every unit is replaced by a head (64 anchors).
        expected: at least .99 of the answers on held-out images are the same, and the network has learned (.9 right)
        holds: digits_same_answers >= 0.99, digits_network_right >= 0.9
    more_heads_less_error: Trained heads alone, without an MLP, fit a function better the more of them there are.
        expected: 16 heads at most .05 of the error of 1, which is itself under the variance; no step up by more than a
            tenth
        holds: trained_error_most_over_fewest_heads <= 0.05, trained_error_of_one_head <= 0.9,
            largest_trained_error_over_one_with_fewer_heads <= 1.1
    """,
)


@experiment(
    title="Attention alone approximates any function",
    paper=PAPER,
    summary="Heads that clip, built exactly; ReLU networks made of heads; error against anchors, sharpness and heads.",
    advice=(
        "Attention alone, without an MLP, can compute what ReLU networks compute: one head clips to within half a step "
        "of its anchors, and twice the anchors halve the error. This is useful for hand-made models, and shows that "
        "attention-only models fail because of training, not of expressiveness. In practice an MLP is cheaper; heads "
        "instead of it are for proofs, and for hardware that has only attention."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "40 s", "paper": "5 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def universal2025(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    hand = session.part("by-hand", partial(by_hand, params))
    rows = [row for seed in seeds for row in session.part(f"trained-{seed}", partial(trained, params, seed, session))]
    measured = {name: [value] for name, value in hand_numbers(hand).items()}
    measured |= measure_seeds(rows, seeds, seed_numbers)
    return Result(measured, (*hand, *rows), figures(params, hand, rows), remarks(measured, hand))


def figures(params: Params, hand: Rows, rows: Rows) -> tuple[Figure, ...]:
    one_head = select(hand, part="one head")
    heads = (
        *curves(one_head, "steps", "error", "kind", {"sharp": "sharp head", "soft": "soft head"}),
        *curve(select(one_head, kind="soft"), "steps", "inside", "soft head, 1 and more inside the ends"),
        *(Point(row["steps"], row["bound"], "(b - a) / (2p)", dashed=True) for row in select(one_head, kind="sharp")),
    )
    networks = (
        *curve(select(hand, part="wave"), "steps", "beside_lines", "one variable, by hand"),
        *curve(select(rows, part="place"), "steps", "beside_network", "two variables, trained network"),
    )
    fits = (
        *curve(select(rows, part="trained"), "heads_number", "heads", f"trained heads of {params.anchors} anchors"),
        *curve(select(rows, part="trained"), "heads_number", "units", "ReLU units, as many weights", dashed=True),
    )
    ends = "Largest error against the number of anchors; a soft head is wrong at its ends and almost nowhere else."
    stands = "Largest difference from the network that the heads replace."
    variance = "Mean squared error over the variance of a function of two variables; median and range over seeds."
    log: dict[str, Any] = {"log": True, "log_x": True}
    drawn = [
        Figure("one_head", "One head as clip(x, -5, 5)", ends, "anchors", "largest error", heads, **log),
        Figure(
            "networks",
            "Heads instead of ReLU units",
            stands,
            "anchors of a head",
            "largest difference",
            networks,
            **log,
        ),
        Figure("trained", "Trained heads", variance, "heads", "error over variance", fits, **log),
    ]
    if digits := select(rows, part="digits"):
        answers = (
            *curve(digits, "steps", "same", "same answer as the network"),
            *curve(digits, "steps", "heads_right", "heads right"),
            *curve(digits, "steps", "network_right", "network right", dashed=True),
        )
        words = "Share of held-out images; every unit of the classifier is a head."
        drawn.append(Figure("digits", "Digits read by heads", words, "anchors", "share", answers, log_x=True))
    return tuple(drawn)


def remarks(measured: Mapping[str, Sequence[float]], hand: Rows) -> tuple[str, ...]:
    soft = select(hand, part="one head", kind="soft")[-1]
    words = (
        "What follows: attention needs no MLP to be nonlinear. A head with fixed keys is a lookup table with "
        f"{soft['steps']} rows between which softmax interpolates: inside its range the error of a soft one is "
        f"{soft['inside']:.1e}, at its ends {soft['error']:.1e}. It costs size: a head stores a key and a value for "
        "every anchor, a ReLU unit one of each. Where an MLP is possible it is cheaper; a head with keys that do not "
        "depend on the tokens (a learned prefix, a memory) is a small MLP: read it as one.",
        f"At equal size the error of trained heads was {median(measured['trained_error_over_units']):.2f} times that "
        "of ReLU units: the same order, and no claim about which is better.",
    )
    if "digits_same_answers" in measured:
        return words
    return (*words, "Digits were not read: pip install 'attnscope[convex]' brings scikit-learn and its images.")
