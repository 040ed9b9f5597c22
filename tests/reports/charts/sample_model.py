"""A synthetic model with visible findings: observations shaped like those of a scan, for charts and reports.

A 30-layer decoder with 9 heads: the stream spikes at layer 12, heads sink from there on, and tokens grow
alike with depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Alarm, Card


class Observation(NamedTuple):
    measure: str
    part: str
    stack: str
    site: str
    layer: int
    values: np.ndarray
    where: dict[str, np.ndarray]


def _card(name: str, title: str, summary: str, unit: str, scope: str, citation: str, **more: Any) -> Card:
    sites = {"stream": ("stream",), "attention": ("self", "cross"), "weights": ("self", "cross")}[scope]
    given: dict[str, Any] = {"name": name, "title": title, "summary": summary, "unit": unit, "citation": citation}
    usual: dict[str, Any] = {"low": 0.0, "high": float("inf"), "scope": scope, "sites": sites}
    return Card(**given | usual | more)


CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        _card(
            "relative_residual",
            "Relative residual",
            "How far the tokens are from being all the same: 0 when every row of the stream is equal.",
            "share",
            "stream",
            "Dong, Cordonnier & Loukas 2021, arXiv:2103.03404",
            high=1.0,
            alarm=Alarm("<", 0.1, "the tokens are nearly indistinguishable"),
        ),
        _card(
            "token_cosine",
            "Token cosine",
            "Mean cosine similarity of pairs of tokens in the stream.",
            "cosine",
            "stream",
            "Noci et al. 2022, arXiv:2206.03126",
            low=-1.0,
            high=1.0,
            alarm=Alarm(">", 0.9, "tokens point the same way"),
        ),
        _card(
            "effective_rank",
            "Effective rank",
            "Exponential of the entropy of the stream's squared singular values.",
            "dimensions",
            "stream",
            "Roy & Vetterli 2007; arXiv:2410.07799",
            low=1.0,
        ),
        _card(
            "stable_rank",
            "Stable rank",
            "Squared Frobenius norm over squared largest singular value.",
            "dimensions",
            "stream",
            "Nait Saada et al. 2025, arXiv:2410.07799",
            low=1.0,
        ),
        _card(
            "spike",
            "Largest activation",
            "The largest absolute entry of the stream, and the second and third largest channel.",
            "activation",
            "stream",
            "arXiv:2603.05498",
            sites=("stream", "middle"),
            parts=("value", "second_channel", "third_channel"),
            log=True,
            alarm=Alarm(">", 1000.0, "a massive activation"),
        ),
        _card(
            "norm_growth",
            "Norm growth",
            "Norm of the stream leaving a block over the norm entering it.",
            "ratio",
            "stream",
            "arXiv:2603.05498",
        ),
        _card(
            "entropy",
            "Entropy",
            "Mean entropy of the rows of the attention pattern.",
            "nats",
            "attention",
            "Zhai et al. 2023, arXiv:2303.06296",
        ),
        _card(
            "sink_mass",
            "Sink mass",
            "Mean mass that queries put on the first key.",
            "share",
            "attention",
            "Gu et al. 2024, arXiv:2410.10781",
            high=1.0,
            alarm=Alarm(">", 0.3, "the head rests on the first token"),
        ),
        _card(
            "most_received",
            "Most received",
            "Share of all mass that the most attended key receives.",
            "share",
            "attention",
            "arXiv:2410.10781",
            high=1.0,
        ),
        _card(
            "effective_support",
            "Effective support",
            "One over the sum of squares of a row: how many keys a query really uses.",
            "keys",
            "attention",
            "arXiv:2410.07799",
            low=1.0,
        ),
        _card(
            "mean_distance",
            "Mean distance",
            "Mean distance between a query and the keys it reads.",
            "tokens",
            "attention",
            "Raghu et al. 2021, arXiv:2108.08810",
        ),
        _card(
            "previous_token",
            "Previous token",
            "Mean mass on the token before.",
            "share",
            "attention",
            "Olsson et al. 2022, arXiv:2209.11895",
            high=1.0,
        ),
        _card(
            "self_attention",
            "Self mass",
            "Mean mass on the query's own position.",
            "share",
            "attention",
            "arXiv:2103.03404",
            high=1.0,
        ),
        _card(
            "ov_norm",
            "OV norm",
            "Spectral norm of the value and output weights together.",
            "norm",
            "weights",
            "Elhage et al. 2021",
        ),
        _card(
            "qk_spectrum",
            "QK spectrum",
            "Mean, variance and share of positive eigenvalues of the query-key weights.",
            "eigenvalue",
            "weights",
            "arXiv:2402.02098",
            low=float("-inf"),
            parts=("mean", "variance", "eta"),
        ),
    )
}


def observations(
    layers: int = 30,
    heads: int = 9,
    sequences: int = 12,
    *,
    stack: str = "decoder",
    site: str = "self",
    tilt: float = 0.0,
    seed: int = 0,
    broken: tuple[tuple[int, int], ...] = (),
    only: tuple[str, ...] | None = None,
) -> Iterator[Observation]:
    """Return what a scan of the synthetic model observes. `broken` heads give NaN; `tilt` makes another checkpoint."""
    for one in _all(layers, heads, sequences, stack, site, tilt, np.random.default_rng(seed)):
        if only is not None and one.measure not in only:
            continue
        if one.site == site and CARDS[one.measure].scope == "attention":
            for layer, head in broken:
                if layer == one.layer:
                    one.values[: max(1, sequences // 2) if head % 2 else None, head] = np.nan
        yield one


def _all(
    layers: int, heads: int, sequences: int, stack: str, site: str, tilt: float, rng: np.random.Generator
) -> Iterator[Observation]:
    def noisy(size: float, *shape: int) -> np.ndarray:
        return np.exp(rng.normal(0, size, shape))

    step_up = round(0.4 * layers)
    if site == "self":
        for layer in range(layers + 1):
            t = layer / max(layers, 1)
            residual = (0.92 - 0.74 * t**0.7 + tilt * t) * noisy(0.06, sequences)
            channel = np.full(sequences, 314)
            for name, value in {
                "relative_residual": np.clip(residual, 0, 1),
                "token_cosine": np.clip(1 - residual * 0.95, -1, 1),
                "effective_rank": 1 + 90 * np.exp(-2.2 * t) * noisy(0.1, sequences),
                "stable_rank": 1 + 18 * np.exp(-3.5 * t) * noisy(0.15, sequences),
            }.items():
                yield Observation(name, "value", stack, "stream", layer, value, {})
            spiked = step_up <= layer < layers
            height = (2.1e4 if spiked else 95.0 * (1 + t)) * (1 - tilt)
            for offset, place in ((0.0, "stream"), (0.35, "middle")):
                if place == "middle" and layer == layers:
                    continue
                for part, share in (("value", 1.0), ("second_channel", 0.4), ("third_channel", 0.12)):
                    value = height * share * (1 + 0.1 * offset) * noisy(0.08, sequences)
                    spot = {"token": np.zeros(sequences, int), "channel": channel}
                    yield Observation("spike", part, stack, place, layer, value, spot)
            if layer:
                growth = (3.0 if layer == step_up else 1.04) * noisy(0.02, sequences)
                yield Observation("norm_growth", "value", stack, "stream", layer, growth, {})
    for layer in range(layers):
        late = 1 / (1 + np.exp(-(layer - step_up) / 1.5))
        taste = rng.beta(2.2, 1.6, heads)
        sink = np.clip((0.06 + (0.82 - tilt) * late * taste) * noisy(0.07, sequences, heads), 0, 1)
        entropy = (1 - sink) * 3.6 * noisy(0.05, sequences, heads) * (0.5 + 0.5 * rng.random(heads))
        previous = np.clip((1 - sink) * 0.22 * rng.random(heads) ** 3 * 4 * noisy(0.04, sequences, heads), 0, 1)
        zero = np.zeros((sequences, heads), int)
        for name, value, where in (
            ("entropy", entropy, {}),
            ("sink_mass", sink, {}),
            ("most_received", np.clip(sink * 1.04, 0, 1), {"key": zero}),
            ("effective_support", 1 + np.exp(entropy) * 0.6, {}),
            ("mean_distance", 40 * (1 - previous) * rng.random(heads) * noisy(0.05, sequences, heads), {}),
            ("previous_token", previous, {}),
            ("self_attention", np.clip(0.1 * noisy(0.4, sequences, heads), 0, 1), {}),
        ):
            yield Observation(name, "value", stack, site, layer, value, where)
        yield Observation("ov_norm", "value", stack, site, layer, 2 + rng.random((1, heads)), {})
        for part, middle in (("mean", 0.1), ("variance", 0.6), ("eta", 0.4)):
            yield Observation("qk_spectrum", part, stack, site, layer, rng.normal(middle, 0.1, (1, heads)), {})


def made_survey(*groups: Iterable[Observation], name: str = "made/up-model", corpus: str = "made-up text") -> Survey:
    """Return a survey of the observations; by default, of the 30-layer decoder."""
    ledger = SurveyBuilder(CARDS)
    stacks: dict[str, None] = {}
    for group in groups or (observations(),):
        for one in group:
            stacks[one.stack] = None
            samples = None if CARDS[one.measure].scope == "weights" else np.arange(len(one.values))
            where = {label: spots.astype(np.int64) for label, spots in one.where.items()}
            ledger.observe(*one[:5], one.values, where, samples)
    return ledger.survey(
        {
            "model": {
                "name": name,
                "hash": "ab" * 32,
                "stacks": [{"name": s, "causal": True} for s in stacks],
            },
            "corpus": {"name": corpus, "hash": "cd" * 32, "sequences": 12, "tokens": 3072, "window": 256},
            "dtype": "float32",
            "routes": ["fused"],
            "versions": {"torch": "2.13.0"},
        }
    )


def encoder_decoder(only: tuple[str, ...] | None = None) -> Survey:
    """Return observations of an encoder-decoder with cross-attention."""
    return made_survey(
        observations(4, 3, 6, stack="encoder", only=only),
        observations(5, 3, 6, stack="decoder", seed=1, only=only),
        observations(5, 3, 6, stack="decoder", site="cross", seed=2, only=only),
    )
