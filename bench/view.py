"""`python -m bench.view`: the size of the page of every head, its cost, and how fast it opens.

SmolLM2-135M (30 layers of 9 heads) on 128 and 512 tokens of WikiText-2, one thread. Time is CPU time, as a ratio to one
bare fused forward in the same run; memory is the peak above what the process held before. Headless Chromium opens each
page; the time from the start of navigation until the first head is drawn is the best of three, and the time of a page
with one word is given in brackets. The page that BertViz makes of the same maps on 128 tokens is measured if `make
peers` has unpacked it; on 512 tokens its numbers would need gigabytes as Python lists, so its size is extrapolated from
its bytes per weight.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from attnscope.commands.view.record import View
from attnscope.hf.loading.load import Loaded, load
from bench.subjects import wikitext
from bench.work import peak_megabytes_of
from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("view.json")
PEERS = Path(__file__).parent.parent / ".peers"
TOKENS = (128, 512)
REACH = {128: 2.0, 512: 25.0}  # megabytes


def measured(loaded: Loaded, tokens: int, folder: Path) -> tuple[dict[str, Any], View]:
    assert loaded.tokenizer is not None
    batch = {"input_ids": torch.tensor([loaded.tokenizer(wikitext()[: 12 * tokens])["input_ids"][:tokens]])}
    with torch.no_grad():
        loaded.model(**batch, use_cache=False)
        start = time.process_time()
        loaded.model(**batch, use_cache=False)
        bare = time.process_time() - start
    made: list[View] = []
    start = time.process_time()
    memory = peak_megabytes_of(lambda: made.append(attnscope.view(loaded, batch)))
    seconds = time.process_time() - start
    start = time.process_time()
    page = made[0].save(folder / f"view-{tokens}.html")
    drawing = time.process_time() - start
    blank = folder / "blank.html"
    blank.write_text("<!DOCTYPE html><html><body><p data-drawn='1'>nothing</p></body></html>")
    openings, beside = ([opened(one) for _ in range(3)] for one in (page, blank))
    return {
        "tokens": tokens,
        "page_mb": page.stat().st_size / 1e6,
        "largest_error": made[0].error,
        "view_seconds": seconds,
        "page_seconds": drawing,
        "forward_ratio": seconds / bare,
        "added_mb": memory["added_mb"],
        "opens_ms": min(openings),
        "blank_opens_ms": min(beside),
    }, made[0]


WATCH = """new MutationObserver(() => {
  if (!window.drawnAfter && document.querySelector("[data-drawn]")) window.drawnAfter = performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true });"""


def opened(page: Path) -> float:
    """Return the milliseconds from the start of navigation until the first head is drawn, by the page's clock."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        tab.add_init_script(WATCH)
        tab.goto(page.as_uri())
        tab.wait_for_selector("[data-drawn]", timeout=60_000)
        taken = float(tab.evaluate("window.drawnAfter"))
        browser.close()
    return taken


def bertviz_megabytes(view: View) -> float | None:
    """Return the size of the page that BertViz makes of the same maps. Two notebook functions that it needs are
    stubbed."""
    if not (PEERS / "bertviz").is_dir():
        return None
    stand_in = types.ModuleType("IPython.display")
    html = type("HTML", (), {"__init__": lambda self, data: setattr(self, "data", data)})
    stand_in.__dict__.update(display=print, HTML=html, Javascript=html)
    sys.modules |= {"IPython": types.ModuleType("IPython"), "IPython.display": stand_in}
    sys.path.append(str(PEERS))
    from bertviz import model_view  # type: ignore[import-not-found]

    layers = view.part().layers
    heads = sorted({one.head for one in view.heads})
    maps = [torch.stack([torch.from_numpy(view.attention(layer, head)) for head in heads])[None] for layer in layers]
    made = model_view(maps, list(view.inputs[0].tokens), html_action="return")
    return len(made.data.encode()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", nargs="*", type=int, default=list(TOKENS))
    options = parser.parse_args().tokens
    loaded = load(str(weights("smollm2")))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [row for row in kept if row["tokens"] not in options]
    with tempfile.TemporaryDirectory() as folder:
        for tokens in options:
            row, view = measured(loaded, tokens, Path(folder))
            row["bertviz_mb"] = bertviz_megabytes(view) if tokens == TOKENS[0] else None
            rows.append(row)
    rows.sort(key=lambda row: row["tokens"])
    first = rows[0]["bertviz_mb"] if rows[0]["tokens"] == TOKENS[0] else None
    table = Table(title="every head of SmolLM2-135M on one page (30 blocks x 9 heads)")
    for heading in (
        "tokens",
        "page MB",
        "reach",
        "BertViz MB",
        "largest error",
        "time / forward",
        "added MB",
        "opens ms",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        tokens = row["tokens"]
        beside = (
            row["bertviz_mb"] if row["bertviz_mb"] else None if first is None else first * (tokens / TOKENS[0]) ** 2
        )
        row["bertviz_expected_mb"] = beside
        said = "-" if beside is None else f"{beside:.0f}{'' if row['bertviz_mb'] else ' (from its bytes a weight)'}"
        table.add_row(
            str(tokens),
            f"{row['page_mb']:.2f}",
            f"<= {REACH[tokens]:g}",
            said,
            f"{row['largest_error']:.5f}",
            f"{row['forward_ratio']:.1f}",
            f"{row['added_mb']:.0f}",
            f"{row['opens_ms']:.0f} ({row['blank_opens_ms']:.0f})",
        )
    Console().print(table)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
