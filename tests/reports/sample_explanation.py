"""An explanation made by hand: five methods over a short text, or over a source and a target."""

from __future__ import annotations

import math
from dataclasses import replace

from attnscope.commands.explain.record import Asked, ByLength, Explanation, Input, Scored, Step
from attnscope.commands.explain.tried import Replacement, Trial, Tried

WORDS = ("<bos>", "The", " capital", " of", " France", " is", " not", "\n", " <b>", " Rome")


def sample_explanation(tokens: int = 10, stacks: int = 1, methods: int = 5) -> Explanation:
    """Return an explanation: `France` (token 4) is first by all informative methods except rollout; `not` is
    negative."""
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
        scored.append(Scored(name, title, group, signed, own, adds_up, reads_answer=name not in ("rollout", "random")))
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
        trial=sample_trial([method.name for method in scored]) if stacks == 1 and tokens == len(WORDS) else None,
        provenance={"model": {"name": "a model", "hash": "sha256:0"}, "bos": {"begins": True, "why": "said"}},
    )


def sample_trial(methods: list[str]) -> Trial:
    """`France` decides, the first word does nothing, `not` holds the answer down, and the last token asks."""

    def tried(place: int, answers: tuple[float, ...], effect: float) -> Tried:
        replacements = tuple(Replacement(f" other{n}", answer, 1.0) for n, answer in enumerate(answers))
        again = (replace(replacements[-1], text=" again"),) if effect > 0 else ()
        return Tried("model", (place,), WORDS[place], replacements, effect, again)

    return Trial(
        unit="probability",
        before=0.68,
        words=(
            tried(4, (0.01, 0.02), 3.87),
            tried(2, (0.4, 0.4), 0.53),
            tried(1, (0.68, 0.69), -0.01),
            tried(6, (0.9, 0.9), -0.28),
        ),
        asking=tried(9, (0.1, 0.1), 1.92),
        agreement=tuple(
            (name, value) for name, value in (("relevance", 0.4), ("attention_lrp", 0.8)) if name in methods
        ),
        inputs=10,
    )


PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAMLCwgAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="


def sample_scene() -> Explanation:
    """A picture of 2 x 3 patches behind [CLS], a sound of 4 s in a window of 8, a text, and a continuation of two."""
    inputs = (
        Input("image", ("[CLS]", *(f"patch {n // 3},{n % 3}" for n in range(6))), "image", (2, 3), PIXEL),
        Input("sound", tuple(f"{n * 0.5:.2f} s" for n in range(16)), "sound", seconds=4.0, window=8.0),
        Input("text", ("a", " word", " <b>")),
    )
    picture = (3.0, 0.0, 1.0, -0.5, 2.0, 0.25, 0.25)
    sound = tuple(4.0 if n == 3 else 1.0 if n == 12 else 0.0 for n in range(16))
    rows = (picture, sound, (0.5, 1.0, -1.0))
    steps = tuple(
        Step(word, value, ("gradient_input",), (tuple(tuple(scale * n for n in row) for row in rows),))
        for word, value, scale in ((" one", 2.0, 1.0), (" two", 3.0, -2.0))
    )
    asked = Asked("continuation", " one two", where="2 tokens")
    return Explanation(
        model="a model",
        class_name="Model",
        text="photo.png",
        inputs=inputs,
        target=asked.words,
        asked=asked,
        position=None,
        value=5.0,
        dtype="float32",
        baseline="that of a picture of one mean colour",
        methods=(
            Scored("gradient_input", "Gradient x input", "default", True, rows),
            Scored("relevance", "Relevance", "default", False, tuple(tuple(map(abs, row)) for row in rows)),
        ),
        steps=steps,
        provenance={"model": {"name": "a model", "hash": "sha256:0"}},
    )
