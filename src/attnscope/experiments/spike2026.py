"""The spike, the sparse and the sink: massive activations and attention sinks, and what removes which (2603.05498).

    forms      what the paper shows in closed form: SwiGLU as a quadratic form, the sqrt(d) bound of RMSNorm, a planted
               spike that makes tokens equal, the sink metric on patterns known by heart
    pocket     where the trained model of this package has its spike, and the quadratic form behind it
    needed     what a model of a few thousand weights needs before sinks and spikes appear: one thing changed at a time
    remedies   norms, gates and head widths, trained alike: sink rate, spike, loss

What differs from the paper: its models have seven billion weights and read a trillion tokens, ours read a copying task
in seconds, because text needs far more before a head learns to rest (pocket, after five million tokens, has no sink).
So of the paper's table only the direction is asked for, and every limit on it is ours. A spike is judged against
plain pre-norm trained alike, never against a fixed size. RMSNorm and DynamicTanh stand where Llama has norms; QK norm
stands behind the rotation; the conditional gate reads what attention reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from attnscope.core.experiment import Bound, Claim, Desk, Figure, Point, Result, experiment, median
from attnscope.trials.sinks_and_spikes import Growth, grown, over_seeds
from attnscope.trials.spike_forms import (
    channels_figure,
    closed_forms,
    forms_figure,
    planted_figure,
    pocket_spike,
)

PAPER = "2603.05498"
PLAIN = "pre-norm"
REMEDIES: Mapping[str, dict[str, Any]] = {
    PLAIN: {},
    "sandwich norm": {"parts": ("sandwich_norm",)},
    "sandwich + QK norm": {"parts": ("sandwich_norm", "qk_norm")},
    "DynamicTanh": {"parts": ("dynamic_tanh",)},
    "conditional gate": {"parts": ("conditional_gate",)},
}
# Perplexity, share of sinks and spike of the paper's 7B models: for the eye, and for the direction of a change.
PUBLISHED = {
    PLAIN: (10.1, 0.460, 3818.0),
    "sandwich norm": (9.8, 0.447, 520.0),
    "sandwich + QK norm": (10.0, 0.420, 92.0),
    "DynamicTanh": (10.0, 0.610, 153.0),
    "conditional gate": (math.nan, 0.045, math.nan),
}
PUBLISHED_WIDTHS = {8: 0.041, 16: 0.098, 32: 0.279, 64: 0.377, 128: 0.460}


@dataclass(frozen=True)
class Params:
    growth: Growth
    needed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what is changed in `growth`, by its name
    head_widths: tuple[int, ...] = (8, 16, 32, 64)
    form_width: int = 64
    metric_tokens: int = 50
    pocket: tuple[int, int] = (4, 256)  # sequences, tokens


BASE = Growth(steps=500)
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "no token of its own in front": {"bos": False},
    "a tenth of the rate": {"rate": 1e-3},
    "a fifth of the steps": {"steps": 100},
    "weight decay .1": {"decay": 0.1},
    "twice the context": {"tokens": 96},
    "4 layers of 4 heads": {"layers": 4, "heads": 4},
    "a book, by letters": {"data": "characters"},
}
QUICK = Params(
    growth=replace(BASE, steps=250, tokens=32, hidden=96),
    needed={name: dict(NEEDED[name]) for name in ("no token of its own in front", "a tenth of the rate")},
    head_widths=(8, 64),
    form_width=32,
    pocket=(2, 128),
)
FULL = Params(growth=BASE, needed=NEEDED)


def ratio(found: Sequence[Mapping[str, Any]], arm: str, what: str, beside: str = PLAIN) -> list[float]:
    """A remedy's number over that of plain pre-norm with the same seed."""
    return [
        mine / max(plain, 1e-30)
        for mine, plain in zip(over_seeds(found, arm, what), over_seeds(found, beside, what), strict=True)
    ]


def less(found: Sequence[Mapping[str, Any]], arm: str, what: str, beside: str = PLAIN) -> list[float]:
    return [
        mine - plain
        for mine, plain in zip(over_seeds(found, arm, what), over_seeds(found, beside, what), strict=True)
    ]


def key(arm: str) -> str:
    return arm.lower().replace(" + ", "_and_").replace(" ", "_").replace("-", "_").replace(".", "")


def width_name(width: int) -> str:
    return f"head width {width}"


