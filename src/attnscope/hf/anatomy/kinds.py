"""What a block does in place of softmax attention, in a word a reader knows: told by the classes of what ran inside it.

No statistic hangs on it: it is how pages and sentences name such a block (`block 2 (Mamba)`).
"""

from __future__ import annotations

import re

from attnscope.hf.anatomy.census import Census

ATTENTION = "attention"
UNSEEN = "attention that is not seen"
_KINDS: tuple[tuple[str, str], ...] = (  # the first that fits a class inside the block
    ("mamba|ssm|statespace", "Mamba"),
    ("deltanet|deltaattention|lightningattention|linearatt|retention|rwkv|gatedlinear", "linear attention"),
    ("recurrent|rglru|lstm|gru", "recurrent"),
    ("conv", "convolution"),
)
_FEEDS = "mlp|moe|feedforward|ffn|expert"
_ATTENDS = re.compile(r"attention|attn", re.IGNORECASE)


def kind_of(census: Census, number: int, told: str | None = None) -> str:
    """The kind of a block in which no softmax attention was seen. `told` is what the configuration calls it."""
    inside = [census.calls[one] for one in census.within(number)]
    classes = [call.class_name.lower() for call in inside]
    names = [call.path.removeprefix(inside[0].path).lower().replace("_", "") for call in inside]
    words = (*classes, *names, (told or "").lower().replace("_", ""))
    for pattern, kind in _KINDS:
        if any(re.search(pattern, word) for word in words):
            return kind
    if unseen_attention(census, number):
        return UNSEEN
    feeds = any(re.search(_FEEDS, name) for name in classes) and not any("mixer" in name for name in classes)
    return "MLP" if feeds else "no attention"


def told_kinds(config: object) -> tuple[str, ...]:
    """What a configuration calls each of its layers, where it says so."""
    for name in ("layers_block_type", "layer_types", "block_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and all(isinstance(kind, str) for kind in kinds):
            return tuple(kinds)
    return ()


def unseen_attention(census: Census, number: int | None = None) -> tuple[str, ...]:
    """Classes that are called attention and ran without any attention in sight, in one block or in the whole run."""
    calls = range(len(census.calls)) if number is None else census.within(number)
    seen = {inside for attention in census.attention for inside in attention.inside}
    holding = {call.around for call in census.calls}
    named = (n for n in calls if n not in seen and n in holding and _ATTENDS.search(census.calls[n].class_name))
    return tuple(dict.fromkeys(census.calls[n].class_name for n in named))
