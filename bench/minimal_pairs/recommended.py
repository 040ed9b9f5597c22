"""`python -m bench.minimal_pairs.recommended MODEL`: does `explain --evaluate` recommend what names most truths?

`attnscope.evaluate` ranks methods without knowing a truth: by the gap between two curves while tokens are removed. In a
minimal pair the truth is known. Both look at the same texts and at the same scores of the same methods:

    gap         of `attnscope.evaluate`, with 95% intervals. Pairs of one frame are drawn together
    named       share of texts in which the highest score of the method lies on a token of the cause
    inner       the same without the first token, which often is a sink, and without the last, which asks

They agree if the method with the widest gap also names the cause most often. Models:

    smollm2       pairs of class `first`: the answer that is explained is the most likely token. They alternate between
                  kinds. About 20 seconds of one core for each
    microformer   the GPT-2 of microbes with a planted rule (`microbes.py`). A second for each, and the rule first

Writes recommended_MODEL_HALF.json. `python -m bench.minimal_pairs.recommended tables` writes the table of
docs/explain.md from these files.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from attnscope.commands.evaluate import perturbing
from attnscope.commands.evaluate.record import Faithfulness
from attnscope.core.files import write_atomically
from attnscope.data.batches import Batches
from attnscope.hf.loading.load import Loaded, load
from bench.minimal_pairs.pairs import HERE, pairs
from bench.minimal_pairs.peers import alternating, judged, wilson
from tools.fetch_models import path as weights
from tools.marked import put_between_marks

METHODS = ("relevance", "attention_lrp", "gradient_input", "path_contribution", "occlusion")
MOST, LONGEST = 20, 32  # pairs, and tokens of a text
PAGE = HERE.parents[1] / "docs" / "explain.md"
TITLES = {"smollm2": "SmolLM2", "microformer": "microbes"}


def smollm2(half: str, most: int) -> tuple[Loaded, list[dict[str, Any]], list[list[int]]]:
    """Return the model, usable pairs whose answer is ranked first and whose cause lies inside, and their tokens."""
    loaded = load(str(weights("smollm2")), dtype="float32")
    assert loaded.tokenizer is not None
    written = {pair.id: pair for pair in pairs()}
    usable = json.loads((HERE / "usable_smollm2.json").read_text())["usable"]
    fitting = [
        {**row, "frame": written[row["id"]].frame}
        for row in usable
        if row["class"] == "first"
        and half in (row["half"], "both")
        and row["tokens"] <= LONGEST
        and not {0, row["tokens"] - 1} & set(row["cause_tokens"])
    ]
    rows = alternating(fitting)[:most]
    return loaded, rows, [loaded.tokenizer(written[row["id"]].text)["input_ids"] for row in rows]


def microformer(half: str, most: int) -> tuple[Loaded, list[dict[str, Any]], list[list[int]]]:
    """Return the model with the rule, its cases, and their tokens."""
    from bench.minimal_pairs.microbes import taught

    usable = json.loads((HERE / "usable_microformer.json").read_text())["usable"]
    rows = [{**row, "frame": row["id"][:-1]} for row in usable if half in (row["half"], "both")][:most]
    return taught()[0], rows, [row["input_ids"] for row in rows]


MODELS = {"smollm2": smollm2, "microformer": microformer}


def texts_of(rows: list[dict[str, Any]], tokens: list[list[int]]) -> Batches:
    """Return the texts as batches of one sequence, in which pairs of one frame are of one document."""
    frames = sorted({row["frame"] for row in rows})
    ready = Batches.of([{"input_ids": torch.tensor([ids])} for ids in tokens], name="minimal pairs")
    return replace(ready, documents=tuple(frames.index(row["frame"]) for row in rows))


def named_first(loaded: Loaded, texts: Batches, rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return, for each method and pair, the token with the highest score and the rank of the cause."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for batch, row in zip(texts, rows, strict=True):
        explained = attnscope.explain(
            loaded, dict(batch.inputs), target=row["answer_token"], methods=METHODS, trial=False
        )
        for name in METHODS:
            found[name].append(judged(torch.tensor(explained.scores(name)), row["cause_tokens"]))
    return found


def shares(rows: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the cause is named first, with and without the ends of the text."""
    pairs_found = list(zip(rows, found, strict=True))
    return {
        column: sum(one[place] in row["cause_tokens"] for row, one in pairs_found)
        for column, place in (("named", "first"), ("inner", "first_inner"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=(*MODELS, "tables"))
    parser.add_argument("--half", choices=("tune", "held_out", "both"), default="tune")
    parser.add_argument("--most", type=int, default=MOST, help="pairs")
    options = parser.parse_args()
    if options.model == "tables":
        write_tables()
        return
    torch.set_num_threads(1)
    perturbing.BINS, perturbing.SHARES, perturbing.DRAWS = (0.5,), (0.5,), 1  # the gap does not read them
    loaded, rows, tokens = MODELS[options.model](options.half, options.most)
    texts = texts_of(rows, tokens)
    first = named_first(loaded, texts, rows)
    judged_methods = attnscope.evaluate(
        loaded, texts, methods=METHODS, progress=lambda stage, done, total: print(stage, done, total, flush=True)
    )
    counted = {name: shares(rows, each) for name, each in first.items()}
    kept = {
        "model": options.model,
        "half": options.half,
        "pairs": [row["id"] for row in rows],
        "counted": counted,
        "first": first,
        "evaluation": judged_methods.to_json(),
    }
    (HERE / f"recommended_{options.model}_{options.half}.json").write_text(json.dumps(kept) + "\n")
    _print(judged_methods, counted, len(rows), f"{options.model}, {options.half}")


def write_tables() -> None:
    """Put gaps and shares of all results into the guide, methods in the order of their gap in the first result."""
    kept = [json.loads(file.read_text()) for file in sorted(HERE.glob("recommended_*.json"), reverse=True)]
    columns = []
    for one in kept:
        found, texts = Faithfulness.from_json(one["evaluation"]), len(one["pairs"])
        gaps = {name: found.method(name).gap for name in METHODS}
        title = f"{TITLES[one['model']]}, {texts} texts"
        columns += [
            (
                f"{title}: gap",
                {name: f"{gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})" for name, gap in gaps.items()},
            ),
            *(
                (heading, {name: f"{one['counted'][name][column] / texts:.0%}" for name in METHODS})
                for heading, column in (("cause first, inside", "inner"), ("cause first, all tokens", "named"))
            ),
        ]
    order = [name for one in kept[:1] for name in _by_gap(one)]
    lines = [("method", *(title for title, _ in columns)), ("---",) * (len(columns) + 1)]
    lines += [(f"`{name}`", *(cells[name] for _, cells in columns)) for name in order]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text = put_between_marks(PAGE.read_text("utf-8"), "recommended", "bench/minimal_pairs/recommended.py", table)
    write_atomically(PAGE, text.encode())


def _by_gap(one: dict[str, Any]) -> list[str]:
    return [method["name"] for method in one["evaluation"]["methods"] if method["name"] in METHODS]


def _print(found: Faithfulness, counted: dict[str, dict[str, int]], texts: int, of: str) -> None:
    table = Table(title=f"gap of the evaluation, and how often the cause is named first: {of}, {texts} pairs")
    for heading in ("method", "gap", "95%", "log gap", "named", "95%", "inner", "95%"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method in found.methods:
        count = counted.get(method.name)
        cells = []
        for column in ("named", "inner") if count else ():
            low, high = wilson(count[column], texts)
            cells += [f"{count[column] / texts:.0%}", f"{low:.0%} to {high:.0%}"]
        assert method.log_gap is not None
        gaps = (f"{method.gap.low:.2f} to {method.gap.high:.2f}", f"{method.log_gap.mean:.2f}")
        table.add_row(method.name, f"{method.gap.mean:.2f}", *gaps, *cells)
    Console(width=120).print(table)
    print(found.sentences()[0])


if __name__ == "__main__":
    main()
