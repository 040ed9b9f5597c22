"""Draw the pictures of docs/watch.md: training with a learning rate that climbs too far, beside a healthy run.

    python tools/draw_failing_run.py FOLDER          writes FOLDER/too-high, FOLDER/healthy and their pages

The model (4 blocks, 4 heads, width 48) reads the embedded book letter by letter; a minute on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import attnscope
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.failing_runs import characters

STEPS, TOKENS, SEQUENCES, EVERY = 400, 32, 16, 5
RATES = {"too-high": lambda step: 0.2 * (step + 1) / STEPS, "healthy": lambda step: 3e-3 * min(1.0, (step + 1) / 50)}


def train(folder: Path, name: str) -> Path:
    letters, many = characters()
    model = Nano(
        Config(width=48, heads=4, layers=4, vocab_size=many, mlp=192, norm="pre", causal=True, max_tokens=TOKENS), 0
    ).train()
    optimiser = torch.optim.Adam(model.parameters())
    draw = torch.Generator().manual_seed(0)
    with attnscope.watch(model, folder / name, every=EVERY, name="a small language model") as watch:
        for step in range(STEPS):
            for group in optimiser.param_groups:
                group["lr"] = RATES[name](step)
            starts = torch.randint(len(letters) - TOKENS - 1, (SEQUENCES,), generator=draw)
            batch = torch.stack([letters[start : start + TOKENS + 1] for start in starts.tolist()])
            logits = model(input_ids=batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            watch.step(loss=loss)
    return folder / name


def main() -> None:
    folder = Path(sys.argv[1])
    runs = [train(folder, name) for name in RATES]
    both = attnscope.timeline(*runs)
    attnscope.report(both, folder / "both.html")
    attnscope.report(attnscope.timeline(runs[0]), folder / "timeline.html")
    for sentence in both.sentences():
        print(sentence)


if __name__ == "__main__":
    main()
