"""Full attention, memories and windows in one model (arXiv:2602.01763): composing, recalling, finding partners.

by hand    hand-built models compute f_L(...f_1(q)) from tables in the text: with one exact lookup per block, up to
           4096 tokens and 8 functions; with fewer lookups; and with log2(L) + 1 blocks if tokens may look ahead
memories   how many pairs a delta rule, a sum and the best linear map of width d recall
partners   two lookups, of which a memory or a window does one, with keys of several widths
2-Sum      full attention in width log2 M; (B, k)-sparse attention, which represents a block by its mean key
trained    accuracy of small trained models with full blocks, memories or both and equally many weights, for several
           numbers of functions and symbols

The paper's lower bound says that L - 1 full blocks and any number of memories cannot compose L functions as long as
H d p <= n^(2^(-4L-2)), with H heads of width d and p bits per number. It applies only at sizes that no machine has: for
L = 2 and width 64 alone, n would have to exceed 64^1024. Nothing here tests it. We show a construction that suffices,
and how much a memory of a given width holds. Training is an experiment, not a proof: a task that was not learned may
still be learnable. The recipe (a loss on the answer after every function, several heads) was found by trying seeds 0
and 1, and the limits of the claims on trained models were set after those tries. After 300 steps two blocks of sums had
an accuracy of .3 and a narrow memory was at chance; after 800 the sums were at 1 and the memory at .26. How long
training takes and how much a block can hold are two questions. Claims on the second are judged only if the memory has
learned something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Result, Session, claims, experiment
from attnscope.papers.trials.composing import (
    Learning,
    by_hand,
    fewer_lookups,
    learned,
    partners,
    recall,
    sums_by_blocks,
    sums_by_full,
)
from attnscope.papers.trials.composing_figures import figures, remarks, width_for
from attnscope.papers.trials.curves import Row, Rows, measure_seeds, power_of, select

PAPER = "2602.01763"
FULL_LAYERS, MIXED, MEMORIES, SUMS = "full, full", "delta, full", "delta, delta", "linear, linear"


@dataclass(frozen=True)
class Params:
    folds: tuple[int, ...] = (1, 2, 4, 8)
    tokens: tuple[int, ...] = (64, 512, 4096)
    rows: int = 1
    fewer: tuple[int, int] = (8, 512)
    fewer_rows: int = 8
    memory: int = 32
    pairs: tuple[int, ...] = (8, 16, 32, 40, 64, 96, 128, 256)
    values: int = 2000
    partner_arguments: int = 16
    partner_widths: tuple[int, ...] = (4, 8, 12, 16, 32)
    partner_rows: int = 32
    sums: tuple[int, ...] = (64, 512, 4096)
    sparse_tokens: int = 512
    blocks: tuple[int, ...] = (8, 16, 32)
    kept: int = 2
    sum_widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    sum_rows: int = 4
    composing: tuple[tuple[int, int, int], ...] = ((2, 4, 400),)  # functions, symbols, steps
    recalling: tuple[int, ...] = (8, 24)
    recalling_steps: int = 400
    learning: Learning = field(default_factory=Learning)
    narrow: Learning = field(default_factory=lambda: Learning(heads=1, head_width=8))


FULL = replace(
    Params(),
    rows=4,
    fewer_rows=32,
    values=20_000,
    partner_rows=200,
    blocks=(8, 16, 32, 64),
    sum_widths=(16, 32, 64, 128, 256, 512, 1024),
    sum_rows=8,
    composing=((2, 8, 800), (2, 16, 800), (3, 8, 1200)),
    recalling=(4, 8, 16, 32),
    recalling_steps=1000,
)


def hand_built(params: Params, seed: int, session: Session) -> list[Row]:
    session.advance("lookups by hand", 0, 4)
    parts: dict[str, Any] = {
        "by hand": by_hand(params.folds, params.tokens, params.rows, seed),
        "fewer": fewer_lookups(*params.fewer, params.fewer_rows, seed),
    }
    session.advance("memories", 1, 4)
    parts["memory"] = [recall(params.memory, pairs, params.values, seed) for pairs in params.pairs]
    session.advance("partners", 2, 4)
    parts["partners"] = partners(params.partner_arguments, params.partner_widths, params.partner_rows, seed)
    session.advance("2-Sum", 3, 4)
    sparse = (params.sparse_tokens, params.blocks, params.kept, params.sum_widths, params.sum_rows, seed)
    parts |= {"sums": sums_by_full(params.sums, seed), "sparse": sums_by_blocks(*sparse)}
    return [{"part": part} | row | {"seed": seed} for part, rows in parts.items() for row in rows]


def trainings(params: Params) -> list[tuple[str, Learning, int, int, tuple[str, ...], int]]:
    """Return the models to train: part, training settings, functions, symbols, kinds of blocks, steps."""
    composing = [
        ("trained", params.learning, folds, arguments, kinds, steps)
        for folds, arguments, steps in params.composing
        for kinds in (("full",) * folds, ("delta",) * (folds - 1) + ("full",), ("delta",) * folds, ("linear",) * folds)
    ]
    recalling = [
        ("recalled", params.narrow, 1, arguments, (kind,), params.recalling_steps)
        for arguments in params.recalling
        for kind in ("full", "delta", "linear")
    ]
    return composing + recalling


def numbers_of(rows: Rows, params: Params) -> dict[str, float]:
    parts = {name: select(rows, part=name) for name in ("by hand", "fewer", "memory", "partners", "sums", "sparse")}
    made, fewer, memory = parts["by hand"], parts["fewer"], parts["memory"]
    inside = [row for row in memory if row["pairs"] <= params.memory]
    beyond = [row for row in memory if row["pairs"] > params.memory]
    wide = [row for row in parts["partners"] if row["width"] >= row["entries"] and "window" not in row["kinds"]]
    narrow = [row for row in parts["partners"] if row["width"] <= row["entries"] // 2]
    widths = [width_for(select(parts["sparse"], block=block)) for block in params.blocks]
    numbers = {
        "composer_accuracy": min(row["accuracy"] for row in select(made, kind="composer")),
        "most_tokens": max(row["tokens"] for row in made),
        "shortcut_accuracy": min(row["accuracy"] for row in select(made, kind="shortcut")),
        "shortcut_layers": max(row["layers"] for row in select(made, kind="shortcut")),
        "accuracy_with_one_fewer": fewer[-2]["accuracy"],
        "largest_accuracy_with_fewer": max(row["accuracy"] for row in fewer[:-1]),
        "memory_error_up_to_its_width": max(max(row["delta"], row["sum"]) for row in inside),
        "softmax_error": max(row["softmax"] for row in memory),
        **{
            f"{name}_error_from_formula": max(
                abs(row[name] - row[f"{name}_formula"]) / row[f"{name}_formula"] for row in beyond
            )
            for name in ("delta", "sum", "least")
        },
        "wide_memory_accuracy": min(row["accuracy"] for row in wide),
        "narrow_delta_accuracy": max(row["accuracy"] for row in select(narrow, kinds="full, delta")),
        "narrow_sum_accuracy": max(row["accuracy"] for row in select(narrow, kinds="full, linear")),
        "narrow_full_accuracy": min(
            row["accuracy"] for row in select(narrow, kinds=FULL_LAYERS) if 2 * row["width"] >= row["entries"]
        ),
        "window_accuracy": max(row["accuracy"] for row in select(parts["partners"], kinds="full, window")),
        "full_sum_right": min(min(row["found"], row["left"]) for row in parts["sums"]),
        "full_sum_with_the_same_codes": min(row["full"] for row in parts["sparse"]),
        "sparse_from_formula": max(abs(row["found"] - row["formula"]) for row in parts["sparse"]),
        "power_of_block": math.nan if any(map(math.isnan, widths)) else power_of(params.blocks, widths),
    }
    return numbers | trained_numbers(rows, params)


def trained_numbers(rows: Rows, params: Params) -> dict[str, float]:
    folds, arguments, _ = params.composing[0]
    composed = select(rows, part="trained", folds=folds, arguments=arguments)
    accuracy = {row["kinds"]: row["accuracy"] for row in composed}
    recalled = {(row["kinds"], row["arguments"]): row["accuracy"] for row in select(rows, part="recalled")}
    most, fits = max(params.recalling), min(params.recalling)
    return {
        "trained_full": accuracy[FULL_LAYERS],
        "trained_full_over_mixed": accuracy[FULL_LAYERS] - accuracy[MIXED],
        "trained_full_over_sums": accuracy[FULL_LAYERS] - accuracy[SUMS],
        "trained_full_over_memories": accuracy[FULL_LAYERS] - accuracy[MEMORIES],
        "recalled_by_full": recalled["full", most],
        "recalled_by_delta": recalled["delta", most],
        "recalled_by_delta_times_chance": recalled["delta", most] * most,
        "recalled_by_delta_within_its_width": recalled["delta", fits],
    }


CLAIMS = claims(
    PAPER,
    """
    one_lookup_a_layer: L blocks of full attention, of width logarithmic in n, compose L functions exactly.
        expected: every answer right for L up to 8 and n up to 4096
        holds: composer_accuracy >= 1, most_tokens >= 4000; fails: composer_accuracy <= 0.9
    fewer_lookups_guess: With fewer lookups the same model answers no better than chance.
        expected: at most .1 right with 1 to L - 1 lookups of 8 (chance .018: 56 symbols)
        holds: largest_accuracy_with_fewer <= 0.1; given: composer_accuracy >= 1
    looking_ahead_is_shorter [2412.02975]: Where tokens see later ones, log2(L) + 1 blocks suffice: bounds on depth are
            about causal models.
        expected: every answer right with at most 4 blocks for 8 functions
        holds: shortcut_accuracy >= 1, shortcut_layers <= 4
    a_memory_holds_its_width: A delta rule and a sum of width d recall d orthonormal pairs exactly; softmax recalls any
            number.
        expected: mean squared error at most 1e-24 (a few hundred roundings of 1e-16 each, squared)
        holds: memory_error_up_to_its_width <= 1e-24, softmax_error <= 1e-24
    and_errs_beyond: Beyond, the error is 2(1 - d/m) for the delta rule, about m/d - 1 for a sum, 1 - d/m for the best
            linear map (derived).
        expected: within .15 of each formula, at every number of pairs (draws of one set of bases)
        holds: delta_error_from_formula <= 0.15, sum_error_from_formula <= 0.15, least_error_from_formula <= 0.15
        fails: delta_error_from_formula >= 0.5
    a_memory_can_be_a_lookup: In a hybrid a memory as wide as its table has entries does an exact lookup.
        expected: every answer right at that width and every larger one
        holds: wide_memory_accuracy >= 1
    a_narrow_memory_cannot: At half that width full attention with the same random keys still does; a memory or a window
            does not.
        expected: full at least .99 at half; full and delta at most .8, full and sum at most .95 at half and below; full
            and a window of a quarter of the text at most .6 (limits ours, after two seeds: .6, .88, .3)
        holds: narrow_full_accuracy >= 0.99, narrow_delta_accuracy <= 0.8, narrow_sum_accuracy <= 0.95,
            window_accuracy <= 0.6
    two_sum_by_full_attention: One head of width log2 M finds every partner, and says where there is none.
        expected: every answer right for n up to 4096
        holds: full_sum_right >= 1
    two_sum_by_blocks: (B, k)-sparse attention needs a width that grows with B (here blocks show their mean key; the
            bound is for all ways).
        expected: full finds .99 with the same codes; blocks as many as a Gaussian count says, within .05; width for .9
            of the partners ~ B to the power .5 to 1 (derived: B ln(n/B), .6 to .8 here; the bound is the worst case)
        holds: full_sum_with_the_same_codes >= 0.99, sparse_from_formula <= 0.05, power_of_block >= 0.5,
            power_of_block <= 1
    composition_is_learned: Two full blocks learn to compose two functions.
        expected: at least .95 right on new functions (of 4 symbols in `quick`, 8 in `paper`)
        holds: trained_full >= 0.95; fails: trained_full <= 0.2
    a_hybrid_is_as_good: A memory that is wide enough, then full attention, is as good as two full blocks.
        expected: at most .05 behind (our limit)
        holds: trained_full_over_mixed <= 0.05; given: trained_full >= 0.9
    wide_memories_learn_it_too: Memories alone that are wide enough, delta rules or sums, learn to compose as well.
        expected: each at most .05 behind, with equally many weights and steps (our question; the paper's bound begins
            elsewhere)
        holds: trained_full_over_memories <= 0.05, trained_full_over_sums <= 0.05
        fails: trained_full_over_memories >= 0.5, trained_full_over_sums >= 0.5; given: trained_full >= 0.9
    trained_memories_hold_their_width: Trained on one lookup, a delta rule of width 8 recalls 8 entries but not the
            largest table; full attention of that width does.
        expected: at the largest table full at least .9 and delta at most .5, but three times chance, so that it has
            learned what it can hold; delta at least .8 at the smallest
        holds: recalled_by_full >= 0.9, recalled_by_delta <= 0.5, recalled_by_delta_within_its_width >= 0.8
        given: recalled_by_delta_times_chance >= 3
    """,
)


@experiment(
    title="What full attention can do that memories cannot",
    paper=PAPER,
    summary="Functions composed by hand-built and trained blocks; what a memory holds; 2-Sum by full and sparse heads.",
    advice=(
        "Each step of reasoning that looks something up in the text costs one block that can do an exact lookup. A "
        "linear or recurrent block holds about as many pairs as it is wide, and makes mistakes beyond: count the facts "
        "that must be recalled at once before you replace full blocks by memories. Memories that were wide enough "
        "learned what full blocks learn, only later; narrower ones recalled a part. The asymptotic lower bound of the "
        "paper cannot be tested at any size that runs."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "a minute", "paper": "21 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def hybrid2026(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Row] = []
    for seed in seeds:
        rows += session.part(f"hand-{seed}", partial(hand_built, params, seed, session))
        for part, how, folds, arguments, kinds, steps in trainings(params):
            work = partial(learned, how, folds, arguments, kinds, steps, seed, session)
            rows.append({"part": part} | session.part(f"{part}-{folds}-{arguments}-{'-'.join(kinds)}-{seed}", work))
    measured = measure_seeds(rows, seeds, partial(numbers_of, params=params))
    return Result(measured, tuple(rows), figures(rows), remarks(measured))
