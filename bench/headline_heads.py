"""`python -m bench.headline_heads`: does every head that a headline of `paths` names really move the answer?

Random windows of WikiText-2 are decomposed (`effects="mean"`), and the heads in the first sentence are taken out again
by a plain hook on the model, in another run of the whole model. A head is wrongly named if the probability of the
answer changes by a tenth or less. Heads that the headline says matter together are taken out together. The goal is
0 wrong heads. The result is kept in `bench/headline_heads.json`, by model.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnscope.commands.paths.headline import verdict
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.reference import reference
from attnscope.commands.paths.run import paths
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.editing.replacing import HeadOutputs, output_projection
from attnscope.hf.editing.surgery import prunable
from attnscope.hf.loading.load import load
from attnscope.hf.loading.one_text import reading
from bench.subjects import wikitext

Place = tuple[int, int]
RESULT = Path(__file__).with_suffix(".json")
TOGETHER = "together leaves"  # words of a headline on heads that matter only together


def named(sentence: str) -> list[Place]:
    """Return the heads that a sentence names."""
    found: list[Place] = []
    for block, heads in re.findall(r"block (\d+) heads? (\d+(?:(?:, | and )\d+)*)", sentence):
        found += [(int(block), int(head)) for head in re.findall(r"\d+", heads)]
    return list(dict.fromkeys(found))


class Hooked:
    """Takes heads out of a model with plain hooks."""

    def __init__(self, loaded: Any, text: str) -> None:
        self.loaded, self.read = loaded, reading(loaded, text)
        found = anatomy(loaded.model, self.read.batch)
        self.sites = prunable(loaded.model, found)
        network = freeze(loaded.model, self.read.batch, found)
        heads = HeadOutputs.of(loaded.model, self.sites, network, lambda stream: [stream.sum()])
        self.others = reference(loaded, self.read, heads, "mean", 0)

    def probability(self, places: list[Place], entry: int, position: int) -> float:
        handles = []
        for block, head in places:
            site, output = self.sites[block], self.others.of((block, head))[0]
            mine = slice(head * site.value_dim, (head + 1) * site.value_dim)

            def hook(
                _: Any, args: tuple[Tensor, ...], mine: slice = mine, output: Tensor = output
            ) -> tuple[Tensor, ...]:
                changed = args[0].clone()
                changed[..., mine] = output
                return (changed,)

            handles.append(output_projection(self.loaded.model, site).register_forward_pre_hook(hook))
        with torch.no_grad():
            logits = self.loaded.model(input_ids=self.read.batch["input_ids"], use_cache=False).logits[0, position]
        for handle in handles:
            handle.remove()
        return float(logits.softmax(-1)[entry])

    def wrong(self, report: PathReport) -> list[Place]:
        """Return the heads that are named and do not matter."""
        assert report.position is not None
        with torch.no_grad():
            logits = self.loaded.model(input_ids=self.read.batch["input_ids"], use_cache=False).logits[
                0, report.position
            ]
        entry, own = int(logits.argmax()), float(logits.softmax(-1).max())
        sentence = verdict(report).sentence
        places = named(sentence)
        if "the largest effect is that of" in sentence:
            return []
        tried = [places] if TOGETHER in sentence else [[place] for place in places]
        unmoved = [some for some in tried if abs(self.probability(some, entry, report.position) / own - 1) <= 0.1]
        return [place for some in unmoved for place in some]


def kind(sentence: str) -> str:
    kinds = ("induction circuit", "depends on", TOGETHER, "likelier without", "the largest effect is that of")
    return next((words for words in kinds if words in sentence), "no head")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["pocket", "smollm2"])
    parser.add_argument("--texts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    from tools.fetch_models import path as weights

    source = "pocket" if options.model == "pocket" else str(weights("smollm2"))
    loaded = load(source, dtype="float32")
    assert loaded.tokenizer is not None
    rng, whole = random.Random(options.seed), wikitext()
    heads, wrong, kinds, done = 0, 0, Counter[str](), 0
    start_of_run = time.monotonic()
    for _ in range(options.texts):
        if options.minutes is not None and time.monotonic() - start_of_run > 60 * options.minutes:
            break
        done += 1
        start = whole.index(" ", rng.randrange(len(whole) - 20 * options.tokens))
        text = loaded.tokenizer.decode(
            loaded.tokenizer(whole[start : start + 12 * options.tokens])["input_ids"][: options.tokens],
            skip_special_tokens=True,
        )
        report = paths(loaded, text, dtype="float32", draws=0, mlp=False, top=1)
        sentence = verdict(report).sentence
        kinds[kind(sentence)] += 1
        unmoved = Hooked(loaded, text).wrong(report)
        heads += 0 if "the largest effect is that of" in sentence else len(named(sentence))
        wrong += len(unmoved)
        print(f"{'WRONG ' + str(unmoved) if unmoved else 'ok'}: {sentence}", flush=True)
    print(f"{options.model}, {done} texts of {options.tokens} tokens: {heads} heads named, {wrong} wrongly")
    known = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    known[options.model] = {
        "texts": done,
        "tokens": options.tokens,
        "seed": options.seed,
        "heads_named": heads,
        "wrongly": wrong,
        "headlines": dict(kinds.most_common()),
    }
    RESULT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(", ".join(f"{words}: {number}" for words, number in kinds.most_common()))


if __name__ == "__main__":
    main()
