"""Small treatments, made without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.commands.compare.chance import ByText
from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.treat.pruning_record import Order, Pruning
from attnscope.commands.treat.record import Arm, Chosen, Training, Treatment
from tests.commands.scan.survey.sample import CARDS, sample_survey

LOSSES = (3.1, 2.9, 3.4, 3.0)


def sample_treatment() -> Treatment:
    """Trained, beside a control; the treated model has fewer layers' worth of findings only where seeds make them."""
    return Treatment(
        model="a model",
        class_name="Model",
        remedy=Chosen(
            name="gated_output",
            title="Gate behind each head",
            summary="A gate on what each head gives.",
            citation="arXiv:2505.06708",
            why="Heads sink.",
            asked=False,
            answers=("sink",),
            alternatives=("learned_sink",),
            layers=(0, 1),
        ),
        training=Training(
            steps=4,
            rate=1e-4,
            batch_size=2,
            max_tokens=16,
            seed=0,
            parameters="added",
            trained=100,
            added=10,
            tokens=128,
        ),
        arms={
            "before": Arm(LOSSES),
            "control": Arm(tuple(loss - 0.1 for loss in LOSSES), (3.0, 2.9, 2.8, 2.7), 0.1),
            "treated": Arm(tuple(loss - 0.15 + 0.01 * n for n, loss in enumerate(LOSSES)), (3.0, 2.8, 2.7, 2.6), 0.12),
        },
        surveys={name: sample_survey(4, 4, 2, seed=n) for n, name in enumerate(("before", "control", "treated"))},
        thresholds=Thresholds(),
        start=3.1,
        notes=("A note.",),
        by_text={name: _texts(n) for n, name in enumerate(("before", "control", "treated"))},
        provenance={"corpus": {"name": "a text", "held_out_sequences": 4}},
    )


def _texts(seed: int) -> ByText:
    """Four texts, each a little off what the whole survey says."""
    draw = np.random.default_rng(seed)
    means = {
        key: np.clip(
            cell.moments.mean + 0.01 * draw.normal(size=(4, *cell.moments.shape)), 0.0, CARDS[key.measure].high
        )
        for key, cell in sample_survey(4, 4, 2, seed=seed).cells.items()
        if key.measure in ("sink_mass", "entropy")
    }
    return ByText(means)


def sample_pruning() -> Treatment:
    """Two heads removed, nothing trained."""
    trained = sample_treatment()
    heads = ((0, 0), (1, 1), (2, 0), (3, 1))
    return replace(
        trained,
        remedy=replace(trained.remedy, name="prune", title="Heads removed", answers=("duplicate_heads",)),
        training=None,
        arms={name: arm for name, arm in trained.arms.items() if name != "control"},
        surveys={name: survey for name, survey in trained.surveys.items() if name != "control"},
        by_text={name: texts for name, texts in trained.by_text.items() if name != "control"},
        pruning=Pruning(
            counts=(0, 2, 4),
            orders=(
                Order("size", "size of Shapley value", heads, (3.0, 3.1, 3.5)),
                Order("random", "at random", heads, (3.0, 3.3, 4.0), (3.0, 3.2, 3.9), (3.0, 3.4, 4.1)),
            ),
            removed=2,
            by="size",
            total=4,
            prompts=8,
            asked="2 heads",
        ),
    )
