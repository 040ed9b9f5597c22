"""`python -m bench.minimal_pairs.verdict`: how often the verdict of `explain` names the decisive word.

    first       the word that the verdict names first is the cause
    named       the cause is among the words that the verdict names (two at most)
    chance      as many words drawn at random, as the verdict names

Only pairs whose answer is ranked first are counted: `explain` explains that answer unless another is requested.
Subjects: SmolLM2 on pairs written by hand, MiniLM with a linear sentiment head, and the GPT-2 of microbes with a rule
planted in it. The trial was tuned on the pairs of SmolLM2 in the halves `tune` and `held_out`. The pairs `judging` have
other frames, were written without knowing the trial, and were not looked at for it; nor were the microbes.

    python -m bench.minimal_pairs.verdict smollm2 --half judging
    python -m bench.minimal_pairs.verdict minilm
    python -m bench.minimal_pairs.verdict microformer --half both
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from attnscope.commands.explain.tried import Trial, Tried
from attnscope.hf.loading.load import load
from bench.minimal_pairs.check import FILES
from bench.minimal_pairs.pairs import HERE, pairs
from bench.minimal_pairs.peers import wilson
from tools.fetch_models import path as weights

CHEAP = "relevance,attention_lrp,gradient_input"


def smollm2(half: str, methods: str) -> Iterator[tuple[dict[str, Any], Trial]]:
    written, checked = FILES.get(half, FILES["split"])
    usable = json.loads(checked.read_text())["usable"]
    texts = {pair.id: pair.text for pair in pairs(written)}
    loaded = load(str(weights("smollm2")), dtype="float32")
    for row in usable:
        if row["class"] == "first" and half in (row["half"], "both"):
            found = attnscope.explain(loaded, texts[row["id"]], methods=methods)
            assert found.trial is not None
            yield row, found.trial


def minilm(half: str, methods: str) -> Iterator[tuple[dict[str, Any], Trial]]:
    from bench.minimal_pairs.planted import sentiment_model

    usable = json.loads((HERE / "usable_minilm.json").read_text())["usable"]
    texts = {row["id"]: row["text"] for row in map(json.loads, (HERE / "sentiment.jsonl").read_text().splitlines())}
    model, tokenizer = sentiment_model()
    for row in usable:
        if half not in (row["half"], "both"):
            continue
        found = attnscope.explain(model, texts[row["id"]], methods=methods, tokenizer=tokenizer)
        assert found.trial is not None
        yield row, found.trial


def microformer(half: str, methods: str) -> Iterator[tuple[dict[str, Any], Trial]]:
    """Teach the rule again, and refuse cases whose answer is another one on this machine."""
    from bench.minimal_pairs.microbes import taught

    usable = json.loads((HERE / "usable_microformer.json").read_text())["usable"]
    loaded, _, _ = taught()
    for row in usable:
        if half not in (row["half"], "both"):
            continue
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            answer = int(loaded.model(ids).logits[0, -1].argmax())
        if answer != row["answer_token"]:
            raise SystemExit(f"{row['id']} has another answer here: python -m bench.minimal_pairs.planted microbes")
        found = attnscope.explain(loaded, {"input_ids": ids}, methods=methods)
        assert found.trial is not None
        yield row, found.trial


SUBJECTS = {"smollm2": smollm2, "minilm": minilm, "microformer": microformer}


def judged(row: dict[str, Any], trial: Trial) -> dict[str, Any]:
    cause = set(row["cause_tokens"])

    def hit(words: tuple[Tried, ...]) -> bool:
        return any(cause & set(word.tokens) for word in words)

    return {
        "id": row["id"],
        "kind": row["kind"],
        "half": row["half"],
        "first": hit(trial.named[:1]),
        "named": hit(trial.named),
        "tried": hit(trial.words),
        "words": [word.word for word in trial.named],
        "chance": min(1.0, len(trial.named) / max(1, row["tokens"] - 1)),
        "inputs": trial.inputs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--half", choices=("tune", "held_out", "both", "judging"), default="held_out")
    parser.add_argument("--methods", default=CHEAP, help="the methods that choose which words are tried")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for row, trial in SUBJECTS[options.subject](options.half, options.methods):
        found.append(judged(row, trial))
        print(
            f"{len(found)} {found[-1]['id']}: {found[-1]['words']} {'' if found[-1]['named'] else 'MISSED'}", flush=True
        )
    name = f"{options.subject}_{options.half}"
    rows = ",\n".join(json.dumps(row) for row in found)
    Path(HERE / f"verdict_{name}.json").write_text(f'{{"methods": "{options.methods}", "pairs": [\n{rows}\n]}}\n')
    _print(found, f"{options.subject}, {options.half}")


def _print(found: list[dict[str, Any]], title: str) -> None:
    table = Table(title=f"share of minimal pairs whose decisive word the verdict names: {title}")
    for heading in ("kind", "pairs", "first", "named", "95%", "tried", "words named", "chance"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind in [*sorted({row["kind"] for row in found}), "all"]:
        mine = [row for row in found if kind in (row["kind"], "all")]
        low, high = wilson(sum(row["named"] for row in mine), len(mine))
        table.add_row(
            kind,
            str(len(mine)),
            *(f"{_mean(row[name] for row in mine):.0%}" for name in ("first", "named")),
            f"{low:.0%} to {high:.0%}",
            f"{_mean(row['tried'] for row in mine):.0%}",
            f"{_mean(len(row['words']) for row in mine):.2f}",
            f"{_mean(row['chance'] for row in mine):.0%}",
        )
    Console(width=110).print(table)


def _mean(values: Any) -> float:
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / max(1, len(numbers))


if __name__ == "__main__":
    main()
