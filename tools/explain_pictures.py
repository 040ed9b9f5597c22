"""Draw the pictures of docs/explain.md anew, from pages that `explain` writes for real models (minutes of one core).

    python -m tools.explain_pictures                    # all of them
    python -m tools.explain_pictures words pair         # some of them

The picture of a defect is not among them: `python -m bench.textiles --pages FOLDER` writes its page.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import sync_playwright

import attnscope
from attnscope.commands.explain.record import Explanation
from tests.reports.conftest import FLAGS
from tools.fetch_models import path as weights
from tools.real_models import whisper, whisper_words

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, MARGIN = 1080, 16  # pixels
SPEECH = "And so my fellow Americans ask not what your country can do for you"
LIKENESS = ("The cat sat in the warm kitchen and watched the rain.", "A kitten looks at bad weather.")


def words() -> Explanation:
    return attnscope.explain(weights("smollm2"), "The opposite of hot is")


def continuation() -> Explanation:
    text = "France: Paris. Italy: Rome. Spain:"
    return attnscope.explain(weights("smollm2"), text, generate=8, methods="attention_lrp")


def pair() -> Explanation:
    return attnscope.explain(weights("minilm"), *LIKENESS)


def sound() -> Explanation:
    return attnscope.explain(
        whisper(), weights("speech"), SPEECH, target=" country", tokenizer=whisper_words(), methods="relevance"
    )


PICTURES: dict[str, Callable[[], Explanation]] = {
    "words": words,
    "continuation": continuation,
    "pair": pair,
    "sound": sound,
}
LAST = {"words": "#trial", "pair": "#trial", "continuation": "#text", "sound": "#sound"}  # what is shown last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="default: all")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name in parser.parse_args().names or PICTURES:
            page = browser.new_page(viewport={"width": WIDTH, "height": 800})
            page.goto(PICTURES[name]().write_page(Path(folder) / f"{name}.html").resolve().as_uri())
            if name == "continuation":
                page.get_by_text("Attention-aware LRP (").first.click()  # it has the matrix
            box = page.locator(LAST[name]).bounding_box()
            assert box is not None
            clip = {"x": 0.0, "y": 0.0, "width": float(WIDTH), "height": box["y"] + box["height"] + MARGIN}
            page.screenshot(path=DOCS / f"explain_{name}.png", full_page=True, clip=clip)
        browser.close()


if __name__ == "__main__":
    main()
