"""`python -m bench.minimal_pairs.planted`: pairs with a known cause on two other models.

sentiment   MiniLM with a linear head for sentiment (bench/sentiment.py; here trained on 1,500 reviews in a minute of
            one core). Sentences of sentiment.jsonl, in which one word decides: exchanging it flips the class, with
            log-odds of at least 0.5 on either side. Writes usable_minilm.json and the head, sentiment_head.json.
microbes    GPT-2 of microbial communities, which has no tokenizer and comes without data. Sequences are drawn from
            the model itself. At every place but BOS, the token is exchanged for EXCHANGES others; half of them are
            the most likely there, half are drawn at random. A sequence is kept if these exchanges flip the most
            likely next token at exactly one place, and never flip it elsewhere. The truth is that place. Writes
            usable_microformer.json with token ids.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.hf.loading.load import load
from bench.minimal_pairs.pairs import HERE, half_of, pairs
from tools.fetch_models import path as weights

REVIEWS, MARGIN = 1500, 0.5
EXCHANGES, LENGTHS, WANTED, MOST_AT_LAST = 12, (8, 12, 16), 40, 12
SEED = 0
Ids = Int[Tensor, " token"]


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


@torch.no_grad()
def drawn(model: Any, length: int, generator: torch.Generator) -> Ids:
    """Return a sequence that the model writes, with BOS."""
    ids = torch.tensor([[model.config.bos_token_id]])
    for _ in range(length):
        chances = model(input_ids=ids).logits[0, -1].softmax(-1)
        chances[: model.config.eos_token_id + 1] = 0  # no special tokens
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator)[None]], 1)
    return ids[0]


def exchanges_at(
    model: Any, ids: Ids, place: int, before: Tensor, generator: torch.Generator
) -> Int[Tensor, "row token"]:
    """Return the sequence with other tokens at one place: likely ones, by the logits `before` it, and random ones."""
    special = model.config.eos_token_id + 1
    chances = before.clone()
    chances[:special] = -torch.inf
    chances[ids[place]] = -torch.inf
    likely = chances.topk(EXCHANGES // 2).indices
    anything = torch.randint(special, len(chances), (EXCHANGES - len(likely),), generator=generator)
    anything[anything == ids[place]] = likely[0]
    rows = ids.repeat(EXCHANGES, 1)
    rows[:, place] = torch.cat([likely, anything])
    return rows


@torch.no_grad()
def planted(model: Any, ids: Ids, generator: torch.Generator) -> Ids:
    """Return the sequence with one token exchanged, not the last, so that the new answer beats the old one widely."""
    everywhere = model(input_ids=ids[None]).logits[0]
    answer = int(everywhere[-1].argmax())
    inner = range(1, len(ids) - 1)
    rows = torch.cat([exchanges_at(model, ids, place, everywhere[place - 1], generator) for place in inner])
    logits = model(input_ids=rows, logits_to_keep=1).logits[:, -1]
    return rows[int((logits.amax(-1) - logits[:, answer]).argmax())]


@torch.no_grad()
def flips(model: Any, ids: Ids, generator: torch.Generator) -> tuple[int, Ids, float] | None:
    """Return (place, exchanged sequence, flipping share) if exactly one place flips the answer, or None."""
    everywhere = model(input_ids=ids[None]).logits[0]
    answer = everywhere[-1].argmax()
    found: tuple[int, Ids, float] | None = None
    for place in range(1, len(ids)):
        rows = exchanges_at(model, ids, place, everywhere[place - 1], generator)
        flipped = model(input_ids=rows, logits_to_keep=1).logits[:, -1].argmax(-1) != answer
        if bool(flipped.any()):
            if found is not None:
                return None
            found = place, rows[int(flipped.int().argmax())], float(flipped.float().mean())
    return found


def microbes() -> None:
    loaded = load(str(weights("microformer")), dtype="float32", allow_pickle=True)
    model: Any = loaded.model
    generator = torch.Generator().manual_seed(SEED)
    usable: list[dict[str, Any]] = []
    tried = at_last = 0
    while len(usable) < WANTED:
        length = LENGTHS[tried % len(LENGTHS)]
        tried += 1
        ids = drawn(model, length, generator)
        found = flips(model, ids, generator)
        if found is None or found[0] == length:
            ids_planted = planted(model, ids, generator)
            better = flips(model, ids_planted, generator)
            if better is not None:
                ids, found = ids_planted, better
        if found is None:
            continue
        place, exchanged, share = found
        if place == length:
            if at_last == MOST_AT_LAST:  # a method that always names the last token should not do well
                continue
            at_last += 1
        usable.append(_row(model, f"microbes-{len(usable) + 1:02d}", ids, exchanged, place, share))
        print(f"{len(usable)} of {tried} sequences, place {place} of {length}", flush=True)
        _write("usable_microformer.json", "microformer", usable, {"sequences_tried": str(tried)})


@torch.no_grad()
def _row(model: Any, name: str, ids: Ids, exchanged: Ids, place: int, share: float) -> dict[str, Any]:
    logits = model(input_ids=torch.stack([ids, exchanged])).logits[:, -1]
    answer, other = logits.argmax(-1).tolist()
    log_odds, log_odds_exchanged = (logits[:, answer] - logits[:, other]).tolist()
    return {
        "id": name,
        "kind": "microbes",
        "tokens": len(ids),
        "input_ids": ids.tolist(),
        "exchanged_ids": exchanged.tolist(),
        "cause_tokens": [place],
        "answer_token": answer,
        "other_answer_token": other,
        "log_odds": round(log_odds, 3),
        "log_odds_exchanged": round(log_odds_exchanged, 3),
        "flipping_share": round(share, 3),
        "half": half_of(name),
    }


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
        microbes()


if __name__ == "__main__":
    main()
