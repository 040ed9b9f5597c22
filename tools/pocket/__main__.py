"""Train pocket, the small Llama-format language model that ships inside attnscope.

    python -m tools.pocket     # about 80 minutes of one core; run it again after a break

The books are cleaned and split, a byte-level BPE is learned on the training part, a transformers LlamaForCausalLM is
trained with AdamW, and the model folder is written together with its MODEL_CARD.md, whose numbers come from the run.
Batches are a function of (seed, step) alone, so a run that was interrupted and resumed ends in the same weights as an
unbroken one; another machine or number of threads adds in another order and ends near them, not in the same bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine a waiting thread must not spin

import torch

from tools.pocket.books import encode, learn_tokenizer, read_book, split
from tools.pocket.card import CARD, sample, scanned, tried, what_made_it, write_folder
from tools.pocket.model import build
from tools.pocket.params import BOS, Params
from tools.pocket.training import evaluate, train

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--corpus", type=Path, help="folder of .txt books; Gutenberg if left out")
    options.add_argument("--run", type=Path, default=ROOT / ".weights/pocket-run", help="checkpoint folder")
    options.add_argument("--out", type=Path, default=ROOT / "src/attnscope/data/pocket", help="model folder")
    arguments, params = options.parse_args(), Params()
    torch.set_num_threads(params.threads)
    arguments.run.mkdir(parents=True, exist_ok=True)
    if arguments.corpus is None:
        from tools import fetch_models

        arguments.corpus = fetch_models.path("gutenberg")
    if not (paths := sorted(arguments.corpus.glob("*.txt"))):
        raise SystemExit(f"There is no .txt file in {arguments.corpus}: name a folder of books with --corpus.")
    titles, texts = zip(*map(read_book, paths), strict=True)
    train_texts, held_texts = zip(*(split(text, params.held_out) for text in texts), strict=True)
    tokenizer = learn_tokenizer(train_texts, params)
    stream, held = encode(tokenizer, train_texts), encode(tokenizer, held_texts)
    print(f"{len(paths)} books, {len(stream):,} training and {len(held):,} held-out tokens", flush=True)
    model = train(stream, held, params, arguments.run, params.steps)

    in_school = min(params.school, params.steps)
    after = params.steps - in_school
    seen = params.batch * (in_school * (params.school_context - 1) + after * (params.context - 1))
    facts = {"seen": f"{seen:,}", "bos": BOS, "parameters": model.num_parameters()}
    facts |= {"count": len(paths), "train_tokens": len(stream), "held_tokens": len(held)}
    facts["books"] = "\n".join(f"- {title}" for title in titles)
    facts["sha256"] = write_folder(model, tokenizer, arguments.out)
    facts["found"], kinds = scanned(arguments.out, None)
    facts["repeated_found"], more = scanned(arguments.out, "repeated", measures="induction")
    facts |= {"made": what_made_it(kinds | more, asdict(params)), "tried": tried()}
    facts["sample"] = sample(model, tokenizer, "It was a dark", params.seed)
    bare = held[: min(64, len(held) // params.context) * params.context].view(-1, params.context)
    with torch.no_grad():
        facts["bare_loss"] = model(input_ids=bare, labels=bare, use_cache=False).loss.item()
    facts["uniform"] = math.log(params.vocab)
    parts = {"train": (model, stream, train_texts), "held": (model, held, held_texts)}
    for name, (judged, tokens, source) in (parts | {"random": (build(params), held, held_texts)}).items():
        facts[f"{name}_loss"] = evaluate(judged, tokens, params.context, 1024)
        bits = facts[f"{name}_loss"] * len(tokens) / math.log(2)
        facts[f"{name}_bits"] = bits / sum(len(text.encode()) for text in source)
    card = CARD.format(**asdict(params), **facts, params=json.dumps(asdict(params)))
    (arguments.out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"held-out loss {facts['held_loss']:.3f} nats per token; wrote {arguments.out}")


if __name__ == "__main__":
    main()
