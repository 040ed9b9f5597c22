"""A statistical theory of gated attention: gates, and finding the experts inside attention (arXiv:2602.01468).

module     an entry of attention is a triple sum over heads and keys of linear experts; a gate of 1 changes nothing
rates      least squares with one head too many, against the number of samples: the error of the experts, without a
           gate, with gates where the paper puts them (behind attention, on the values), and elsewhere

The set-up of the rates is ours (`papers/trials/gated_experts.py`): one output, one query, one true head, two fitted ones, the
error of every fitted expert. The paper's theorem is asymptotic and in the worst case; a curve at one truth can miss it
in either direction, so that no verdict here contradicts it. Up to 16,000 samples are drawn, which takes minutes. The
way the error is measured is the third one: the first two were mostly noise (4 and 6 of 10 claims held), and the claim
on the mean pools all kinds since then. A power of n differs by some tenths from seed to seed, so a claim on one is on
its 95% interval over seeds (Student's), and judged only where that is narrow enough to tell flat from n^(-1/4) and
where every fit came at least as low as the truth itself. The paper's own simulation was not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Result, Session, experiment
from attnscope.papers.trials.curves import by_seed, curve, power_of
from attnscope.papers.trials.gated_experts import KINDS, algebra, fitted
from attnscope.stats.intervals import paired_interval

PAPER = "2602.01468"
WORDS = {
    "none": "no gate",
    "output": "gate behind attention",
    "value": "gate on the values",
    "key": "gate on the keys",
    "layer": "gate behind the sum of heads",
    "self": "gate that reads what it gates",
}


@dataclass(frozen=True)
class Params:
    samples: tuple[int, ...] = (100, 1600)  # a point in the middle would say nothing of the slope
    starts: int = 2
    iterations: int = 120
    noise: float = 0.1
    tokens: int = 12
    width: int = 16
    heads: int = 4


FULL = replace(Params(), samples=(1000, 4000, 16000), starts=4, iterations=150)


def rates(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    rows = []
    for done, kind in enumerate(KINDS):
        for samples in params.samples:
            session.advance(f"{WORDS[kind]}, {samples} samples", done, len(KINDS))
            how: dict[str, Any] = {"starts": params.starts, "iterations": params.iterations, "noise": params.noise}
            rows.append(fitted(kind, samples, seed, **how))
    return rows


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Powers of n, of one seed."""
    numbers = {}
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        sizes = [row["samples"] for row in mine]
        numbers[f"loss_over_truth_{kind}"] = max(row["loss_over_truth"] for row in mine)
        numbers[f"power_of_n_{kind}"] = power_of(sizes, [row["expert_error"] for row in mine])
    # One small vector for each fit: its length varies by a factor of some, so all kinds are taken together.
    numbers["power_of_n_of_mean"] = power_of([row["samples"] for row in rows], [row["mean_error"] for row in rows])
    numbers["largest_loss_over_truth"] = max(row["loss_over_truth"] for row in rows)
    return numbers


RATE = 0.25  # the paper's n^(-1/4) with one head too many; nearly flat is what is surely slower, and does not rise so


