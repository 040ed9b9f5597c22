"""Draw the pictures of docs/watch.md: training with a learning rate that climbs too far, beside a healthy run.

    python -m tools.draw_failing_run FOLDER               writes FOLDER/too-high, FOLDER/healthy and their pages
    python -m tools.draw_failing_run FOLDER --pictures    and docs/watch_loss.png, watch_steps.png and watch_live.png

The pictures need Chromium.

The model (4 blocks, 4 heads, width 48) reads the embedded book letter by letter; a minute on one core.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console
from torch.nn import functional as F

import attnscope
from attnscope.commands.timeline.terminal import frame
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.failing_runs import characters

PICTURES = Path(__file__).parent.parent / "docs"
LIVE = 195  # the step of the live screen
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


def pictures(folder: Path) -> None:
    """Draw the course, the map with the heads of block 1, and the live screen at step 195."""
    from playwright.sync_api import sync_playwright

    from tests.reports.conftest import FLAGS

    run = attnscope.timeline(folder / "too-high")
    early = replace(run, looks=tuple(look for look in run.looks if look.step <= LIVE))
    screen = Console(record=True, width=100, file=StringIO())
    screen.print(frame(early, width=100, height=30, silent=1.0))
    live = folder / "live.svg"
    live.write_text(screen.export_svg(title="attnscope timeline run --live"), "utf-8")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 1400}, reduced_motion="reduce")
        page.goto((folder / "timeline.html").resolve().as_uri())
        page.locator("#course figure").first.screenshot(path=PICTURES / "watch_loss.png")
        page.select_option("#measure", label="Attention entropy")
        page.select_option("#layer", "1")
        page.locator("#explorer-of-steps").screenshot(path=PICTURES / "watch_steps.png")
        page = browser.new_page(viewport={"width": 1200, "height": 1400})  # styles are not allowed on the page before
        page.set_content(live.read_text("utf-8"))
        page.locator("svg").first.screenshot(path=PICTURES / "watch_live.png")
        browser.close()


def main() -> None:
    folder = Path(sys.argv[1])
    runs = [folder / name if (folder / name).exists() else train(folder, name) for name in RATES]
    both = attnscope.timeline(*runs)
    attnscope.report(both, folder / "both.html")
    attnscope.report(attnscope.timeline(runs[0]), folder / "timeline.html")
    for sentence in both.sentences():
        print(sentence)
    if "--pictures" in sys.argv:
        pictures(folder)


if __name__ == "__main__":
    main()
