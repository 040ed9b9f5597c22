"""An explanation made by hand: five methods over a short text, or over a source and a target."""

from __future__ import annotations

import math

from attnscope.records.explanation import Asked, ByLength, Explanation, Input, Scored

WORDS = ("<bos>", "The", " capital", " of", " France", " is", " not", "\n", " <b>", " Rome")


def sample_explanation(tokens: int = 10, stacks: int = 1, methods: int = 5) -> Explanation:
    """`France` (token 4) is first by all methods that know something but rollout; `not` speaks against."""
    rows = [
        Input(name, tuple(WORDS[place % len(WORDS)] for place in range(tokens)))
        for name in (("model",) if stacks == 1 else ("encoder", "decoder"))
    ]
    waves = {
        "relevance": ("Relevance", "default", False, lambda n: math.exp(-abs(n - 4) / 2), None),
        "attention_lrp": (
            "Attention-aware LRP",
            "default",
            True,
            lambda n: 2.0 if n == 4 else -1.5 if n == 6 else 0.1 * math.cos(n),
            "the answer, less what constants take",
        ),
        "rollout": ("Attention rollout", "default", False, lambda n: 0.5**n, "1, with the token itself"),
        "occlusion": ("Occlusion", "slow", True, lambda n: 3.0 if n == 4 else 0.3 * math.sin(n), None),
        "random": ("Random", "floor", False, lambda n: (n * 0.37) % 1, None),
    }
    scored = []
    for name, (title, group, signed, wave, adds_up) in list(waves.items())[:methods]:
        own = tuple(tuple(float(wave(place)) for place in range(tokens)) for _ in rows)
        own = ((), *own[1:]) if name == "rollout" and stacks > 1 else own
        scored.append(Scored(name, title, group, signed, own, adds_up))
    split = tuple(tuple((7.25 - 1) * 0.5 ** (place + k + 2) for k in range(4)) for place in range(tokens))
    asked = Asked("logit", " Paris", where="after the last token")
    return Explanation(
        model="a model",
        class_name="Model",
        text="The capital of France is",
        inputs=tuple(rows),
        target=asked.words,
        asked=asked,
        position=tokens - 1,
        value=7.25,
        dtype="float32",
        baseline="the mean of all vectors of the vocabulary",
        methods=tuple(scored),
        notes=("A note.",),
        lengths=ByLength("model", split, (0.5, 0.25, 0.125, 0.0)) if stacks == 1 else None,
        provenance={"model": {"name": "a model", "hash": "sha256:0"}, "bos": {"begins": True, "why": "said"}},
    )
