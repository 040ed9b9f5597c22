"""`python -m bench.minimal_pairs.check`: which minimal pairs SmolLM2-135M answers rightly.

A pair is usable if

    both texts have equally many tokens, which differ only in the tokens of the cause
    both answers are single tokens
    on the text, the answer is ranked first among all tokens (class `first`), or its logit exceeds that of the other
        answer by at least 2 (class `margin`)
    on the exchanged text, the logit of the other answer exceeds that of the answer by at least 2

Then the exchanged word decides between the two answers: nothing else differs. Writes usable_smollm2.json with
probabilities, the tokens of the cause, and the half (`tune` or `held_out`) of every usable pair, and says why each
other pair is left out. Weights are float32, the text begins as in `attnscope explain`. Seconds of one core.

    python -m bench.minimal_pairs.check --pairs judging

checks pairs_judging.jsonl instead and writes usable_judging.json. These pairs were written without knowing the rule
they judge, and none of them is split off to tune it: the half of all is `judging`.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attnscope.hf.loading.load import Loaded, load
from attnscope.hf.loading.one_text import reading
from bench.minimal_pairs.pairs import HERE, Pair, half_of, pairs
from tools.fetch_models import path as weights

# Written pairs and the file with the usable ones among them, by the argument --pairs.
FILES: dict[str, tuple[Path, Path]] = {
    "split": (HERE / "pairs.jsonl", HERE / "usable_smollm2.json"),
    "judging": (HERE / "pairs_judging.jsonl", HERE / "usable_judging.json"),
}
MARGIN = 2.0  # nats


def token_of(loaded: Loaded, answer: str) -> int | None:
    """Return the token of an answer, or None if it is several tokens."""
    assert loaded.tokenizer is not None
    ids = loaded.tokenizer(answer, add_special_tokens=False)["input_ids"]
    return int(ids[0]) if len(ids) == 1 else None


def differing(loaded: Loaded, pair: Pair) -> tuple[torch.Tensor, torch.Tensor, list[int]] | None:
    """Return the tokens of both texts and the places of the cause, or None if other tokens differ too."""
    ids, exchanged = (reading(loaded, text).batch["input_ids"] for text in (pair.text, pair.exchanged))
    if ids.shape != exchanged.shape:
        return None
    places = [int(place) for place in (ids != exchanged)[0].nonzero()[:, 0]]
    assert loaded.tokenizer is not None
    spans: list[tuple[int, int]] = loaded.tokenizer(pair.text, return_offsets_mapping=True)["offset_mapping"]
    added = ids.shape[1] - len(spans)  # BOS, if the model reads one
    inside = all(spans[place - added][1] > pair.start and spans[place - added][0] < pair.end for place in places)
    return (ids, exchanged, places) if places and inside else None


def checked(loaded: Loaded, pair: Pair) -> dict[str, Any] | str:
    """Return the probabilities of a usable pair, or why it is not usable."""
    right, wrong = token_of(loaded, pair.answer), token_of(loaded, pair.other_answer)
    if right is None or wrong is None or right == wrong:
        return "the answers are not two single tokens"
    found = differing(loaded, pair)
    if found is None:
        return "the texts differ in more tokens than the cause"
    ids, exchanged, places = found
    with torch.no_grad():
        model: Any = loaded.model
        on_text, on_exchanged = (model(input_ids=given).logits[0, -1].log_softmax(-1) for given in (ids, exchanged))
    log_odds = float(on_text[right] - on_text[wrong])
    log_odds_exchanged = float(on_exchanged[right] - on_exchanged[wrong])
    first = int(on_text.argmax()) == right
    if not first and log_odds < MARGIN:
        return f"on the text, log-odds of the answer are {log_odds:.2f}"
    if log_odds_exchanged > -MARGIN:
        return f"on the exchanged text, log-odds of the answer are {log_odds_exchanged:.2f}"
    return {
        "id": pair.id,
        "kind": pair.kind,
        "class": "first" if first else "margin",
        "tokens": ids.shape[1],
        "cause_tokens": places,
        "answer_token": right,
        "other_answer_token": wrong,
        "probability": round(float(on_text[right].exp()), 5),
        "probability_exchanged": round(float(on_exchanged[right].exp()), 5),
        "other_probability": round(float(on_text[wrong].exp()), 5),
        "other_probability_exchanged": round(float(on_exchanged[wrong].exp()), 5),
        "log_odds": round(log_odds, 3),
        "log_odds_exchanged": round(log_odds_exchanged, 3),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.minimal_pairs.check")
    parser.add_argument("--pairs", choices=FILES, default="split", help="which file of pairs to check")
    chosen: str = parser.parse_args(arguments).pairs
    source, results = FILES[chosen]
    torch.set_num_threads(1)
    loaded = load(str(weights("smollm2")), dtype="float32")
    written = pairs(source)
    usable: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for pair in written:
        found = checked(loaded, pair)
        if isinstance(found, str):
            left_out[pair.id] = found
        else:
            usable.append({**found, "half": "judging" if chosen == "judging" else half_of(pair.frame)})
    lines = ",\n  ".join(json.dumps(row) for row in usable)
    results.write_text(
        f'{{"model": "{loaded.name}", "margin": {MARGIN}, "usable": [\n  {lines}\n ],\n'
        f' "left_out": {json.dumps(left_out, indent=1)}}}\n'
    )
    _print(written, usable)


def _print(written: list[Pair], usable: list[dict[str, Any]]) -> None:
    table = Table(title="minimal pairs that SmolLM2-135M answers rightly")
    halves = ("judging",) if any(row["half"] == "judging" for row in usable) else ("tune", "held_out")
    for heading in ("kind", "written", "usable", "ranked first", *(half.replace("_", " ") for half in halves)):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    everything = Counter(pair.kind for pair in written)
    for kind in (*everything, None):
        rows = [row for row in usable if kind in (None, row["kind"])]
        halves_of = Counter(row["half"] for row in rows)
        counts = (
            everything[kind] if kind else len(written),
            len(rows),
            sum(row["class"] == "first" for row in rows),
            *(halves_of[half] for half in halves),
        )
        table.add_row(kind or "all", *map(str, counts))
    Console().print(table)


if __name__ == "__main__":
    main()
