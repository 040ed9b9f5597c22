"""How often `treat --remedy prune --keep-loss` keeps its promise, on fresh text that no run has seen.

    python -m bench.prune_promise pocket        # books of .weights/gutenberg; about half a minute a run
    python -m bench.prune_promise microformer   # sequences drawn from the model itself; about two minutes a run
    python -m bench.prune_promise smollm2 OUT/treatment.json    # a run of the command on WikiText-2's test part, judged
                                                                # on articles of its validation part; two minutes

Every run gets its own text. The truth is the mean rise of the loss on other text of the same kind, several times as
long. A run promises if its headline says that the heads can go. The promise is kept if the truth is within the budget.
For comparison: the heads that the choosing text alone allows, as if nothing were checked. Results: prune_promise.json.
A second call goes on after the runs that are in it.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import attnscope
from attnscope.commands.treat import pruning
from attnscope.commands.treat.halves import SequenceLoss
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.removal_losses import RemovalLosses
from attnscope.core.files import write_atomically
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.loading.load import Loaded, batches_for, load
from attnscope.hf.loading.options import Sampling
from bench.next_tokens import HEADING
from tools.fetch_models import path

RESULTS = Path(__file__).with_suffix(".json")
BUDGETS = (0.02, 0.05)
BOOKS = (
    *("austen-emma", "bryant-stories", "carroll-alice", "chesterton-brown", "edgeworth-parents"),
    *("melville-moby_dick", "shakespeare-hamlet", "whitman-leaves", "austen-sense", "chesterton-ball"),
)
DOCUMENTS, LETTERS, FRESH, TOKENS = 60, 1200, 256, 64


def books(loaded: Loaded) -> Iterator[tuple[str, Any, Batches]]:
    """Yield name, text and fresh token sequences of every book."""
    assert loaded.tokenizer is not None
    for name in BOOKS:
        book = (path("gutenberg") / f"{name}.txt").read_text("utf-8", errors="replace")
        pieces = [book[start : start + LETTERS] for start in range(2000, len(book) - LETTERS, LETTERS)]
        random.Random(name).shuffle(pieces)
        ids = [loaded.tokenizer(piece)["input_ids"][:TOKENS] for piece in pieces[DOCUMENTS : DOCUMENTS + FRESH]]
        rows = torch.tensor([row for row in ids if len(row) == TOKENS])
        yield name, pieces[:DOCUMENTS], Batches.of([{"input_ids": some} for some in torch.split(rows, 16)])


def drawn(loaded: Loaded) -> Iterator[tuple[str, Any, Batches]]:
    """Yield sequences that the model itself draws, with one seed for each run."""
    for seed in range(6):
        rows = sequences(loaded.model, 160 + FRESH, TOKENS, seed)
        few = [{"input_ids": some} for some in torch.split(rows[:160], 4)]
        yield f"seed {seed}", few, Batches.of([{"input_ids": some} for some in torch.split(rows[160:], 16)])


@torch.no_grad()
def sequences(model: Any, rows: int, tokens: int, seed: int) -> torch.Tensor:
    """Draw token after token by the model's own probabilities, also after the token that ends a text."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.full((rows, 1), 2)
    cache = None
    while ids.shape[1] < tokens:
        output = model(ids[:, -1:], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        ids = torch.cat([ids, torch.multinomial(output.logits[:, -1].softmax(-1), 1, generator=draw)], dim=1)
    return ids


def judged(name: str, found: Treatment, truth: RemovalLosses) -> dict[str, Any]:
    """Return what a run promised, and what is true on fresh text."""
    assert found.pruning is not None
    order = next(one for one in found.pruning.orders if one.name == found.pruning.by)
    assert order.fits is not None
    return {
        "text": name,
        "budget": found.pruning.limit,
        "removed": found.pruning.removed,
        "promised": bool(found.removed) and bool(found.budget_kept),
        "held_out": [found.loss.mean, found.loss.high],
        "truth": truth.change("fresh", found.removed).mean,
        "unchecked": order.fits,
        "unchecked_truth": truth.change("fresh", order.heads[: order.fits]).mean,
        "by": order.name,
    }


def of_record(file: Path) -> dict[str, Any]:
    """Judge a run of SmolLM2 on articles that it did not read, the first tokens of each."""
    found = attnscope.load(file)
    assert isinstance(found, Treatment)
    loaded = load(path("smollm2"))
    (valid,) = path("wikitext2").rglob("valid*")
    articles = HEADING.split(gzip.decompress(valid.read_bytes()).decode())[1:]
    fresh = batches_for(loaded, articles, Sampling(FRESH, TOKENS, batch_size=16))
    truth = RemovalLosses(SequenceLoss(loaded), prunable(loaded.model, anatomy(loaded.model)), {"fresh": fresh})
    return judged(f"WikiText-2, {len(found.arms['before'].losses)} sequences", found, truth)


def main(model: str, record: str | None = None) -> None:
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    rows = results.setdefault(model, [])
    if record is not None:
        rows.append(of_record(Path(record)))
        write_atomically(RESULTS, json.dumps(results, indent=1).encode())
        print(model, rows[-1])
        return
    pruning.POINTS = 5  # fewer points on the held-out curves, which decide nothing
    loaded = load(model if model == "pocket" else path(model), allow_pickle=True)
    for name, text, fresh in books(loaded) if model == "pocket" else drawn(loaded):
        sites = prunable(loaded.model, anatomy(loaded.model))
        truth = RemovalLosses(SequenceLoss(loaded), sites, {"fresh": fresh})
        for budget in BUDGETS:
            if any((row["text"], row["budget"]) == (name, budget) for row in rows):
                continue
            start = time.monotonic()
            found = attnscope.treat(
                loaded, text, remedy="prune", keep_loss=budget, max_tokens=TOKENS, samples=32, settings={"prompts": 4}
            )
            rows.append({**judged(name, found, truth), "seconds": round(time.monotonic() - start, 1)})
            print(model, rows[-1], flush=True)
            write_atomically(RESULTS, json.dumps(results, indent=1).encode())
    promised = [row for row in rows if row["promised"]]
    kept = sum(row["truth"] <= row["budget"] for row in promised)
    unchecked = sum(row["unchecked_truth"] <= row["budget"] for row in rows)
    print(f"{model}: {len(rows)} runs, {len(promised)} promised, {kept} kept; without the check {unchecked} kept")


if __name__ == "__main__":
    main(*sys.argv[1:])
