"""Update what the guide to treat says about pruning two real models: pictures in docs/, and text between marks.

    attnscope treat .weights/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf .weights/wikitext2/test.raw.gz \
        --remedy prune --max-tokens 64 --out OUT                  # half an hour of one core
    python -m tools.pruned_models smollm2 OUT/treatment.json

    python -m tools.pruned_models microformer                     # some minutes of one core

The GPT-2 of microbes has no tokenizer, so that no command can read text with it. It reads sequences drawn from itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import attnscope
from attnscope.commands.treat.record import Treatment
from attnscope.core.files import write_atomically
from attnscope.hf.loading.load import load
from attnscope.reports.export import save
from bench.prune_promise import sequences
from tools.fetch_models import path as weights
from tools.marked import put_between_marks

DOCS = Path(__file__).resolve().parents[1] / "docs"
WRITER = "tools/pruned_models.py"
ROWS, TOKENS = 160, 64  # every fifth is held out
SHOWN = 8  # rows of the table


def microformer() -> Treatment:
    """Prune the GPT-2 of microbes on sequences that it draws."""
    loaded = load(weights("microformer"), allow_pickle=True)
    drawn = torch.split(sequences(loaded.model, ROWS, TOKENS, seed=0), 4)
    return attnscope.treat(loaded, [{"input_ids": some} for some in drawn], remedy="prune", max_tokens=TOKENS)


def section(found: Treatment) -> str:
    """Return the sentences of the record and the losses of every order, at about SHOWN numbers of heads."""
    assert found.pruning is not None
    orders, counts = found.pruning.orders, found.pruning.counts
    every = max(1, round(len(counts) / SHOWN))
    shown = [n for n, count in enumerate(counts) if n % every == 0 or count == found.pruning.removed]
    lines = [("heads out", *(order.title for order in orders)), ("---",) * (len(orders) + 1)]
    lines += [(str(counts[n]), *(f"{order.losses[n]:.3f}" for order in orders)) for n in shown]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join(f"- {sentence}" for sentence in found.sentences()) + f"\n\n{table}"


def main(model: str, record: str | None = None) -> None:
    found = microformer() if record is None else attnscope.load(record)
    assert isinstance(found, Treatment)
    save(found.chart("pruning"), DOCS / f"treat_prune_{model}.png")
    page = DOCS / "treat.md"
    text = put_between_marks(page.read_text("utf-8"), f"{model}_treat", WRITER, section(found))
    write_atomically(page, text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
