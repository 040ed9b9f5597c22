"""`python -m bench.minimal_pairs.planted`: pairs with a known cause on two other models.

sentiment   MiniLM with a linear head for sentiment (bench/sentiment.py; here trained on 1,500 reviews in a minute of
            one core). Sentences of sentiment.jsonl, in which one word decides: exchanging it flips the class, with
            log-odds of at least 0.5 on either side. Writes usable_minilm.json and the head, sentiment_head.json.
microbes    GPT-2 of microbial communities (bench/minimal_pairs/microbes.py), into which a rule is planted. Writes
            usable_microformer.json with token ids.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from bench.minimal_pairs.microbes import cases
from bench.minimal_pairs.pairs import HERE, half_of, pairs
from tools.fetch_models import path as weights

REVIEWS, MARGIN = 1500, 0.5


def sentiment_model() -> tuple[Any, Any]:
    """Return MiniLM with the head of sentiment_head.json (trained if the file is missing), and its tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bench.sentiment import CLASSES, MeanHead, embeddings, reviews, train

    folder, kept = weights("minilm"), HERE / "sentiment_head.json"
    labels = dict(enumerate(CLASSES))
    config = BertConfig.from_pretrained(
        folder, num_labels=2, id2label=labels, label2id={n: i for i, n in labels.items()}
    )
    config.name_or_path = "MiniLM-L6 with a linear head for sentiment"
    model = MeanHead(config)
    model.bert = BertModel.from_pretrained(folder, add_pooling_layer=False)
    model.eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not kept.exists():
        rows = reviews()[:REVIEWS]
        points = embeddings(model, tokenizer, [text for text, _ in rows])
        torch.nn.init.zeros_(model.head.weight)
        torch.nn.init.zeros_(model.head.bias)
        model.head.requires_grad_()
        train(model.head, points, torch.tensor([CLASSES.index(name) for _, name in rows]))
        numbers = {"weight": model.head.weight.tolist(), "bias": model.head.bias.tolist()}
        kept.write_text(json.dumps(numbers) + "\n")
    model.head.requires_grad_(False)
    model.head.load_state_dict({name: torch.tensor(value) for name, value in json.loads(kept.read_text()).items()})
    return model, tokenizer


def sentiment() -> None:
    model, tokenizer = sentiment_model()
    usable, left_out = [], {}
    for pair in pairs(HERE / "sentiment.jsonl"):
        ids, exchanged = (tokenizer(text, return_tensors="pt")["input_ids"] for text in (pair.text, pair.exchanged))
        right, wrong = (model.config.label2id[name] for name in (pair.answer, pair.other_answer))
        if ids.shape != exchanged.shape:
            left_out[pair.id] = "the texts differ in their number of tokens"
            continue
        logits = model(input_ids=torch.cat([ids, exchanged])).logits
        log_odds, log_odds_exchanged = (logits[:, right] - logits[:, wrong]).tolist()
        if log_odds < MARGIN or log_odds_exchanged > -MARGIN:
            left_out[pair.id] = f"log-odds of the answer are {log_odds:.2f}, exchanged {log_odds_exchanged:.2f}"
            continue
        row = {
            "id": pair.id,
            "kind": pair.kind,
            "tokens": ids.shape[1],
            "cause_tokens": (ids != exchanged)[0].nonzero()[:, 0].tolist(),
            "answer_token": right,
            "other_answer_token": wrong,
            "log_odds": round(log_odds, 3),
            "log_odds_exchanged": round(log_odds_exchanged, 3),
            "half": half_of(pair.frame),
        }
        usable.append(row)
    _write("usable_minilm.json", "minilm", usable, left_out)
    print(f"minilm: {len(usable)} usable pairs, {len(left_out)} left out")


def _write(name: str, model: str, usable: list[dict[str, Any]], left_out: dict[str, str]) -> None:
    lines = ",\n  ".join(json.dumps(row) for row in usable)
    told = json.dumps(left_out, indent=1)
    (HERE / name).write_text(f'{{"model": "{model}", "usable": [\n  {lines}\n ],\n "left_out": {told}}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "sentiment", "microbes"], default="all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what != "microbes":
        sentiment()
    if options.what != "sentiment":
        usable, left_out = cases()
        _write("usable_microformer.json", "microformer with a planted rule", usable, left_out)
        print(f"microformer: {len(usable)} usable cases, {len(left_out)} left out")


if __name__ == "__main__":
    main()
