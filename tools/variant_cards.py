"""Write src/attnscope/variants/cards.json, which `attnscope variants` lists without torch, and docs/variants.md.

python tools/variant_cards.py            write both
python tools/variant_cards.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnscope.core.files import write_atomically
from attnscope.core.finding import BOS, PRUNE, TABLE
from attnscope.core.registry import variants
from attnscope.core.variant import FILE, Kind, VariantCard, cards_json

ROOT = Path(__file__).resolve().parents[1]
CARDS = ROOT / "src" / "attnscope" / "variants" / FILE
BENCH = ROOT / "bench" / "variants.json"
PAGE = ROOT / "docs" / "variants.md"
INPUTS = "AttentionInputs(query, key, value, visible=..., causal=..., scale=...)"
KINDS: Mapping[Kind, tuple[str, str]] = {
    "pattern": (
        "Other weights",
        "`variant(AttentionInputs(query, key, value, visible=..., causal=..., scale=...), ...)`",
    ),
    "logits": (
        "Before softmax",
        "`variant(AttentionInputs(query, key, value, visible=..., causal=..., scale=...), ...)`",
    ),
    "output": ("What heads give, and values", "`variant(mixed or value, stream or first_value, ...)`"),
    "block": ("Norms and residual", "`variant(write, normed, stream or streams, ...)`"),
    "weights": ("Parameters alone", "`variant(weights, ...)`"),
}
INTRODUCTION = """# Choosing attention

Every published attention worth trying that attnscope has, what each is for, and what it costs. To try one on a model of
yours beside a control: `attnscope treat` ([from finding to remedy](treat.md)). To put one in and take it out again:

```python
with attnscope.installed(model, "gated_output", blocks=[3, 4]) as treated:
    ...                                        # runs, trains, is scanned; attnscope.save_treated(model, "folder")
```

Written from the cards by `make tables`. `attnscope variants` shows the same in a terminal, `attnscope.variants()` hands
it out in Python:

```python
import torch

from attnscope.core.variant import Size
from attnscope.matrix.visibility import AttentionInputs

query, key, value, stream = (torch.randn(shape) for shape in [(1, 12, 16, 64)] * 3 + [(1, 16, 768)])
local = attnscope.variants("local")
inputs = AttentionInputs(query, key, value, causal=True, scale=0.125)
mixed = local(inputs, window=64)                               # [batch, head, token, dim]
gates = attnscope.variants("gated_output")
own = gates.start(Size(heads=12, dim=64, width=768))           # tensors to begin with
mixed = gates(mixed.transpose(1, 2), stream, **own)            # [batch, token, head, dim]
```

`s` are logits, `A` is softmax of them, `J` gives all keys that a query sees the same weight. `visible` is True where a
key is seen; keys and values may have fewer heads than queries. *Keeps* says from which start a trained model computes
what it computed before, to rounding; where there is none, *changes* says why. Statistics of `scan` that do not mean
here what they mean for softmax are named with each variant.
"""

COSTS = """## What it costs

Ratios to torch's fused attention in the same run (`python -m bench.variants`: one thread of a processor, CPU time, two
heads). The slope is that of time in log n between 4096 and 16384; the fused kernel has 2. Windows see 64 places either
way; `performer` has four features a dimension. performer-pytorch and local-attention are the libraries of these names.

{rows}

At n = 4096, over masks, head widths and passes (the last row is x-transformers' gated layer beside its plain one):

{close}

A whole model with gates installed (MiniLM, 64 texts of 128 tokens): {gates}, of the plain model's time.
"""


def page(cards: Iterable[VariantCard]) -> str:
    known = list(cards)
    parts = [INTRODUCTION, _remedies(), _costs(), "## All of them\n", _table(known)]
    for kind, (heading, call) in KINDS.items():
        parts.append(f"## {heading}\n\nKind `{kind}`: {call}\n")
        parts += [_card(card) for card in known if card.kind == kind]
    return "\n".join(parts)


def _remedies() -> str:
    """Return the table that `treat --remedy auto` uses."""
    rows = ["| a scan found | to try, the first one first | why |", "|---|---|---|"]
    for row in TABLE:
        named = ", ".join(f"`{one}`" if one in (PRUNE, BOS) else f"[`{one}`](#{one})" for one in row.remedies)
        rows.append(f"| {row.finding.replace('_', ' ')} | {named} | {row.why} |")
    return "## By what was found\n\n" + "\n".join(rows) + "\n"


def _costs() -> str:
    """Return the costs from the last run of `python -m bench.variants`."""
    found = json.loads(BENCH.read_text("utf-8"))
    rows = [
        "| attention | head width | mask | pass | time at n = 1024, 4096, 16384 | memory | slope | faster from n |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found["linear"]:
        times, memory = (" / ".join(f"{r:.2g}" for r in one[key]) for key in ("time_ratios", "memory_ratios"))
        mask, ran = "causal" if one["causal"] else "none", "forward, backward" if one["backward"] else "forward"
        shape = f"{one['way']} | {one['dim']} | {mask} | {ran}"
        rows.append(f"| {shape} | {times} | {memory} | {one['slope']:.2f} | {one['wins_from']} |")
    kin: dict[str, list[float]] = {}
    for row in found["kin"]:
        for name, ratio in row["time_ratios"].items():
            kin.setdefault(name, []).append(ratio)
    close = [f"| {name} | {min(ratios):.2f} to {max(ratios):.2f} |" for name, ratios in kin.items()]
    gates = ", ".join(f"{ratio:.2f}x with `{name}`" for name, ratio in found["installed"].items())
    return COSTS.format(
        rows="\n".join(rows), close="\n".join(["| attention | time |", "|---|---|", *close]), gates=gates
    )


def _table(cards: list[VariantCard]) -> str:
    rows = ["| variant | kind | what it does | time | memory | start | source |", "|---|---|---|---|---|---|---|"]
    for kind in KINDS:
        for card in cards:
            if card.kind == kind:
                start = "keeps" if card.keeps else "changes"
                says = (kind, card.summary, card.cost, card.memory, start, card.citation)
                rows.append(f"| [`{card.name}`](#{card.name}) | {' | '.join(says)} |")
    return "\n".join(rows) + "\n"


def _card(card: VariantCard) -> str:
    lines = [f"### {card.name}", "", f"{card.title}. {card.summary}", "", "```text", card.formula, "```", ""]
    lines += [f"- **{term}** {words}" for term, words in card.facts() if term != "formula"]
    return "\n".join(lines) + "\n"


def main(check: bool) -> int:
    fresh = page(one.card for one in variants().values())
    if check:
        return int(PAGE.read_text("utf-8") != fresh or CARDS.read_bytes() != cards_json(variants()))
    write_atomically(CARDS, cards_json(variants()))
    write_atomically(PAGE, fresh.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
