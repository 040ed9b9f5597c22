"""A synthetic evaluation of four methods: two that cannot be told apart, one no better than chance, and the floor."""

from __future__ import annotations

import math

from attnscope.commands.evaluate.record import Estimate, Faithfulness, Judged

MEANS = {"occlusion": 0.62, "relevance": 0.6, "rollout": 0.0, "random": 0.0}


def sample_faithfulness(texts: int = 24) -> Faithfulness:
    made = []
    for number, (name, mean) in enumerate(MEANS.items()):
        gaps = tuple(mean + 0.1 * math.sin(3 * text + number) for text in range(texts))
        around = Estimate(mean, max(mean - 0.1, 0.0), mean + 0.1)
        group = {"occlusion": "slow", "random": "floor"}.get(name, "default")
        made.append(
            Judged(
                name=name,
                title=name.capitalize(),
                group=group,
                gap=Estimate.of(gaps, within=(-1.0, 1.0)),
                positive=around,
                negative=around,
                comprehensiveness=around,
                sufficiency=around,
                soft_gap=Estimate.of(gaps, within=(-1.0, 1.0)),
                soft_comprehensiveness=around,
                soft_sufficiency=around,
                seconds=0.1,
                gaps=gaps,
                soft_gaps=gaps,
                falling=(1.0, 0.5 - mean / 2, 0.0),
                staying=(1.0, 0.5 + mean / 2, 0.0),
                log_gap=Estimate.of(tuple(3 * gap for gap in gaps)),
                log_gaps=tuple(3 * gap for gap in gaps),
            )
        )
    return Faithfulness(
        model="a model",
        class_name="Model",
        corpus="a corpus",
        texts=texts,
        tokens=100,
        answer="the probability of what the model says",
        baseline="other tokens that the model itself finds likely in their place",
        dtype="float32",
        methods=tuple(made),
        documents=tuple(range(texts)),
        notes=("A note.",),
        provenance={"model": {"name": "a model"}},
    )
