"""`python -m bench.headline_words MODEL --texts N`: are the words that `explain` names really needed for the answer?

Windows of WikiText-2 are drawn at random. Every word that a verdict names is replaced once more, by words that the
trial did not use: the next nearest of its kind, and tokens drawn from the model's own distribution at that place. A
named word is *wrong* if the median answer with these stays within a tenth of the answer without a change. A verdict
that names one replacement ("with 'woman' instead") is wrong if the answer with that one stays within a tenth.

    python -m bench.headline_words pocket --texts 100
    python -m bench.headline_words smollm2 --texts 100
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import attnscope
from attnscope.commands.explain.replacing import Vocabulary
from attnscope.commands.explain.tried import MOVED, Tried
from attnscope.hf.loading.load import Loaded, load
from bench.minimal_pairs.verdict import CHEAP
from bench.subjects import wikitext
from tools.fetch_models import path as weights

SHORTEST, LONGEST = 12, 40  # tokens of a window
NEARER, DRAWN = 8, 4  # replacements of each kind
RESULTS = Path(__file__).with_name("headline_words.json")


@torch.no_grad()
def answers_without(
    loaded: Loaded, ids: Tensor, word: Tried, used: set[str], generator: torch.Generator
) -> list[float]:
    """Return the probability of the model's answer with other replacements of a word, by plain runs of the model."""
    model: Any = loaded.model
    table = model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    vocabulary = Vocabulary(table, loaded.tokenizer)
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    answer = int(logits[-1].argmax())
    own = ids[list(word.tokens)].tolist()
    rows = [row for row in vocabulary.replacements(own, NEARER + len(used)) if vocabulary.spelt(row) not in used]
    rows = rows[:NEARER]
    if len(own) == 1 and word.tokens[0] > 0:
        chances = logits[word.tokens[0] - 1].softmax(-1)
        chances[own[0]] = 0
        rows += [(int(token),) for token in torch.multinomial(chances, DRAWN, generator=generator)]
    found = []
    for row in rows:
        changed = ids.clone()
        changed[list(word.tokens)] = torch.tensor(row)
        last = model(input_ids=changed[None], use_cache=False).logits[0, -1]
        found.append(float(last.softmax(-1)[answer]))
    return found


@torch.no_grad()
def answer_with(loaded: Loaded, ids: Tensor, word: Tried, text: str) -> float:
    """Return the probability of the model's answer with one replacement, by a plain run of the text."""
    model: Any = loaded.model
    vocabulary = Vocabulary(model.get_input_embeddings(), loaded.tokenizer)
    answer = int(model(input_ids=ids[None], use_cache=False).logits[0, -1].argmax())
    rows = vocabulary.replacements(ids[list(word.tokens)].tolist(), NEARER)
    (row,) = [row for row in rows if vocabulary.spelt(row) == text][:1]
    changed = ids.clone()
    changed[list(word.tokens)] = torch.tensor(row)
    return float(model(input_ids=changed[None], use_cache=False).logits[0, -1].softmax(-1)[answer])


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
    named, wrong, silent = 0, [], 0
    for number in range(options.texts):
        begin = draw.randrange(len(text) - 1000)
        begin = text.find(" ", begin) + 1
        words = text[begin : begin + 1000].split()[: draw.randrange(SHORTEST, LONGEST) * 2 // 3]
        found = attnscope.explain(loaded, " ".join(words), methods=CHEAP)
        assert found.trial is not None
        ids = torch.tensor(tokenizer(" ".join(words))["input_ids"])
        assert len(ids) == len(found.inputs[0].tokens)
        silent += not found.trial.named
        for word in found.trial.named:
            used = {one.text for one in (*word.replacements, *word.again)}
            others = answers_without(loaded, ids, word, used, generator)
            one = found.trial.contrast(word)
            if not found.trial.decides(word) and one is not None:
                others = [answer_with(loaded, ids, word, one.text)]
            if not others:  # a vocabulary may have only a few tokens of a kind
                continue
            named += 1
            after = statistics.median(others)
            if abs(after - found.trial.before) <= MOVED * found.trial.before:
                wrong.append((" ".join(words), word.word, found.trial.before, word.after, after))
        print(f"{number + 1} texts, {named} words named, {len(wrong)} wrong, {silent} texts without one", flush=True)
    for case in wrong:
        print(case)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    kept[options.model] = {"texts": options.texts, "named": named, "wrong": len(wrong), "unnamed": silent}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
