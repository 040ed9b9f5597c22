"""Full attention, memories and windows in one model (arXiv:2602.01763): composing, recalling, finding partners.

by hand    f_L(...f_1(q)), tables in the text: one exact lookup in each layer, up to 4096 tokens and 8 functions;
           with fewer lookups; and log2(L) + 1 layers where tokens may look ahead
memories   how many pairs a delta rule, a sum and the best linear map of width d give back
partners   one of two lookups done by a memory or a window, keys of every width
2-Sum      full attention in width log2 M; (B, k)-sparse attention, whose blocks show their mean key
trained    small models of full layers, memories and both, with as many numbers: accuracy against functions and symbols

The paper's lower bound (L - 1 full layers and any number of memories cannot, while H d p <= n^(2^(-4L-2))) says
something from sizes on that no machine has: for L = 2 and width 64 alone, n would have to be over 64^1024. Nothing here
shows or tests it. What is shown is the way that suffices, and what a memory of a given width holds. Training is an
experiment and no proof: what was not learned may still be learnable. Its recipe (every hop in the loss, several heads)
was found by trying, with seeds 0 and 1, and the limits of its claims were set after those tries. With 300 steps two
layers of sums stood at .3 and a narrow memory at chance; with 800 the sums were at 1 and the memory at .26: how long
training takes and what a layer can hold are two questions, and claims of the second kind are judged only where the
memory has learned something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Result, Session, experiment
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
from attnscope.papers.trials.composing_figures import figures, needed, of, remarks
from attnscope.papers.trials.curves import by_seed, power_of

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


def hand(params: Params, seed: int, session: Session) -> list[dict[str, Any]]:
    session.advance("lookups by hand", 0, 4)
    rows = [{"part": "by hand"} | row for row in by_hand(params.folds, params.tokens, params.rows, seed)]
    rows += [{"part": "fewer"} | row for row in fewer_lookups(*params.fewer, params.fewer_rows, seed)]
    session.advance("memories", 1, 4)
    rows += [{"part": "memory"} | recall(params.memory, pairs, params.values, seed) for pairs in params.pairs]
    session.advance("partners", 2, 4)
    found = partners(params.partner_arguments, params.partner_widths, params.partner_rows, seed)
    rows += [{"part": "partners"} | row for row in found]
    session.advance("2-Sum", 3, 4)
    rows += [{"part": "sums"} | row for row in sums_by_full(params.sums, seed)]
    sparse = (params.sparse_tokens, params.blocks, params.kept, params.sum_widths, params.sum_rows, seed)
    rows += [{"part": "sparse"} | row for row in sums_by_blocks(*sparse)]
    return [row | {"seed": seed} for row in rows]


def trainings(params: Params) -> list[tuple[str, Learning, int, int, tuple[str, ...], int]]:
    """What is trained: part, how, functions, symbols, kinds of layers, steps."""
    found: list[tuple[str, Learning, int, int, tuple[str, ...], int]] = []
    for folds, arguments, steps in params.composing:
        last = ("delta",) * (folds - 1) + ("full",)
        for kinds in (("full",) * folds, last, ("delta",) * folds, ("linear",) * folds):
            found.append(("trained", params.learning, folds, arguments, kinds, steps))
    for arguments in params.recalling:
        for kind in ("full", "delta", "linear"):
            found.append(("recalled", params.narrow, 1, arguments, (kind,), params.recalling_steps))
    return found


def numbers_of(rows: Sequence[Mapping[str, Any]], params: Params) -> dict[str, float]:
    made, fewer, memory = of(rows, "by hand"), of(rows, "fewer"), of(rows, "memory")
    inside = [row for row in memory if row["pairs"] <= params.memory]
    beyond = [row for row in memory if row["pairs"] > params.memory]
    wide = [row for row in of(rows, "partners") if row["width"] >= row["entries"] and "window" not in row["kinds"]]
    narrow = [row for row in of(rows, "partners") if row["width"] <= row["entries"] // 2]
    widths = [needed(of(rows, "sparse", block=block)) for block in params.blocks]
    numbers = {
        "composer_accuracy": min(row["accuracy"] for row in made if row["kind"] == "composer"),
        "most_tokens": max(row["tokens"] for row in made),
        "shortcut_accuracy": min(row["accuracy"] for row in made if row["kind"] == "shortcut"),
        "shortcut_layers": max(row["layers"] for row in made if row["kind"] == "shortcut"),
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
        "narrow_delta_accuracy": max(row["accuracy"] for row in narrow if row["kinds"] == "full, delta"),
        "narrow_sum_accuracy": max(row["accuracy"] for row in narrow if row["kinds"] == "full, linear"),
        "narrow_full_accuracy": min(
            row["accuracy"] for row in narrow if row["kinds"] == FULL_LAYERS and 2 * row["width"] >= row["entries"]
        ),
        "window_accuracy": max(row["accuracy"] for row in of(rows, "partners", kinds="full, window")),
        "full_sum_right": min(min(row["found"], row["left"]) for row in of(rows, "sums")),
        "full_sum_with_the_same_codes": min(row["full"] for row in of(rows, "sparse")),
        "sparse_from_formula": max(abs(row["found"] - row["formula"]) for row in of(rows, "sparse")),
        "power_of_block": math.nan if any(map(math.isnan, widths)) else power_of(params.blocks, widths),
    }
    return numbers | trained_numbers(rows, params)


def trained_numbers(rows: Sequence[Mapping[str, Any]], params: Params) -> dict[str, float]:
    folds, arguments, _ = params.composing[0]
    mine = {row["kinds"]: row["accuracy"] for row in of(rows, "trained", folds=folds, arguments=arguments)}
    recalled = {(row["kinds"], row["arguments"]): row["accuracy"] for row in of(rows, "recalled")}
    most, fits = max(params.recalling), min(params.recalling)
    return {
        "trained_full": mine[FULL_LAYERS],
        "trained_full_over_mixed": mine[FULL_LAYERS] - mine[MIXED],
        "trained_full_over_sums": mine[FULL_LAYERS] - mine[SUMS],
        "trained_full_over_memories": mine[FULL_LAYERS] - mine[MEMORIES],
        "recalled_by_full": recalled["full", most],
        "recalled_by_delta": recalled["delta", most],
        "recalled_by_delta_times_chance": recalled["delta", most] * most,
        "recalled_by_delta_within_its_width": recalled["delta", fits],
    }


CLAIMS = (
    Claim(
        "one_lookup_a_layer",
        PAPER,
        "L functions are composed exactly by L layers of full attention whose width grows with the logarithm of n.",
        "every answer right for L up to 8 and n up to 4096",
        holds=(Bound("composer_accuracy", ">=", 1.0), Bound("most_tokens", ">=", 4000.0)),
        fails=(Bound("composer_accuracy", "<=", 0.9),),
    ),
    Claim(
        "fewer_lookups_guess",
        PAPER,
        "With fewer lookups the same model answers no better than chance.",
        "at most .1 right with 1 to L - 1 lookups of 8 (chance .018: 56 symbols)",
        holds=(Bound("largest_accuracy_with_fewer", "<=", 0.1),),
        given=(Bound("composer_accuracy", ">=", 1.0),),
    ),
    Claim(
        "looking_ahead_is_shorter",
        "2412.02975",
        "Where tokens see what comes later, log2(L) + 1 layers do: bounds on depth are about causal models.",
        "every answer right with at most 4 layers for 8 functions",
        holds=(Bound("shortcut_accuracy", ">=", 1.0), Bound("shortcut_layers", "<=", 4.0)),
    ),
    Claim(
        "a_memory_holds_its_width",
        PAPER,
        "A delta rule and a sum of width d give back d orthonormal pairs exactly, and so does softmax any number.",
        "mean squared error at most 1e-24 (a few hundred roundings of 1e-16 each, squared)",
        holds=(Bound("memory_error_up_to_its_width", "<=", 1e-24), Bound("softmax_error", "<=", 1e-24)),
    ),
    Claim(
        "and_errs_beyond",
        PAPER,
        "Beyond, the delta rule is wrong by 2(1 - d/m), a sum by about m/d - 1, the best linear map 1 - d/m (derived).",
        "within .15 of each formula, at every number of pairs (draws of one set of bases)",
        holds=tuple(Bound(f"{name}_error_from_formula", "<=", 0.15) for name in ("delta", "sum", "least")),
        fails=(Bound("delta_error_from_formula", ">=", 0.5),),
    ),
    Claim(
        "a_memory_can_be_a_lookup",
        PAPER,
        "In a hybrid a memory does a lookup as exactly as full attention if it is as wide as its table has entries.",
        "every answer right at that width and every larger one",
        holds=(Bound("wide_memory_accuracy", ">=", 1.0),),
    ),
    Claim(
        "a_narrow_memory_cannot",
        PAPER,
        "At half that width, full attention with the same random keys does, and a memory or a window does not.",
        "full at least .99 at half; full and delta at most .8, full and sum at most .95 at half and below; full and a "
        "window of a quarter of the text at most .6 (limits ours, after a look at two seeds: .6, .88, .3)",
        holds=(
            Bound("narrow_full_accuracy", ">=", 0.99),
            Bound("narrow_delta_accuracy", "<=", 0.8),
            Bound("narrow_sum_accuracy", "<=", 0.95),
            Bound("window_accuracy", "<=", 0.6),
        ),
    ),
    Claim(
        "two_sum_by_full_attention",
        PAPER,
        "One head of width log2 M finds every partner, and says where there is none.",
        "every answer right for n up to 4096",
        holds=(Bound("full_sum_right", ">=", 1.0),),
    ),
    Claim(
        "two_sum_by_blocks",
        PAPER,
        "(B, k)-sparse attention needs a width that grows with B (here with the mean key shown; the bound is for all).",
        "full finds .99 with the same codes; blocks as many as a Gaussian count says, within .05; width for .9 of the "
        "partners ~ B to the power .5 to 1 (derived: B ln(n/B), .6 to .8 here; the bound is of the worst case)",
        holds=(
            Bound("full_sum_with_the_same_codes", ">=", 0.99),
            Bound("sparse_from_formula", "<=", 0.05),
            Bound("power_of_block", ">=", 0.5),
            Bound("power_of_block", "<=", 1.0),
        ),
    ),
    Claim(
        "composition_is_learned",
        PAPER,
        "Two full layers learn to compose two functions.",
        "at least .95 right on functions not seen (of 4 symbols in `quick`, 8 in `paper`)",
        holds=(Bound("trained_full", ">=", 0.95),),
        fails=(Bound("trained_full", "<=", 0.2),),
    ),
    Claim(
        "a_hybrid_is_as_good",
        PAPER,
        "A memory wide enough, then full attention, is as good as two full layers.",
        "at most .05 behind (our limit)",
        holds=(Bound("trained_full_over_mixed", "<=", 0.05),),
        given=(Bound("trained_full", ">=", 0.9),),
    ),
    Claim(
        "wide_memories_learn_it_too",
        PAPER,
        "Memories alone that are wide enough, delta rules or sums, come to compose as well as full layers do.",
        "each at most .05 behind, with as many numbers and steps (our question; the paper's bound begins elsewhere)",
        holds=(Bound("trained_full_over_memories", "<=", 0.05), Bound("trained_full_over_sums", "<=", 0.05)),
        fails=(Bound("trained_full_over_memories", ">=", 0.5), Bound("trained_full_over_sums", ">=", 0.5)),
        given=(Bound("trained_full", ">=", 0.9),),
    ),
    Claim(
        "trained_memories_hold_their_width",
        PAPER,
        "Trained on one lookup, a delta rule of width 8 recalls 8 entries and not the largest table, which full "
        "attention of that width does.",
        "full at least .9, delta at most .5 at the largest, and three times chance there, so that it has learned "
        "what it can hold; delta at least .8 at the smallest",
        holds=(
            Bound("recalled_by_full", ">=", 0.9),
            Bound("recalled_by_delta", "<=", 0.5),
            Bound("recalled_by_delta_within_its_width", ">=", 0.8),
        ),
        given=(Bound("recalled_by_delta_times_chance", ">=", 3.0),),
    ),
)


@experiment(
    title="What full attention can do that memories cannot",
    paper=PAPER,
    summary="Functions composed by hand-built and trained layers; what a memory holds; 2-Sum by full and sparse heads.",
    advice=(
        "Each step of reasoning that has to look something up in the text costs one layer that can look it up "
        "exactly. A linear or recurrent layer holds about as many pairs as it is wide, and makes mistakes beyond: "
        "count the facts that must be recalled at once before full layers are exchanged for memories. Where memories "
        "were wide enough they learned what full layers learn, if later; where they were not, they recalled a part. "
        "The asymptotic lower bound of the paper cannot be seen at any size that runs."
    ),
    presets={"quick": Params(), "paper": FULL},
    takes={"quick": "a minute", "paper": "21 min"},
    seeds={"quick": 1, "paper": 3},
    claims=CLAIMS,
)
def hybrid2026(params: Params, seeds: tuple[int, ...], session: Session) -> Result:
    rows: list[Mapping[str, Any]] = []
    for seed in seeds:
        rows += session.part(f"hand-{seed}", partial(hand, params, seed, session))
        for part, how, folds, arguments, kinds, steps in trainings(params):
            work = partial(learned, how, folds, arguments, kinds, steps, seed, session)
            rows.append({"part": part} | session.part(f"{part}-{folds}-{arguments}-{'-'.join(kinds)}-{seed}", work))
    measured: dict[str, list[float]] = {}
    for some in by_seed(rows, seeds):
        for name, value in numbers_of(some, params).items():
            measured.setdefault(name, []).append(value)
    return Result(measured, tuple(rows), figures(rows), remarks(measured))