def over_seeds(powers: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Of every power, the ends of the 95% interval of its mean over seeds, and how far they are from it: infinite with
    one seed."""
    found: dict[str, list[float]] = {}
    for name, values in powers.items():
        if name.startswith("power_of_n_"):
            told = paired_interval([0.0] * len(values), values)
            found |= {f"{name}_low": [told.low], f"{name}_high": [told.high], f"{name}_off": [told.high - told.mean]}
    return found


def arrived(kind: str) -> tuple[Bound, ...]:
    """Where a fit is worse than the truth itself, least squares has not been done, and where seeds leave the power
    open, nothing can be said of it."""
    return (Bound(f"loss_over_truth_{kind}", "<=", 1.0), Bound(f"power_of_n_{kind}_off", "<=", RATE))


def flat(kind: str) -> tuple[Bound, ...]:
    return (Bound(f"power_of_n_{kind}_low", ">", -RATE), Bound(f"power_of_n_{kind}_high", "<", RATE))


def falling(kind: str) -> tuple[Bound, ...]:
    return (Bound(f"power_of_n_{kind}_high", "<", 0.0),)


CLAIMS = (
    Claim(
        "attention_is_a_mixture",
        PAPER,
        "Every entry of multi-head attention is a sum over heads and keys of linear experts.",
        "largest difference from the module at most 1e-6 (named before), in float64",
        holds=(Bound("largest_difference_of_triple_sum", "<=", 1e-6),),
        fails=(Bound("largest_difference_of_triple_sum", ">=", 1e-2),),
    ),
    Claim(
        "a_gate_of_one_changes_nothing",
        PAPER,
        "With gates that are 1, gated attention is attention.",
        "largest difference at most 1e-6, behind attention and on the values, in float64",
        holds=(Bound("largest_difference_of_gate_of_one", "<=", 1e-6),),
        fails=(Bound("largest_difference_of_gate_of_one", ">=", 1e-2),),
    ),
    Claim(
        "fits_arrive",
        PAPER,
        "Least squares finds an answer at least as good as the truth, with and without gates (our check of the fits).",
        "loss at most that of the truth on the same samples, every kind and number of samples",
        holds=(Bound("largest_loss_over_truth", "<=", 1.0),),
    ),
    Claim(
        "without_a_gate_experts_are_not_found",
        PAPER,
        "Without a gate the error of the experts hardly falls with the number of samples.",
        "the 95% interval of the power of n over seeds is inside -.25 to .25 (our limits for nearly flat)",
        holds=flat("none"),
        given=arrived("none"),
    ),
    *(
        Claim(
            f"gated_{place}_finds_experts",
            PAPER,
            f"With the {WORDS[place]} the error of the experts falls as a power of n.",
            "the 95% interval of the power of n over seeds is below 0 (the paper: -1/4 for one head too many)",
            holds=falling(place),
            given=arrived(place),
        )
        for place in ("output", "value")
    ),
    *(
        Claim(
            f"gate_on_{place}_does_not_help",
            PAPER,
            f"A {WORDS[place]} does not help.",
            "the 95% interval of the power of n over seeds is inside -.25 to .25 (our limits for nearly flat)",
            holds=flat(place),
            given=arrived(place),
        )
        for place in ("key", "layer")
    ),
    Claim(
        "experts_that_are_not_linear_are_found",
        PAPER,
        "Where the gate reads what it gates, so that experts are not linear in their weights, they are found.",
        "the 95% interval of the power of n over seeds is below 0 (derived: -1/4 or faster)",
        holds=falling("self"),
        given=arrived("self"),
    ),
    Claim(
        "the_mean_of_experts_is_found_by_all",
        PAPER,
        "The mean of the experts that share a cell is found at the usual rate, with and without gates (derived).",
        "the 95% interval of the power of n over seeds, all kinds together, is below -.25 (derived: -1/2)",
        holds=(Bound("power_of_n_of_mean_high", "<", -RATE),),
        given=(Bound("largest_loss_over_truth", "<=", 1.0), Bound("power_of_n_of_mean_off", "<=", RATE)),
    ),
)


@experiment(
    title="Gated attention as a mixture of experts",
    paper=PAPER,
    summary="Attention as a triple sum of experts, and how fast they are found from samples, by where a gate stands.",
    advice=(
        "Do not add gates for the sake of heads that can be told apart: gates that multiply linearly leave two "
        "heads with equal logits free to share an expert in any way, and more data did not settle it in our fits; "
        "a gate that reads what it gates did in the small runs, and the large ones were too noisy to be judged. "
        "Predictions are as good either way. Add gates against sinks, and measure them with `attnscope treat`."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "15 min"},
    seeds={"quick": 6, "paper": 6},
    claims=CLAIMS,
)
def gated2026(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    exact = [{"seed": seed, **algebra(params.tokens, params.width, params.heads, seed)} for seed in seeds]
    rows = [row for seed in seeds for row in session.part(f"rates-{seed}", partial(rates, params, seed, session))]
    measured: dict[str, list[float]] = {
        "largest_difference_of_triple_sum": [one["triple_sum"] for one in exact],
        "largest_difference_of_gate_of_one": [one["gate_of_one"] for one in exact],
    }
    for some in by_seed(rows, seeds):
        for name, value in numbers_of(some).items():
            measured.setdefault(name, []).append(value)
    measured |= over_seeds(measured)
    figures = tuple(
        Figure(
            number,
            title,
            "One true head, two fitted; relative, median and range over seeds.",
            "samples",
            "error",
            tuple(
                point
                for kind in KINDS
                for point in curve([row for row in rows if row["kind"] == kind], "samples", number, WORDS[kind])
            ),
            log=True,
            log_x=True,
        )
        for number, title in (
            ("expert_error", "Error of every fitted expert"),
            ("mean_error", "Error of the mean of the fitted experts"),
        )
    )
    return Result(measured, (*exact, *rows), figures, remarks(measured))


def remarks(measured: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    powers = ", ".join(
        f"{measured[f'power_of_n_{kind}_low'][0]:.2f} to {measured[f'power_of_n_{kind}_high'][0]:.2f} ({WORDS[kind]})"
        for kind in KINDS
    )
    return (
        f"What follows: powers of n are, by 95% intervals over {len(measured['power_of_n_none'])} seeds, {powers}. "
        "A gate sigmoid(x W) that multiplies leaves the answer linear in the "
        "values: two heads that share logits and gates can split one expert between them in any way, so in this "
        "set-up more data do not tell them apart. A gate that reads what it gates takes that freedom away by "
        "derivation; its power differs much between seeds. For models in use the predictions are as good either way: "
        "the mean of the experts is found at the usual rate. Do not add gates for the sake of identifiable heads "
        "without measuring; add them for sinks (treat).",
    )
