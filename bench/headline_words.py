"""`python -m bench.headline_words MODEL --texts N`: are the words that `explain` names really needed for the answer?

Windows of WikiText-2 are drawn at random. Every word that is said to have decided is replaced once more, by words that
the trial did not use: the next nearest of its kind, and tokens drawn from the model's own distribution at that place.
Let m be the median answer with these, and p the answer without a change. The word is

    wrong       if m is within a tenth of p: replacing it changes nothing
    weak        if m is above two thirds of p: the answer does not fall by a third, which is what the verdict claims

Words that "can change" the answer are counted apart: such a sentence names a replacement, and is true of that one.

    python -m bench.headline_words pocket --texts 100
    python -m bench.headline_words smollm2 --texts 100
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import attnscope
from attnscope.commands.explain.replacing import Vocabulary
from attnscope.commands.explain.tried import DECIDED, MOVED, Tried
from attnscope.hf.loading.load import Loaded, load
from bench.minimal_pairs.verdict import CHEAP
from bench.subjects import wikitext
from tools.fetch_models import path as weights

SHORTEST, LONGEST = 12, 40  # tokens of a window
NEARER, DRAWN = 8, 4  # replacements of each kind
RESULTS = Path(__file__).with_name("headline_words.json")


@dataclass(frozen=True)
class Plain:
    """A text and the model's answer to it. Words are replaced by plain runs of the model on whole texts."""

    loaded: Loaded
    ids: Int[Tensor, " token"]
    logits: Float[Tensor, "token entry"]

    @classmethod
    @torch.no_grad()
    def of(cls, loaded: Loaded, ids: Int[Tensor, " token"]) -> Plain:
        model: Any = loaded.model
        return cls(loaded, ids, model(input_ids=ids[None], use_cache=False).logits[0])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        model: Any = self.loaded.model
        return Vocabulary(model.get_input_embeddings(), self.loaded.tokenizer)

    @torch.no_grad()
    def answer(self, word: Tried, row: tuple[int, ...]) -> float:
        """Return the probability of the model's own answer with other tokens in the place of a word."""
        model: Any = self.loaded.model
        changed = self.ids.clone()
        changed[list(word.tokens)] = torch.tensor(row)
        last = model(input_ids=changed[None], use_cache=False).logits[0, -1]
        return float(last.softmax(-1)[int(self.logits[-1].argmax())])

    def answers_without(self, word: Tried, generator: torch.Generator) -> list[float]:
        """Return the answers with words that the trial did not use: the next nearest, and drawn ones."""
        used = {one.text for one in word.every}
        own, before = self.ids[list(word.tokens)].tolist(), word.tokens[0] - 1
        rows = [r for r in self.vocabulary.nearest(own, NEARER + len(used)) if self.vocabulary.spelt(r) not in used]
        rows = rows[:NEARER]
        if len(own) == 1 and before >= 0:
            chances = self.logits[before].softmax(-1)
            chances[own[0]] = 0
            rows += [(int(token),) for token in torch.multinomial(chances, DRAWN, generator=generator)]
        return [self.answer(word, row) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("pocket", "smollm2"))
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load(options.model if options.model == "pocket" else str(weights("smollm2")), dtype="float32")
    tokenizer: Any = loaded.tokenizer
    draw, generator = random.Random(options.seed), torch.Generator().manual_seed(options.seed)
    text = wikitext()
    counted = dict.fromkeys(("texts", "named", "wrong", "weak", "changing", "unnamed"), 0)
    wrong = []
    for _ in range(options.texts):
        begin = draw.randrange(len(text) - 1000)
        begin = text.find(" ", begin) + 1
        words = text[begin : begin + 1000].split()[: draw.randrange(SHORTEST, LONGEST) * 2 // 3]
        found = attnscope.explain(loaded, " ".join(words), methods=CHEAP)
        assert found.trial is not None
        ids = torch.tensor(tokenizer(" ".join(words))["input_ids"])
        assert len(ids) == len(found.inputs[0].tokens)
        trial, plain = found.trial, Plain.of(loaded, ids)
        counted["texts"] += 1
        counted["unnamed"] += not trial.named
        for word in trial.named:
            if not trial.decides(word):
                counted["changing"] += 1
                continue
            others = plain.answers_without(word, generator)
            if not others:  # a vocabulary may have only a few tokens of a kind
                continue
            after = statistics.median(others)
            counted["named"] += 1
            counted["weak"] += after > (1 - DECIDED) * trial.before
            if abs(after - trial.before) <= MOVED * trial.before:
                counted["wrong"] += 1
                wrong.append((" ".join(words), word.word, trial.before, word.after, after))
        print(counted, flush=True)
    for case in wrong:
        print(case)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept.setdefault(options.model, {})[f"seed {options.seed}"] = counted
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