def numbers_of(params: Params, grew: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What the claims ask of the models that were trained."""
    numbers: dict[str, list[float]] = {}
    for arm in dict.fromkeys(one["arm"] for one in grew):
        for what in ("loss", "sink_rate", "spike", "spike_over_median"):
            numbers[f"{what}_of_{key(arm)}"] = over_seeds(grew, arm, what)
    for arm in REMEDIES:
        if arm != PLAIN:
            numbers[f"loss_added_by_{key(arm)}"] = less(grew, arm, "loss")
            numbers[f"spike_ratio_of_{key(arm)}"] = ratio(grew, arm, "spike")
            numbers[f"sink_rate_added_by_{key(arm)}"] = less(grew, arm, "sink_rate")
            numbers[f"sink_ratio_of_{key(arm)}"] = ratio(grew, arm, "sink_rate")
    for arm in params.needed:
        numbers[f"sink_rate_lost_with_{key(arm)}"] = less(grew, PLAIN, "sink_rate", arm)
    narrow, wide = width_name(min(params.head_widths)), width_name(max(params.head_widths))
    numbers["sink_rate_added_by_wide_heads"] = less(grew, wide, "sink_rate", narrow)
    numbers["spike_ratio_of_qk_norm_beside_sandwich"] = ratio(grew, "sandwich + QK norm", "spike", "sandwich norm")
    numbers["excess_loss_of_pre_norm"] = [one["loss"] - one["floor"] for one in grew if one["arm"] == PLAIN]
    return numbers


def remedies_figure(grew: Sequence[Mapping[str, Any]]) -> Figure:
    rows = []
    for arm in REMEDIES:
        perplexity, sinks, spike = PUBLISHED[arm]
        for what, published in (("sink rate", sinks), ("spike", spike), ("loss", math.log(perplexity))):
            rows.append(Point.over(over_seeds(grew, arm, what.replace(" ", "_")), arm, f"{what}, here"))
            rows.append(Point(arm, published, f"{what}, 7B"))
    caption = (
        "Here: median over seeds, nats per token on a copying task. 7B: as published, nats per token of text (the log of "
        "the perplexity). The two scales have nothing in common but the direction from row to row."
    )
    return Figure("remedies", "Norms and gates, trained alike", caption, "", "", tuple(rows), "table")


def streams_figure(grew: Sequence[Mapping[str, Any]]) -> Figure:
    rows = []
    for arm in REMEDIES:
        seeds = [one["top_channels"] for one in grew if one["arm"] == arm]
        rows += [Point.over([one[k][0] for one in seeds], k / 2, arm) for k in range(len(seeds[0]))]
    caption = "The largest entry after every half block; median and range over seeds."
    axes = ("blocks done", "largest |x| in the stream")
    return Figure("streams", "Where streams step up", caption, *axes, tuple(rows), log=True)


def widths_figure(params: Params, grew: Sequence[Mapping[str, Any]]) -> Figure:
    rows = [Point.over(over_seeds(grew, width_name(w), "sink_rate"), w, "here") for w in params.head_widths]
    rows += [Point(width, rate, "7B, published", dashed=True) for width, rate in PUBLISHED_WIDTHS.items()]
    caption = "Median and range over seeds. Dashed: the paper's models, of which only the direction can be compared."
    return Figure(
        "head-widths", "Sinks by the width of heads", caption, "head width", "sink rate", tuple(rows), log_x=True
    )


def needed_figure(params: Params, grew: Sequence[Mapping[str, Any]]) -> Figure:
    rows = [
        Point.over(over_seeds(grew, arm, what), "as trained here" if arm == PLAIN else arm, said)
        for arm in (PLAIN, *params.needed)
        for what, said in (
            ("sink_rate", "sink rate"),
            ("spike", "spike"),
            ("spike_over_median", "spike / median"),
            ("loss", "loss"),
            ("floor", "least possible loss"),
        )
        if not (what == "floor" and median(over_seeds(grew, arm, what)) == 0)
    ]
    caption = "One thing changed at a time; medians over seeds. A book has no known least loss."
    return Figure("needed", "What sinks and spikes need to appear", caption, "", "", tuple(rows), "table")


def said_of_need(params: Params, numbers: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """What was needed, in words that the numbers fill."""
    if not params.needed:
        return ()
    base = median(numbers[f"sink_rate_of_{key(PLAIN)}"])
    rates = {arm: median(numbers[f"sink_rate_of_{key(arm)}"]) for arm in params.needed}
    gone = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate <= base / 2]
    kept = [f"{arm} ({rate:.2f})" for arm, rate in rates.items() if rate > base / 2]
    return (
        f"Trained as here, the sink rate is {base:.2f}. It falls to half or less with: {', '.join(gone) or 'nothing'}. "
        f"It stays above half with: {', '.join(kept) or 'nothing'}.",
    )


PRACTICE = (
    "In practice: a spike and a sink are two things. A norm behind each branch takes the spike away and leaves the sink, "
    "so it helps where activations are quantised; a gate that reads the token gives a head another way to rest, so it is "
    "what to try against sinks. Look at both numbers (attnscope scan) before choosing, and at the loss after it.",
)


def directional(name: str, statement: str, expected: str, *holds: Bound, fails: tuple[Bound, ...] = ()) -> Claim:
    return Claim(name, PAPER, statement, f"{expected} (direction only; the limit is ours)", holds, fails)


CLAIMS = (
    Claim(
        "swiglu_is_a_quadratic_form",
        PAPER,
        "Without SiLU, every channel that SwiGLU writes is a quadratic form of the token.",
        "relative difference at most 1e-5 in float32 (the sum of 64 x 128 products rounds to about 1e-6)",
        holds=(Bound("quadratic_form_difference", "<=", 1e-5),),
    ),
    Claim(
        "rms_norm_is_bounded",
        PAPER,
        "No entry of an RMSNorm's output exceeds sqrt(d), and a token that is one channel alone attains it.",
        "at most sqrt(d) for heavy-tailed tokens; at least .999 of it for one channel (epsilon takes 3e-5 at d = 64)",
        holds=(
            Bound("largest_normed_over_root_width", "<=", 1.0),
            Bound("one_channel_normed_over_root_width", "<=", 1.0),
            Bound("one_channel_normed_over_root_width", ">=", 0.999),
        ),
    ),
    Claim(
        "spike_makes_tokens_equal",
        PAPER,
        "A channel that is large in all tokens makes them one and the same after RMSNorm.",
        "cosine at least .999 at 100 sqrt(d), and within .05 of s^2/(s^2 + d) everywhere (chance: about 2/sqrt(d x 64))",
        holds=(Bound("planted_cosine", ">=", 0.999), Bound("planted_difference", "<=", 0.05)),
        fails=(Bound("planted_cosine", "<=", 0.9),),
    ),
    Claim(
        "sink_metric",
        PAPER,
        "The sink metric tells a parked head from a uniform one.",
        "rate 1 with all weight on the first key; 0 for uniform causal attention, whose alpha_0 is H_n/n to 1e-12",
        holds=(
            Bound("sink_rate_of_parked_head", ">=", 1.0),
            Bound("sink_rate_of_uniform_head", "<=", 0.0),
            Bound("uniform_alpha_difference", "<=", 1e-12),
        ),
    ),
    directional(
        "pocket_has_a_spike",
        "A trained decoder's largest activation stands on the first token and is injected by one early MLP.",
        "pocket: at least 10 times the median entry, written in the first half of the blocks, on the first token",
        Bound("pocket_spike_over_median", ">=", 10.0),
        Bound("pocket_step_up_depth", "<=", 0.5),
        Bound("pocket_step_up_on_token", "<=", 0.0),
    ),
    directional(
        "spike_channel_has_an_outlying_form",
        "The channel that spikes has an outlying quadratic form.",
        "pocket: its Frobenius norm at least twice the median channel's",
        Bound("pocket_spike_form_norm_over_median", ">=", 2.0),
    ),
    directional(
        "spike_form_has_one_eigenpair",
        "The quadratic form of the channel that spikes has one dominant eigenpair.",
        "pocket: the largest eigenvalue at least .7 of the Frobenius norm, which is half of its square",
        Bound("pocket_spike_form_dominance", ">=", 0.7),
    ),
    directional(
        "sinks_appear_at_this_size",
        "Pre-norm decoders grow attention sinks.",
        "sink rate at least .2, where the task is learned to within .15 nats of the least possible loss (7B: .46)",
        Bound("sink_rate_of_pre_norm", ">=", 0.2),
        Bound("excess_loss_of_pre_norm", "<=", 0.15),
    ),
    directional(
        "spikes_appear_at_this_size",
        "Pre-norm decoders grow massive activations.",
        "largest entry at least 100 times the median (2402.17762 asks for 1000 times in models of billions)",
        Bound("spike_over_median_of_pre_norm", ">=", 100.0),
    ),
    directional(
        "sandwich_norm_lowers_spikes",
        "Sandwich norm makes the spike smaller.",
        "at most half of pre-norm's with the same seed (7B: 520 of 3818)",
        Bound("spike_ratio_of_sandwich_norm", "<=", 0.5),
        fails=(Bound("spike_ratio_of_sandwich_norm", ">=", 1.0),),
    ),
    directional(
        "sandwich_norm_leaves_sinks",
        "Sandwich norm leaves the sinks: spikes and sinks can be taken apart.",
        "sink rate at least half of pre-norm's with the same seed (7B: .447 of .460)",
        Bound("sink_ratio_of_sandwich_norm", ">=", 0.5),
        fails=(Bound("sink_ratio_of_sandwich_norm", "<=", 0.1),),
    ),
    directional(
        "qk_norm_lowers_spikes_further",
        "QK norm beside sandwich norm makes the spike smaller still.",
        "smaller than with sandwich norm alone, same seed (7B: 92 of 520)",
        Bound("spike_ratio_of_qk_norm_beside_sandwich", "<", 1.0),
    ),
    directional(
        "dynamic_tanh_lowers_spikes",
        "With DynamicTanh in the place of norms the spike is smaller.",
        "at most half of pre-norm's with the same seed (7B: 153 of 3818)",
        Bound("spike_ratio_of_dynamictanh", "<=", 0.5),
        fails=(Bound("spike_ratio_of_dynamictanh", ">=", 1.0),),
    ),
    directional(
        "dynamic_tanh_has_more_sinks",
        "With DynamicTanh there are more sinks, not fewer.",
        "a higher sink rate than pre-norm's with the same seed (7B: .61 against .46)",
        Bound("sink_rate_added_by_dynamictanh", ">", 0.0),
    ),
    directional(
        "conditional_gate_removes_sinks",
        "A gate that reads the token removes sinks.",
        "sink rate at most half of pre-norm's with the same seed (7B: .045 of .46)",
        Bound("sink_ratio_of_conditional_gate", "<=", 0.5),
        fails=(Bound("sink_ratio_of_conditional_gate", ">=", 1.0),),
    ),
    directional(
        "wide_heads_have_more_sinks",
        "Wider heads have more sinks.",
        "sink rate higher with heads 64 wide than 8 wide, same seed (7B: .377 against .041)",
        Bound("sink_rate_added_by_wide_heads", ">", 0.0),
    ),
    directional(
        "remedies_cost_no_loss",
        "None of the norms costs loss.",
        "at most .05 nats more than pre-norm with the same seed (7B: perplexity 9.8 to 10.1, .03 nats)",
        Bound("loss_added_by_sandwich_norm", "<=", 0.05),
        Bound("loss_added_by_sandwich_and_qk_norm", "<=", 0.05),
        Bound("loss_added_by_dynamictanh", "<=", 0.05),
    ),
    directional(
        "sinks_need_a_first_token",
        "The sink sits on a token that is the same in every sequence.",
        "without such a token in front the sink rate is lower, same seed",
        Bound("sink_rate_lost_with_no_token_of_its_own_in_front", ">", 0.0),
    ),
)


@experiment(
    title="The spike, the sparse and the sink",
    paper=PAPER,
    summary="Where massive activations come from, what small models need to grow sinks, and which remedy removes which.",
    presets={"quick": QUICK, "paper": FULL},
    takes={"quick": "half a minute", "paper": "about 10 minutes of one core"},
    seeds={"quick": 1, "paper": 5},
    claims=CLAIMS,
)
def spike2026(params: Params, seeds: tuple[int, ...], desk: Desk) -> Result:
    forms = [
        desk.part(f"forms-{seed}", partial(closed_forms, params.form_width, params.metric_tokens, seed))
        for seed in seeds
    ]
    pocket = [desk.part(f"pocket-{seed}", partial(pocket_spike, *params.pocket, seed)) for seed in seeds]
    plain = params.growth
    arms = {arm: replace(plain, **changes) for arm, changes in REMEDIES.items()}
    arms |= {width_name(width): replace(plain, head_width=width) for width in params.head_widths}
    arms |= {arm: replace(plain, **changes) for arm, changes in params.needed.items()}
    grew = [
        desk.part(f"{key(arm)}-{seed}", partial(grown, growth, seed, arm, desk))
        for arm, growth in arms.items()
        for seed in seeds
    ]
    layers = (len(pocket[0]["top_channels"]) - 1) // 2
    lists = ("seed", "planted_cosines")
    numbers = {
        **{name: [one[name] for one in forms] for name in forms[0] if name not in lists},
        **{
            f"pocket_{name}": [float(one[name]) for one in pocket]
            for name in (
                *("spike", "spike_over_median", "sink_rate", "step_up_on_token", "step_up_layer", "step_up_channel"),
                *("spike_form_norm_over_median", "spike_form_dominance", "median_form_dominance"),
            )
        },
        "pocket_step_up_depth": [one["step_up_layer"] / layers for one in pocket],
        **numbers_of(params, grew),
    }
    figures = (
        remedies_figure(grew),
        streams_figure(grew),
        widths_figure(params, grew),
        *([needed_figure(params, grew)] if params.needed else []),
        planted_figure(forms),
        channels_figure(pocket),
        forms_figure(pocket),
    )
    records = tuple(
        {"part": name, **one}
        for name, some in (("forms", forms), ("pocket", pocket), ("grown", grew))
        for one in some
    )
    return Result(numbers, records, figures, (*said_of_need(params, numbers), *PRACTICE))
