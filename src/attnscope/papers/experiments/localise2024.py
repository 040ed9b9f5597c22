"""Self-attention localises when the spectrum of W_Q W_K^T concentrates (arXiv:2402.02098).

table      own-token attention and entropy of one block with random weights W = W_Q W_K^T of size d x d and a given
           eta = tr(W) / (sqrt(d) ||W||_F)
collapse   the same with weights four times smaller and larger, and how different tokens still are after eight blocks:
           uniform attention makes tokens alike; attention to one random key has no entropy left
LocAteR    a penalty that shrinks ||W||_F and keeps the trace fixed, on a small language model (the embedded book)
pocket     eta of every head of the embedded model, compared with the attention of tokens to themselves

The table uses the sizes of an earlier measurement (width 64, 128 tokens). The language model is far smaller than the
paper's and has rotary positions, which are applied after W_Q and W_K; the penalty is our version of theirs
(`papers/trials/localising.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Figure, Point, Result, Session, claims, experiment, median
from attnscope.papers.trials.curves import Row, Rows, curves, measure_seeds, rank_correlation, select
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
    """Return means over several draws, because own-token attention varies by some hundredths between single draws."""
    rows = []
    for size in (SMALL, PLAIN, LARGE):
        for eta in params.etas:
            some = [
                one_layer(params.tokens, params.width, eta, size, 1000 * seed + draw, params.depth)
                for draw in range(params.draws)
            ]
            means = {name: sum(row[name] for row in some) / len(some) for name in ("own", "entropy", "left")}
            rows.append({"part": "table", "eta": eta, "size": size, "seed": seed} | means)
    return rows


def models(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    return [
        {"part": "LocAteR"} | localised(params.growth, strength, params.held, seed, session)
        for strength in params.strengths
    ]


def numbers_of(rows: Rows) -> dict[str, float]:
    plain = select(rows, part="table", size=PLAIN)

    def cell(size: float, eta: float) -> Row:
        return select(rows, part="table", size=size, eta=eta)[0]

    def off(column: str, before: Mapping[float, float]) -> float:
        return max(float(abs(row[column] - before[row["eta"]])) for row in plain if row["eta"] in before)

    own, entropy = [row["own"] for row in plain], [row["entropy"] for row in plain]
    bare, *regular = select(rows, part="LocAteR")
    strongest, chosen = regular[-1], min(regular, key=lambda row: row["loss_to_choose_by"])
    return {
        "own_token_difference": off("own", BEFORE),
        "entropy_difference": off("entropy", BEFORE_ENTROPY),
        "least_step_of_own_token": min(after - before for before, after in itertools.pairwise(own)),
        "largest_step_of_entropy": max(after - before for before, after in itertools.pairwise(entropy)),
        "left_added_by_eta": cell(PLAIN, 1.0)["left"] - cell(PLAIN, 0.0)["left"],
        "left_added_by_eta_where_sharp": cell(LARGE, 1.0)["left"] - cell(LARGE, 0.0)["left"],
        "left_added_by_size": cell(PLAIN, 1.0)["left"] - cell(SMALL, 1.0)["left"],
        "left_uniform": cell(SMALL, 0.0)["left"],
        "left_sharp": cell(LARGE, 0.0)["left"],
        "entropy_lost_by_size": cell(SMALL, 0.0)["entropy"] - cell(LARGE, 0.0)["entropy"],
        "entropy_localised": cell(PLAIN, 1.0)["entropy"],
        "loss_over_chance_of_plain": bare["loss"] / bare["chance"],
        "loss_over_chance_of_strongest": strongest["loss"] / strongest["chance"],
        "loss_over_chance_of_chosen": chosen["loss"] / chosen["chance"],
        "eta_added": strongest["eta"] - bare["eta"],
        "own_token_added": strongest["own"] - bare["own"],
        "entropy_added": strongest["entropy"] - bare["entropy"],
        "chosen_strength": chosen["strength"],
        "loss_added_by_chosen": chosen["loss"] - bare["loss"],
    }


BOTH_LEARNED = "loss_over_chance_of_plain <= 0.7, loss_over_chance_of_strongest <= 0.7"
CLAIMS = claims(
    PAPER,
    f"""
    eta_decides: Own-token attention and entropy against eta, at equal ||W||_F, equal an earlier measurement.
        expected: own-token attention within .03, entropy within .15, at every eta
        holds: own_token_difference <= 0.03, entropy_difference <= 0.15
    monotone: With a more concentrated spectrum, attention stays more with its token and has less entropy.
        expected: own-token attention grows and entropy falls from every eta to the next
        holds: least_step_of_own_token > 0, largest_step_of_entropy < 0; fails: least_step_of_own_token < -0.05
    small_weights_collapse_rank: With a small spectrum attention is uniform, and tokens become alike.
        expected: eight blocks leave at least .5 less of the differences with weights a quarter as large (eta 1)
        holds: left_added_by_size >= 0.5; fails: left_added_by_size <= 0
    a_wide_spectrum_collapses_entropy: With a wide spectrum around zero attention falls on few random keys.
        expected: entropy lower by half of ln(tokens) (2.43), from weights a quarter to four times as large (eta 0)
        holds: entropy_lost_by_size >= 2.43; fails: entropy_lost_by_size <= 0
    a_concentrated_one_avoids_rank_collapse: With a spectrum concentrated away from zero, at the same ||W||_F, tokens
            stay apart.
        expected: eight blocks leave at least .5 more with eta 1 than with eta 0 (weights of the table), entropy above
            0.1
        holds: left_added_by_eta >= 0.5, entropy_localised >= 0.1; fails: left_added_by_eta <= 0
    so_it_does_where_attention_is_sharp: Attention to few random keys makes tokens alike, as uniform attention does; a
            concentrated spectrum does not (our question).
        expected: eight blocks leave at least .5 more with eta 1 than with eta 0, weights four times as large
        holds: left_added_by_eta_where_sharp >= 0.5; fails: left_added_by_eta_where_sharp <= 0
    the_penalty_concentrates: LocAteR makes the spectrum more concentrated in training.
        expected: mean eta larger by .1 with the strongest penalty; both models learned (loss at most .7 of chance)
        holds: eta_added >= 0.1; fails: eta_added <= 0
        given: {BOTH_LEARNED}
    the_penalty_localises: With LocAteR tokens attend more to themselves.
        expected: own-token attention larger by at least .02 with the strongest penalty; both models learned
        holds: own_token_added >= 0.02; fails: own_token_added <= -0.02
        given: {BOTH_LEARNED}
    the_penalty_helps: LocAteR lowers the loss of a language model.
        expected: lower by at least .01 nats a letter, on other text than the penalty's strength was chosen on
        holds: loss_added_by_chosen <= -0.01; fails: loss_added_by_chosen >= 0.01
        given: loss_over_chance_of_plain <= 0.7, loss_over_chance_of_chosen <= 0.7
    """,
)


@experiment(
    title="When attention stays with its own token",
    paper=PAPER,
    summary="Own-token attention, entropy and rank against the spectrum of W_Q W_K^T, and a penalty that shapes it.",
    advice=(
        "Whether a head looks at its own token can be read from its weights: eta, the share of W_Q W_K^T that is a "
        "multiple of the identity (`qk_spectrum` in a scan). A penalty that concentrates the spectrum moves attention "
        "to the token itself and keeps tokens apart. On the loss of our small language model it had no effect in the "
        "quick run and a small good one in the longer runs (about a hundredth of a nat a letter): use it as a remedy "
        "for collapse, and measure before you expect more."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "50 s", "paper": "15 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def localise2024(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Row] = []
    for seed in seeds:
        rows += session.part(f"table-{seed}", partial(table, params, seed))
        rows += session.part(f"models-{seed}", partial(models, params, seed, session))
    heads = session.part("pocket", partial(in_a_trained_model, "pocket", params.samples, params.max_tokens))
    measured = measure_seeds(rows, seeds, numbers_of)
    return Result(measured, (*rows, *heads), figures(rows, heads, params), remarks(measured, heads))


def figures(rows: Rows, heads: Rows, params: Params) -> tuple[Figure, ...]:
    words = {SMALL: "a quarter as large", PLAIN: "as in the table", LARGE: "four times as large"}
    own, left = (curves(select(rows, part="table"), "eta", column, "size", words) for column in ("own", "left"))
    own += [Point(eta, value, "measured before", dashed=True) for eta, value in BEFORE.items()]
    arms = tuple(
        Point.over(
            [row[column] for row in select(rows, part="LocAteR", strength=strength)],
            f"penalty {strength:g}",
            column.replace("_", " "),
        )
        for strength in params.strengths
        for column in ("loss", "loss_to_choose_by", "own", "entropy", "eta")
    )
    spread = tuple(
        Point(rank, head[column], label)
        for column, label in (("eta", "eta"), ("own", "attention to oneself"))
        for rank, head in enumerate(sorted(heads, key=lambda head: head["eta"]), start=1)
    )
    random = f"Random weights, {params.tokens} tokens of width {params.width}; median and range over seeds."
    depth = f"What {params.depth} blocks leave of the differences between tokens"
    rescaled = "Attention alone; after every block tokens are rescaled to their length."
    nats = "Nats a letter on two halves of the held-out text; means over heads; relative entropy. Median over seeds."
    each = "Eta of every head, from its weights, and the attention of tokens to themselves on text: do both rise?"
    return (
        Figure("own_token", "Own-token attention against eta", random, "eta", "attention to oneself", tuple(own)),
        Figure("left", depth, rescaled, "eta", "|X - mean| / |X|", tuple(left)),
        Figure("locater", "A small language model with the penalty", nats, "", "", arms, kind="table"),
        Figure("pocket", "Heads of the embedded model", each, "head, by its eta", "", spread),
    )


def remarks(measured: Mapping[str, Sequence[float]], heads: Rows) -> tuple[str, ...]:
    correlation = rank_correlation([head["eta"] for head in heads], [head["own"] for head in heads])
    return (
        "What follows: with random weights eta alone moves attention from everywhere to the token itself, and the "
        f"penalty does raise it ({median(measured['eta_added']):+.2f}); in the small model attention of tokens to "
        f"themselves then changed by {median(measured['own_token_added']):+.3f}, and with the penalty chosen on other "
        f"held-out text ({median(measured['chosen_strength']):g}) the loss by "
        f"{median(measured['loss_added_by_chosen']):+.3f} nats a letter. Watch eta and entropy together (attnscope "
        "scan --measures qk_spectrum,entropy) before you use such a penalty.",
        f"At eta 0, {median(measured['left_uniform']):.2g} of the differences between tokens is left where attention "
        f"is uniform (weights a quarter as large), and {median(measured['left_sharp']):.2g} where it is sharp (four "
        "times as large). Where both are small, rank does not say which of the two it is; entropy does.",
        f"In the {len(heads)} heads of the embedded model eta and own-token attention have a rank correlation of "
        f"{correlation:.2f}: what weights imply for isotropic tokens is not what heads do on text, whose tokens are "
        "not isotropic and whose positions act behind W.",
    )
