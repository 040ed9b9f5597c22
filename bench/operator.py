"""`python -m bench.operator`: the cost of the operator of a real model, relative to the model's own passes in the same
run.

MiniLM-L6 (BERT, 6 layers, width 384), 128 tokens of WikiText-2, float32, one thread, CPU time, the smallest of several
turns. `one backward pass` is autograd's pass from one row of the output to the vectors of the tokens, without gradients
of weights; a map by contribution should cost at most one of them per output token. The cost of all columns of T is the
measured cost of one pass times their number.

Prints a table and writes bench/operator.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from attnscope.hf.loading.load import load
from bench.paths import cpu_seconds
from bench.subjects import wikitext
from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("operator.json")
TOKENS = 128
REACH = {"map by contribution, for each output token": 1.0}


def measured(turns: int) -> list[dict[str, Any]]:
    loaded = load(str(weights("minilm")))
    assert loaded.tokenizer is not None
    model = loaded.model
    ids = torch.tensor([loaded.tokenizer(wikitext()[:4000])["input_ids"][:TOKENS]])
    op = attnscope.operator(loaded, {"input_ids": ids}, dtype="float32")
    with torch.enable_grad():
        vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
        output = model(inputs_embeds=vectors).last_hidden_state
    row = torch.zeros_like(output)
    row[0, TOKENS // 2] = output[0, TOKENS // 2].detach()
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(*op.input.shape, generator=generator)
    ways: dict[str, Callable[[], Any]] = {
        "one forward pass": lambda: model(inputs_embeds=vectors),
        "one backward pass": lambda: torch.autograd.grad(output, vectors, row, retain_graph=True),
        "freeze": lambda: attnscope.operator(loaded, {"input_ids": ids}, dtype="float32"),
        "T x, one x": lambda: op @ one,
        "T^T y, one y": lambda: op.T @ one,
        "map by contribution": lambda: op.map("contribution"),
        "map by output": lambda: op.map("output"),
    }
    seconds = cpu_seconds(ways, turns)
    seconds["map by contribution, for each output token"] = seconds["map by contribution"] / TOKENS
    seconds["map by output, for each output token"] = seconds["map by output"] / TOKENS
    seconds["T itself, all columns (extrapolated)"] = op.shape[1] * seconds["map by contribution"] / TOKENS
    back = seconds["one backward pass"]
    return [{"way": name, "cpu_seconds": s, "ratio": s / back, "reach": REACH.get(name)} for name, s in seconds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measured(options.turns)
    table = Table(title="MiniLM-L6, 128 tokens, as one operator (one thread; one backward pass = 1)")
    for heading in ("way", "CPU seconds", "ratio", "reach"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        reach = "" if row["reach"] is None else f"{row['reach']:g}x"
        table.add_row(row["way"], f"{row['cpu_seconds']:.3g}", f"{row['ratio']:.3g}x", reach)
    console = Console(width=110)
    console.print(table)
    found = {"machine": platform.processor() or platform.machine(), "tokens": TOKENS, "rows": rows}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"written to {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
