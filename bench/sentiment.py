"""`python -m bench.sentiment`: train a linear sentiment head on MiniLM's embeddings, and judge every
explanation of it.

MiniLM is not trained; its embedding is the mean of the last states over the first 128 tokens of a review. The head is a
logistic regression on 6,000 reviews, tested on 1,000 others (IMDB, drawn with a seed). Faithfulness is that of
`attnscope explain --evaluate --labels`, on other reviews of at most 72 tokens, which are judged whole.

Embeddings take seven minutes of one core and are cached in build/. Writes bench/sentiment.json (accuracy and the record
of `evaluate`, which `attnscope.load` reads back) and, with --page, its page.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import random
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

import attnscope
from attnscope.core.progress import silent
from attnscope.reports.terminal import print_record
from attnscope.stats.intervals import bootstrap_mean
from tools.fetch_models import path as weights

RESULTS = Path(__file__).with_name("sentiment.json")
KEPT = Path(__file__).parents[1] / "build" / "sentiment"
TOKENS, SHORT, TRAINING, TESTING, SEED = 128, 72, 6000, 1000, 0
CLASSES = ("negative", "positive")
PENALTY = 1e-3  # weight decay, relative to the mean loss


class MeanHead(BertPreTrainedModel):
    """BERT, the mean of its last states, and a linear head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.head = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> SequenceClassifierOutput:
        states = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        if attention_mask is None:
            return SequenceClassifierOutput(logits=self.head(states.mean(1)))
        real = attention_mask[:, :, None].to(states.dtype)
        return SequenceClassifierOutput(logits=self.head((states * real).sum(1) / real.sum(1)))


def reviews() -> list[tuple[str, str]]:
    """Return all reviews in random order, without markup."""
    csv.field_size_limit(sys.maxsize)
    with Path(weights("imdb")).open(encoding="utf-8", newline="") as stream:
        rows = [(row["review"].replace("<br />", " "), row["sentiment"]) for row in csv.DictReader(stream)]
    random.Random(SEED).shuffle(rows)
    return rows


def kept_embeddings(model: MeanHead, tokenizer: Any, texts: list[str]) -> Tensor:
    """Return embeddings, from the cache if its texts and settings are the same."""
    told = hashlib.sha256("\0".join((str(TOKENS), *texts)).encode()).hexdigest()[:16]
    place = KEPT / f"{told}.safetensors"
    if place.exists():
        kept: Tensor = load_file(place)["embeddings"]
        return kept
    found = embeddings(model, tokenizer, texts)
    KEPT.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings": found}, place)
    return found


def embeddings(model: MeanHead, tokenizer: Any, texts: list[str]) -> Tensor:
    found = []
    for begin in range(0, len(texts), 50):
        batch = tokenizer(
            texts[begin : begin + 50], truncation=True, max_length=TOKENS, padding=True, return_tensors="pt"
        )
        kept: list[Tensor] = []
        watch = model.head.register_forward_pre_hook(lambda module, args, kept=kept: kept.append(args[0]))
        with torch.no_grad():
            model(**batch)
        watch.remove()
        found.append(kept[0])
    return torch.cat(found)


def train(head: torch.nn.Linear, given: Tensor, classes: Tensor) -> None:
    """Fit a logistic regression by Newton-like steps."""
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(head(given), classes) + PENALTY * head.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)


def trained() -> tuple[MeanHead, Any, dict[str, Any], list[tuple[str, str]]]:
    """Return the classifier, its tokenizer, its accuracy, and unseen reviews."""
    folder = weights("minilm")
    config = BertConfig.from_pretrained(
        folder, num_labels=2, id2label=dict(enumerate(CLASSES)), label2id={name: n for n, name in enumerate(CLASSES)}
    )
    config.name_or_path = "MiniLM-L6 with a linear head for sentiment"
    torch.manual_seed(SEED)
    model = MeanHead(config)
    model.bert = BertModel.from_pretrained(folder, add_pooling_layer=False)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = reviews()
    told, asked, rest = rows[:TRAINING], rows[TRAINING : TRAINING + TESTING], rows[TRAINING + TESTING :]
    truth = [torch.tensor([CLASSES.index(name) for _, name in some]) for some in (told, asked)]
    points = [kept_embeddings(model, tokenizer, [text for text, _ in some]) for some in (told, asked)]
    model.bert.requires_grad_(False)
    train(model.head, points[0], truth[0])
    hits = [(model.head(given).argmax(-1) == wanted).tolist() for given, wanted in zip(points, truth, strict=True)]
    seen, (mean, low, high) = sum(hits[0]) / TRAINING, bootstrap_mean([float(hit) for hit in hits[1]])
    accuracy = {"training": seen, "test": mean, "test_low": low, "test_high": high, "reviews": TESTING}
    return model.requires_grad_(False), tokenizer, accuracy, rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--method", default="default")
    parser.add_argument("--page", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer, accuracy, rest = trained()
    print(json.dumps(accuracy), flush=True)
    short = (row for row in rest if len(tokenizer(row[0])["input_ids"]) <= SHORT)
    given = list(islice(short, options.samples))
    evaluation = attnscope.evaluate(
        model,
        [text for text, _ in given],
        labels=[name for _, name in given],
        methods=options.method,
        samples=options.samples,
        max_tokens=SHORT,
        tokenizer=tokenizer,
        progress=silent,
    )
    print_record(evaluation, console=Console(width=100), verbose=True)
    RESULTS.write_text(json.dumps({"accuracy": accuracy, "faithfulness": evaluation.to_json()}, indent=1) + "\n")
    if options.page is not None:
        evaluation.write_page(options.page)


if __name__ == "__main__":
    main()
