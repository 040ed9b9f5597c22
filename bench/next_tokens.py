"""`python -m bench.next_tokens`: which explanation of a next token is faithful in SmolLM2-135M.

Faithfulness is that of `attnscope explain --evaluate`: 12 articles of WikiText-2's test part, the first 20 words of the
first long paragraph of each; the probability of the token that the model predicts is measured while words are removed.
All default methods are compared with occlusion and random scores. One thread; about twenty minutes of one core.

Writes bench/next_tokens.json (the record of `evaluate`, which `attnscope.load` reads back) and, with --page, its page.
"""

from __future__ import annotations

import argparse
import json
import re
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console

import attnscope
from attnscope.core.progress import silent
from attnscope.reports.terminal import print_record
from bench.subjects import wikitext
from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("next_tokens.json")
ARTICLES, WORDS, LONG = 12, 20, 300  # least characters of a paragraph, to skip captions
HEADING = re.compile(r"^ = [^=]+ = $", re.MULTILINE)


def beginnings(count: int) -> list[str]:
    """Return one text per article, because texts of one article are not independent."""
    articles = HEADING.split(wikitext())[1:]
    paragraphs = (next((line for line in article.splitlines() if len(line) > LONG), None) for article in articles)
    return [" ".join(line.split()[:WORDS]) for line in islice(filter(None, paragraphs), count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--articles", type=int, default=ARTICLES)
    parser.add_argument("--method", default="default")
    parser.add_argument("--page", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    evaluation = attnscope.evaluate(
        str(weights("smollm2")),
        beginnings(options.articles),
        methods=options.method,
        samples=options.articles,
        max_tokens=3 * WORDS,
        progress=silent,
    )
    print_record(evaluation, console=Console(width=100), verbose=True)
    RESULTS.write_text(json.dumps(evaluation.to_json(), indent=1) + "\n")
    if options.page is not None:
        evaluation.write_page(options.page)


if __name__ == "__main__":
    main()
