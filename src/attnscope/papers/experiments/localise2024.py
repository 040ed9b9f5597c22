"""Self-attention localises when the spectrum of W_Q W_K^T concentrates (arXiv:2402.02098).

table      random weights with a given eta = tr(W) / (sqrt(d) ||W||_F): own-token attention and entropy of one layer
collapse   the same with weights four times smaller and larger, and what eight layers leave of the tokens' differences:
           uniform attention makes tokens alike, attention to one key by chance has no entropy left
LocAteR    a penalty that shrinks ||W||_F and holds the trace, on a small language model (the embedded book)
pocket     eta of every head of the embedded model beside what its tokens give to themselves

Sizes of the table are those measured before (width 64, 128 tokens). The language model is far smaller than the paper's
and has rotary positions, which act behind W; the penalty is our form of theirs (`papers/trials/localising.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Figure, Point, Result, Session, experiment, median
from attnscope.papers.trials.curves import by_seed, curve
from attnscope.papers.trials.localising import in_a_trained_model, localised, one_layer
from attnscope.papers.trials.sinks_and_spikes import Growth

PAPER = "2402.02098"
BEFORE = {0.0: 0.011, 0.25: 0.068, 0.5: 0.263, 0.75: 0.610, 0.9: 0.806, 1.0: 0.889}
BEFORE_ENTROPY = {0.0: 4.36, 0.25: 4.26, 0.5: 3.69, 0.75: 2.27, 0.9: 1.27, 1.0: 0.78}
SMALL, PLAIN, LARGE = 0.25, 1.0, 4.0


@dataclass(frozen=True)
class Params:
    tokens: int = 128
    width: int = 64
    etas: tuple[float, ...] = tuple(BEFORE)
    draws: int = 8
    depth: int = 8
    growth: Growth = Growth(steps=200, data="characters", tokens=64, rate=5e-3)  # noqa: RUF009  frozen
    strengths: tuple[float, ...] = (0.0, 0.01, 0.1)
    held: float = 1.0
    samples: int = 8
    max_tokens: int = 128


FULL = replace(
    Params(),
    draws=32,
    growth=Growth(steps=1500, data="characters", tokens=64, rate=5e-3),
    strengths=(0.0, 0.001, 0.01, 0.1),
    samples=32,
)


def table(params: Params, seed: int) -> list[dict[str, Any]]:
    """Means over draws: one draw of a weight matrix moves own-token attention by some hundredths."""
    rows = []
    for size in (SMALL, PLAIN, LARGE):
        for eta in params.etas:
            some = [
                one_layer(params.tokens, params.width, eta, size, 1000 * seed + draw, params.depth)
                for draw in range(params.draws)
            ]
            means = {name: sum(one[name] for one in some) / len(some) for name in ("own", "entropy", "left")}
            rows.append({"part": "table", "eta": eta, "size": size, "seed": seed} | means)
    return rows


def models(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    return [
        {"part": "LocAteR"} | localised(params.growth, strength, params.held, seed, session)
        for strength in params.strengths
    ]


def of(rows: Sequence[Mapping[str, Any]], part: str, **which: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part and all(row[key] == value for key, value in which.items())]


def numbers_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    plain = of(rows, "table", size=PLAIN)

    def cell(size: float, eta: float) -> Mapping[str, Any]:
        return of(rows, "table", size=size, eta=eta)[0]

    own, entropy = [row["own"] for row in plain], [row["entropy"] for row in plain]
    numbers = {
        "own_token_difference": max(abs(row["own"] - BEFORE[row["eta"]]) for row in plain if row["eta"] in BEFORE),
        "entropy_difference": max(
            abs(row["entropy"] - BEFORE_ENTROPY[row["eta"]]) for row in plain if row["eta"] in BEFORE_ENTROPY
        ),
        "least_step_of_own_token": min(after - before for before, after in itertools.pairwise(own)),
        "largest_step_of_entropy": max(after - before for before, after in itertools.pairwise(entropy)),
        "left_added_by_eta": cell(PLAIN, 1.0)["left"] - cell(PLAIN, 0.0)["left"],
        "left_added_by_eta_where_sharp": cell(LARGE, 1.0)["left"] - cell(LARGE, 0.0)["left"],
        "left_added_by_size": cell(PLAIN, 1.0)["left"] - cell(SMALL, 1.0)["left"],
        "left_uniform": cell(SMALL, 0.0)["left"],
        "left_sharp": cell(LARGE, 0.0)["left"],
        "entropy_lost_by_size": cell(SMALL, 0.0)["entropy"] - cell(LARGE, 0.0)["entropy"],
        "entropy_localised": cell(PLAIN, 1.0)["entropy"],
    }
    bare, *regular = of(rows, "LocAteR")
    strongest, chosen = regular[-1], min(regular, key=lambda row: row["loss_to_choose_by"])
    numbers |= {
        "loss_over_chance_of_plain": bare["loss"] / bare["chance"],
        "loss_over_chance_of_strongest": strongest["loss"] / strongest["chance"],
        "loss_over_chance_of_chosen": chosen["loss"] / chosen["chance"],
        "eta_added": strongest["eta"] - bare["eta"],
        "own_token_added": strongest["own"] - bare["own"],
        "entropy_added": strongest["entropy"] - bare["entropy"],
        "chosen_strength": chosen["strength"],
        "loss_added_by_chosen": chosen["loss"] - bare["loss"],
    }
    return numbers


def learned(*arms: str) -> tuple[Bound, ...]:
    """What a penalty does to models that learned nothing says nothing of it."""
    return tuple(Bound(f"loss_over_chance_of_{arm}", "<=", 0.7) for arm in arms)


CLAIMS = (
    Claim(
        "eta_decides",
        PAPER,
        "Own-token attention and entropy against eta, at equal ||W||_F, are those measured before.",
        "own-token attention within .03, entropy within .15, at every eta",
        holds=(Bound("own_token_difference", "<=", 0.03), Bound("entropy_difference", "<=", 0.15)),
    ),
    Claim(
        "monotone",
        PAPER,
        "The more the spectrum concentrates, the more attention stays with its token and the less entropy it has.",
        "own-token attention grows and entropy falls from every eta to the next",
        holds=(Bound("least_step_of_own_token", ">", 0.0), Bound("largest_step_of_entropy", "<", 0.0)),
        fails=(Bound("least_step_of_own_token", "<", -0.05),),
    ),
    Claim(
        "small_weights_collapse_rank",
        PAPER,
        "With a small spectrum attention is uniform, and tokens become alike.",
        "eight layers leave at least .5 less of the tokens' differences with weights a quarter as large (eta 1)",
        holds=(Bound("left_added_by_size", ">=", 0.5),),
        fails=(Bound("left_added_by_size", "<=", 0.0),),
    ),
    Claim(
        "a_wide_spectrum_collapses_entropy",
        PAPER,
        "With a wide spectrum around zero attention falls on few keys by chance.",
        "entropy lower by at least half of ln(tokens) (2.43), from weights a quarter to four times as large (eta 0)",
        holds=(Bound("entropy_lost_by_size", ">=", 2.43),),
        fails=(Bound("entropy_lost_by_size", "<=", 0.0),),
    ),
    Claim(
        "a_concentrated_one_avoids_rank_collapse",
        PAPER,
        "With a spectrum that is one lump away from zero, at the same ||W||_F, tokens stay apart.",
        "eight layers leave at least .5 more with eta 1 than with eta 0 (weights of the table), entropy above 0.1",
        holds=(Bound("left_added_by_eta", ">=", 0.5), Bound("entropy_localised", ">=", 0.1)),
        fails=(Bound("left_added_by_eta", "<=", 0.0),),
    ),
    Claim(
        "so_it_does_where_attention_is_sharp",
        PAPER,
        "Attention to few keys by chance makes tokens alike as uniform attention does; a lump does not (our question).",
        "eight layers leave at least .5 more with eta 1 than with eta 0, weights four times as large",
        holds=(Bound("left_added_by_eta_where_sharp", ">=", 0.5),),
        fails=(Bound("left_added_by_eta_where_sharp", "<=", 0.0),),
    ),
    Claim(
        "the_penalty_concentrates",
        PAPER,
        "LocAteR makes the spectrum more concentrated in training.",
        "mean eta larger by at least .1 with the strongest penalty, both models learning (loss at most .7 of chance)",
        holds=(Bound("eta_added", ">=", 0.1),),
        fails=(Bound("eta_added", "<=", 0.0),),
        given=learned("plain", "strongest"),
    ),
    Claim(
        "the_penalty_localises",
        PAPER,
        "With LocAteR tokens attend more to themselves.",
        "own-token attention larger by at least .02 with the strongest penalty, both models learning",
        holds=(Bound("own_token_added", ">=", 0.02),),
        fails=(Bound("own_token_added", "<=", -0.02),),
        given=learned("plain", "strongest"),
    ),
    Claim(
        "the_penalty_helps",
        PAPER,
        "LocAteR lowers the loss of a language model.",
        "lower by at least .01 nats a letter, on text beside that on which the penalty's strength was chosen",
        holds=(Bound("loss_added_by_chosen", "<=", -0.01),),
        fails=(Bound("loss_added_by_chosen", ">=", 0.01),),
        given=learned("plain", "chosen"),
    ),
)


@experiment(
    title="When attention stays with its own token",
    paper=PAPER,
    summary="Own-token attention, entropy and rank against the spectrum of W_Q W_K^T, and a penalty that shapes it.",
    advice=(
        "Whether a head looks at its own token can be read from its weights: eta, the share of W_Q W_K^T that is a "
        "multiple of the identity (`qk_spectrum` in a scan). A penalty that concentrates the spectrum moves "
        "attention to the token itself and keeps tokens apart. On the loss of our small language model it had no "
        "effect in the quick run and a small good one in the longer runs (about a hundredth of a nat a letter): use it "
        "as a remedy for collapse, and measure before you count on more."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def localise2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Mapping[str, Any]] = []
    for seed in seeds:
        rows += session.part(f"table-{seed}", partial(table, params, seed))
        rows += session.part(f"models-{seed}", partial(models, params, seed, session))
    heads = session.part("pocket", partial(in_a_trained_model, "pocket", params.samples, params.max_tokens))
    measured: dict[str, list[float]] = {}
    for some in by_seed(rows, seeds):
        for name, value in numbers_of(some).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, (*rows, *heads), figures(rows, heads, params), remarks(measured, heads))


def figures(
    rows: Sequence[Mapping[str, Any]], heads: Sequence[Mapping[str, Any]], params: Params
) -> tuple[Figure, ...]:
    words = {SMALL: "a quarter as large", PLAIN: "as in the table", LARGE: "four times as large"}
    own = [p for size in words for p in curve(of(rows, "table", size=size), "eta", "own", words[size])]
    own += [Point(eta, value, "measured before", dashed=True) for eta, value in BEFORE.items()]
    left = [p for size in words for p in curve(of(rows, "table", size=size), "eta", "left", words[size])]
    arms = [
        Point.over(
            [row[what] for row in of(rows, "LocAteR", strength=strength)],
            f"penalty {strength:g}",
            what.replace("_", " "),
        )
        for strength in params.strengths
        for what in ("loss", "loss_to_choose_by", "own", "entropy", "eta")
    ]
    spread = [
        Point(place, head[what], words_of)
        for what, words_of in (("eta", "eta"), ("own", "attention to oneself"))
        for place, head in enumerate(sorted(heads, key=lambda head: head["eta"]), start=1)
    ]
    return (
        Figure(
            "own_token",
            "Own-token attention against eta",
            f"Random weights, {params.tokens} tokens of width {params.width}; median and range over seeds.",
            "eta",
            "attention to oneself",
            tuple(own),
        ),
        Figure(
            "left",
            f"What {params.depth} layers leave of the tokens' differences",
            "Attention alone, tokens made as long as they were behind every layer.",
            "eta",
            "|X - mean| / |X|",
            tuple(left),
        ),
        Figure(
            "locater",
            "A small language model with the penalty",
            "Nats a letter on two halves of what was held out; means over heads; entropy over its largest. Median over "
            "seeds.",
            "",
            "",
            tuple(arms),
            kind="table",
        ),
        Figure(
            "pocket",
            "Heads of the embedded model",
            "Every head's eta, from its weights, and what its tokens give to themselves on text: do both rise?",
            "head, by its eta",
            "",
            tuple(spread),
        ),
    )


def rank_correlation(heads: Sequence[Mapping[str, Any]]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr([head["eta"] for head in heads], [head["own"] for head in heads]).statistic)


def remarks(measured: Mapping[str, Sequence[float]], heads: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return (
        "What follows: with random weights eta alone moves attention from everywhere to the token itself, and the "
        f"penalty does raise it ({median(measured['eta_added']):+.2f}); in the small model tokens then gave themselves "
        f"{median(measured['own_token_added']):+.3f}, and with the penalty that other held-out text chose "
        f"({median(measured['chosen_strength']):g}) the loss was {median(measured['loss_added_by_chosen']):+.3f} nats "
        "a letter. Watch eta and entropy together (attnscope scan --measures qk_spectrum,entropy) before taking a "
        "penalty into a recipe.",
        f"At eta 0, {median(measured['left_uniform']):.2g} is left of the tokens' differences where attention is "
        f"uniform (weights a quarter as large), and {median(measured['left_sharp']):.2g} where it is sharp (four times "
        "as large). Where both are small, rank does not say which of the two it is; entropy does.",
        f"In the {len(heads)} heads of the embedded model eta and own-token attention have a rank correlation of "
        f"{rank_correlation(heads):.2f}: what weights say of isotropic tokens is not what heads do on text, whose "
        "tokens are not isotropic and whose positions act behind W.",
    )
