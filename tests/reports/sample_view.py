"""A view made by hand: three kinds of attention between a few tokens, two layers of three heads each."""

from __future__ import annotations

import numpy as np

from attnscope.commands.explain.record import Input
from attnscope.commands.view.record import HeadMap, Opened, Part, View, packed, quantised

WORDS = {
    "encoder": ("<s>", " one", "</script><b>", "\n"),
    "decoder": ("<s>", " uno", " dos", " tres", " a-very-long-word-of-a-language"),
}


def _part(name: str, queries: str, keys: str, causal: bool) -> Part:
    generator = np.random.default_rng(len(name))
    heads = []
    for layer in range(2):
        for head in range(3):
            weights = generator.dirichlet(np.full(len(WORDS[keys]), 0.5), len(WORDS[queries]))
            weights = np.tril(weights) if causal else weights
            codes, scales = quantised(weights)
            heads.append(HeadMap(layer, head, 0.001, 1.0, 0.5, 0.25, 0.125, packed(codes, scales, causal=causal)))
    return Part(name, queries, keys, causal, None, tuple(heads))


def sample_view() -> View:
    return View(
        model="<script>model",
        class_name="T5",
        text="one",
        dtype="float32",
        inputs=tuple(Input(name, words) for name, words in WORDS.items()),
        parts=(
            _part("encoder", "encoder", "encoder", False),
            _part("decoder", "decoder", "decoder", True),
            _part("decoder cross", "decoder", "encoder", False),
        ),
        opened=Opened("decoder", 1, 2),
        checked="Checked.",
    )
