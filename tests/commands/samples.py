"""One small record of every kind, made without a model (a head is compiled: that takes a moment)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import attnscope
from attnscope.commands.atlas.record import Atlas, entry_of
from attnscope.commands.collapse.record import Collapse, Curve, EndToEnd, LayerBounds, SkipBounds
from attnscope.commands.compare.record import compare
from attnscope.commands.head_widths.record import HeadWidth, HeadWidths
from attnscope.commands.place.record import Placement, placement_of
from attnscope.commands.records import KINDS
from attnscope.commands.reproduce.record import Reproduction
from attnscope.reports.record import Record
from tests.commands.atlas.made import entry as decoder
from tests.commands.sample_treatment import sample_treatment
from tests.commands.scan.survey.sample import sample_survey
from tests.commands.scan.survey.tried import full_trial
from tests.commands.timeline.sample import sample_timeline
from tests.reports.sample_explanation import sample_explanation
from tests.reports.sample_faithfulness import sample_faithfulness
from tests.reports.sample_logit_paths import sample_logit_paths
from tests.reports.sample_operator_map import sample_operator_map
from tests.reports.sample_paths import sample_paths, with_effects
from tests.reports.sample_task_paths import sample_task_paths
from tests.reports.sample_view import sample_view


@cache
def sample(kind: str) -> Record:
    made: Record = {
        "survey": lambda: replace(sample_survey(2, 2, 2), trial=full_trial()),
        "comparison": lambda: compare(
            *(replace(sample_survey(2, 2, 2, seed=seed), trial=full_trial()) for seed in (0, 1))
        ),
        "atlas": sample_atlas,
        "placement": sample_placement,
        "collapse": sample_collapse,
        "paths": lambda: with_effects(sample_paths(2, 3)),
        "task_paths": sample_task_paths,
        "logit_paths": sample_logit_paths,
        "explanation": sample_explanation,
        "faithfulness": sample_faithfulness,
        "view": sample_view,
        "operator_map": sample_operator_map,
        "compiled": lambda: attnscope.compile(attnscope.generate("window", 8, 2), width=4),
        "capacity": lambda: attnscope.capacity(64, 2, budget=0.0),
        "head_widths": sample_head_widths,
        "treatment": sample_treatment,
        "reproduction": sample_reproduction,
        "timeline": sample_timeline,
    }[kind]()
    return made


ALL = tuple(KINDS)


def sample_atlas() -> Atlas:
    survey = replace(sample_survey(2, 2, 2), trial=full_trial())
    names = ("name", "family", "domain", "licence", "source", "text")
    entry = entry_of(survey, sample_survey(2, 2, 2, seed=1), {name: f"its {name}" for name in names})
    return Atlas((replace(entry, findings=(("sink", "note"),)),), {"samples": 2, "seed": 0}, "0.1.0")


def sample_placement() -> Placement:
    each = [decoder(f"e{n}", [n / 10, n / 10 + 0.05], inside=0.8 + n / 100) for n in range(7)]
    return placement_of("a model", 10**6, each[2].stacks, Atlas(tuple(each)))


def sample_head_widths() -> HeadWidths:
    heads = [
        HeadWidth("decoder", layer, head, 32, (4, None if (layer, head) == (1, 1) else 3 + 30 * layer), (2, 1), 0.7)
        for layer in range(2)
        for head in range(2)
    ]
    return HeadWidths("a model", 4, 2, (48, 40), "float32", 0.1, 0.01, tuple(heads), 2.5)


def sample_collapse() -> Collapse:
    falling, staying = (0.6, 1e-3, 1e-17), (0.6, 0.5, math.nan)
    bounds = LayerBounds(
        layer=0, sequences=2, before=1.0, after=1e-3, contraction=1e-2, cubic=0.5, tau=0.1, tau_bound=0.2,
        residual_before=2.0, residual_after=2e-3, paper=400.0, spread=3.0, condition_met=1, rounding=1e-14,
        violations=0,
    )  # fmt: skip
    return Collapse(
        model="a model",
        class_name="Model",
        stack="encoder",
        norm_placement="post",
        layers=2,
        heads=2,
        tokens=9,
        weights="random",
        norm="1,inf",
        floor=2.2e-16,
        curves={
            name: Curve(name, title, mean, mean, mean, mean, (3, 3, 3 * (mean is falling)), (mean,), math.nan, 0)
            for name, title, mean in (("san", "attention only", falling), ("whole", "whole model", staying))
        },
        bounds=(bounds,),
        skip_bounds=(SkipBounds(0, 2, 1.01, 0.2, 0),),
        ends=(EndToEnd("theorem 2.3", "san", "residual", (0.0, math.inf), (0.3, -math.inf), False, "norms"),),
        order=3.01,
        pairs=8,
        notes=("A note.",),
        provenance={"corpus": {"name": "a text", "sequences": 3}},
    )


def sample_reproduction() -> Reproduction:
    from tests.commands.test_reproduction import sample as sample_record

    return sample_record()
