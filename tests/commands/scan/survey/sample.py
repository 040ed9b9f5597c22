"""A made-up survey with plausible numbers, built the way a scan builds one.

    from tests.commands.scan.survey.sample import sample_survey

The model has a massive activation that appears in the MLP of one block and disappears in the last one, sink heads from
there on, a previous-token head, an identity head and a pair of duplicate heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Alarm, Card

INFINITE = float("inf")


def _card(name: str, title: str, unit: str, scope: Any, high: float = INFINITE, **more: Any) -> Card:
    sites = more.pop("sites", ("stream",) if scope == "stream" else ("self", "cross"))
    fields: dict[str, Any] = {
        "low": 0.0,
        "citation": "arXiv:2103.03404",
        "summary": f"{title} of a layer.",
        **more,
    }
    return Card(name=name, title=title, unit=unit, scope=scope, high=high, sites=sites, **fields)


CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        _card("relative_residual", "Relative residual", "share", "stream", 1.0, log=True),
        _card("token_cosine", "Token cosine", "cosine", "stream", 1.0, low=-1.0),
        _card("effective_rank", "Effective rank", "dimensions", "stream"),
        _card("norm_growth", "Norm growth", "ratio", "stream"),
        _card(
            "spike",
            "Largest activation",
            "activation",
            "stream",
            log=True,
            sites=("stream", "middle"),
            parts=("value", "second", "third"),
        ),
        _card("entropy", "Attention entropy", "nats", "attention", 12.0),
        _card("sink_mass", "Mass on the first token", "share", "attention", 1.0, parts=("value", "rate")),
        _card("most_received", "Most attended key", "share", "attention", 1.0),
        _card("effective_support", "Effective support", "keys", "attention"),
        _card("previous_token", "Mass on the token before", "share", "attention", 1.0),
        _card("self_attention", "Mass on the own token", "share", "attention", 1.0),
        _card("head_overlap", "Overlap with another head", "cosine", "attention", 1.0),
        _card(
            "qk_spectrum",
            "Query-key spectrum",
            "eigenvalue",
            "weights",
            low=-INFINITE,
            parts=("mean", "variance", "eta"),
            alarm=Alarm("<", -5.0, "queries and keys repel"),
        ),
    )
}


def sample_provenance(
    layers: int = 4,
    heads: int = 3,
    sequences: int = 16,
    tokens: int = 64,
    *,
    name: str = "sample model",
    stacks: tuple[str, ...] = ("decoder",),
) -> dict[str, Any]:
    return {
        "model": {
            "name": name,
            "class": "SampleForCausalLM",
            "hash": "5a" * 32,
            "parameters": 1_234_567,
            "stacks": [
                {
                    "name": s,
                    "layers": layers,
                    "heads": heads,
                    "causal": s == "decoder",
                    "tokens": sequences * tokens,
                }
                for s in stacks
            ],
        },
        "corpus": {
            "name": "sample text",
            "hash": "c0" * 32,
            "sequences": sequences,
            "tokens": sequences * tokens,
            "window": tokens,
        },
        "measures": sorted(CARDS),
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "routes": ["interface"],
        "verify": {"largest_difference": 1.5e-6},
        "versions": {"torch": "2.13.0", "transformers": "5.22.2"},
        "attnscope": "0.1.0",
        "created": "2026-01-02T03:04:05Z",
    }


def sample_survey(
    layers: int = 4,
    heads: int = 3,
    sequences: int = 16,
    tokens: int = 64,
    *,
    seed: int = 0,
    name: str = "sample model",
    stacks: tuple[str, ...] = ("decoder",),
    first_sample: int = 0,
) -> Survey:
    """Return a survey of `sequences` sequences, numbered from `first_sample` on for shards of one corpus."""
    ledger = SurveyBuilder(CARDS)
    for stack in stacks:
        _observe_stack(ledger, stack, layers, heads, sequences, tokens, seed, first_sample)
    return ledger.survey(sample_provenance(layers, heads, sequences, tokens, name=name, stacks=stacks))


def _observe_stack(
    ledger: SurveyBuilder, stack: str, layers: int, heads: int, sequences: int, tokens: int, seed: int, first: int
) -> None:
    random = np.random.default_rng([seed, len(stack), first])
    samples = np.arange(first, first + sequences)
    step_up = max(1, layers // 2)

    def jitter(centre: Any, spread: float = 0.05) -> np.ndarray:
        shape = (sequences, *np.shape(centre))
        wobble = 1 + spread * random.standard_normal(shape)
        return (np.asarray(centre) * np.clip(wobble, 0.5, 1.5)).astype(np.float32)

    def stream(measure: str, layer: int, values: np.ndarray, part: str = "value", site: str = "stream", **where: Any):
        labels = {name: np.full(sequences, label) for name, label in where.items()}
        ledger.observe(measure, part, stack, site, layer, values, labels, samples)

    for layer in range(layers + 1):
        depth = layer / layers
        stream("relative_residual", layer, np.minimum(jitter(0.8 - 0.4 * depth), np.float32(1)))
        stream("token_cosine", layer, np.minimum(jitter(0.2 + 0.4 * depth), np.float32(1)))
        stream("effective_rank", layer, jitter(30 - 15 * depth))
        if layer:
            stream("norm_growth", layer, jitter(1.1))
        for site in ("stream", "middle") if layer < layers else ("stream",):
            massive = step_up <= layer < layers
            size = 8000.0 if massive else 20.0 + 10 * depth
            stream("spike", layer, jitter(size), site=site, token=0, channel=7 if massive else 3)
            stream("spike", layer, jitter(size / 4), part="second", site=site)
            stream("spike", layer, jitter(size / 9), part="third", site=site)

    for layer in range(layers):
        sink = np.full(heads, 0.6 if layer >= step_up else 0.05) * np.linspace(1, 0.7, heads)
        previous = np.full(heads, 0.08)
        own = np.full(heads, 0.1)
        if layer == 0:
            previous[-1], own[0] = 0.9, 0.8
        overlap = np.full(heads, 0.3)
        other = np.roll(np.arange(heads), -1)
        if layer == layers - 1 and heads > 1:
            overlap[:2], other[:2] = 0.99, (1, 0)
        share = {
            "sink_mass": sink,
            "most_received": np.maximum(sink, 0.1),
            "previous_token": previous,
            "self_attention": own,
            "head_overlap": overlap,
        }
        where = {
            "most_received": {"key": np.zeros((sequences, heads), np.int64)},
            "head_overlap": {"other": np.broadcast_to(other, (sequences, heads))},
        }
        for measure, centre in share.items():
            values = np.minimum(jitter(centre, 0.005), np.float32(1))
            ledger.observe(measure, "value", stack, "self", layer, values, where.get(measure, {}), samples)
        rate = (jitter(sink) > 0.3).astype(np.float32)
        ledger.observe("sink_mass", "rate", stack, "self", layer, rate, {}, samples)
        entropy = jitter(np.log(tokens) * (0.8 - 0.6 * sink))
        ledger.observe("entropy", "value", stack, "self", layer, entropy, {}, samples)
        ledger.observe("effective_support", "value", stack, "self", layer, np.exp(entropy), {}, samples)
        weights = np.random.default_rng([layer, heads])  # measures of weights do not depend on the corpus
        for part in CARDS["qk_spectrum"].parts:
            ledger.observe("qk_spectrum", part, stack, "self", layer, weights.standard_normal((1, heads)))
