"""Train pocket, the small Llama-format language model that ships inside attnscope.

    python tools/train_pocket.py     # about 10 minutes on two free cores; run it again after a break

Everything is in this file: the books are cleaned and split, a byte-level BPE is learned on the training
part, a transformers LlamaForCausalLM is trained with AdamW, and the model folder is written together with
its MODEL_CARD.md, whose numbers come from the run. The rate is a cosine cut short by a linear cooldown: a
longer run is a larger `steps`, up to `horizon`. The batches are a function of (seed, step) alone, so a run
that was interrupted and resumed ends in the same weights as an unbroken one; another machine or number of
threads adds in another order and ends near them, not in the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine a waiting thread must not spin

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[1]
BOS, PAD = "<bos>", "<pad>"


@dataclass(frozen=True)
class Params:
    """All that decides the outcome. 1.2 million float32 weights stay under 5 MB without rounding them."""

    vocab: int = 1024
    width: int = 128
    layers: int = 6
    heads: int = 4
    hidden: int = 304
    context: int = 256

    steps: int = 2600
    batch: int = 8
    peak_rate: float = 3e-3
    last_rate: float = 3e-5
    warmup: int = 300
    horizon: int = 4800  # where the cosine would reach last_rate
    cooldown: int = 600  # the last steps, which fall in a line from the cosine to zero
    weight_decay: float = 0.1  # on matrices; there is no dropout
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    held_out: float = 0.05  # the last part of every book
    seed: int = 1729
    threads: int = 2


def read_book(path: Path) -> tuple[str, str]:
    """Title and text: no Project Gutenberg notice, and prose in paragraphs instead of 70-column lines."""
    text = path.read_bytes().decode("latin-1").replace("\r\n", "\n")
    heading = re.match(r"\[([^\]]+)\]", text)
    title, text = (heading[1], text[heading.end() :]) if heading else (path.stem, text)
    text = re.split(r"\n(?:End of|\*\*\* ?END OF)[^\n]*Project Gutenberg", text, flags=re.IGNORECASE)[0]
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"(?<=[^\n]{55})\n(?=[^\s])", " ", text)  # a full line goes on; lines of verse are shorter
    return title, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def split(text: str, held_out: float) -> tuple[str, str]:
    """The last `held_out` of a book, from the start of a paragraph, is never trained on."""
    earliest = int(len(text) * (1 - held_out))
    cut = max(earliest, text.find("\n\n", earliest)) + 2
    return text[:cut], text[cut:]


def learn_tokenizer(texts: Sequence[str], params: Params) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text has an encoding and comes back unchanged; every text starts with BOS."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    kept = {"special_tokens": [BOS, PAD], "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=params.vocab, show_progress=False, **kept))
    forms = {"single": f"{BOS} $A", "pair": f"{BOS} $A $B:1"}
    bpe.post_processor = processors.TemplateProcessing(**forms, special_tokens=[(BOS, 0)])
    limits = {"model_max_length": params.context, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=BOS, pad_token=PAD, **limits)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    ids = [np.array(tokenizer(text, add_special_tokens=False, verbose=False).input_ids) for text in texts]
    return torch.from_numpy(np.concatenate(ids)).long()


def windows(stream: torch.Tensor, starts: torch.Tensor, context: int) -> torch.Tensor:
    """Rows of BOS followed by context - 1 tokens of the stream."""
    rows = stream[starts[:, None] + torch.arange(context - 1)]
    return torch.nn.functional.pad(rows, (1, 0), value=0)


def training_batch(stream: torch.Tensor, step: int, params: Params) -> torch.Tensor:
    """A function of (seed, step), so that a resumed run sees the batches that it would have seen."""
    random = torch.Generator().manual_seed(params.seed * 1_000_003 + step)
    starts = torch.randint(len(stream) - params.context, (params.batch,), generator=random)
    return windows(stream, starts, params.context)


def build(params: Params) -> LlamaForCausalLM:
    torch.manual_seed(params.seed)
    size = {"hidden_size": params.width, "intermediate_size": params.hidden, "vocab_size": params.vocab}
    depth = {"num_hidden_layers": params.layers, "num_attention_heads": params.heads}
    words = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": None, "tie_word_embeddings": True}
    config = LlamaConfig(**size, **depth, **words, max_position_embeddings=params.context, dtype="float32")
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= (2 * params.layers) ** -0.5  # so that all writes together start as large as one
    return model


def rate(step: int, params: Params) -> float:
    if step < params.warmup:
        return params.peak_rate * (step + 1) / params.warmup
    progress = (step - params.warmup) / (params.horizon - params.warmup)
    cosine = params.last_rate + (params.peak_rate - params.last_rate) * 0.5 * (1 + math.cos(math.pi * progress))
    return cosine * min(1.0, (params.steps - step) / params.cooldown)


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, stream: torch.Tensor, context: int, count: int) -> float:
    """Nats per token over windows side by side: all, or `count` of them at even distances."""
    starts = torch.arange(0, len(stream) - context + 2, context - 1)
    if count < len(starts):
        starts = starts[torch.linspace(0, len(starts) - 1, count).long()]
    total = 0.0
    for rows in windows(stream, starts, context).split(32):
        total += model(input_ids=rows, labels=rows, use_cache=False).loss.item() * len(rows)
    return total / len(starts)


def save_checkpoint(path: Path, model: LlamaForCausalLM, adam: torch.optim.AdamW, **note: str) -> None:
    tensors = {f"model.{name}": weight.detach() for name, weight in model.named_parameters()}
    for index, state in adam.state_dict()["state"].items():
        tensors |= {f"adam.{index}.{key}": value for key, value in state.items()}
    save_file(tensors, path.with_suffix(".part"), note)
    path.with_suffix(".part").replace(path)


def load_checkpoint(path: Path, model: LlamaForCausalLM, adam: torch.optim.AdamW, note: str) -> int:
    with safe_open(path, framework="pt") as file:
        if file.metadata()["note"] != note:
            raise SystemExit(f"{path} is of another run: delete it, or name another folder with --run.")
        for name, weight in model.named_parameters():
            weight.data.copy_(file.get_tensor(f"model.{name}"))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for _, index, key in (name.split(".") for name in file.keys() if name.startswith("adam.")):  # noqa: SIM118
            state.setdefault(int(index), {})[key] = file.get_tensor(f"adam.{index}.{key}")
        adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})
        return int(file.metadata()["step"])


def train(stream: torch.Tensor, held: torch.Tensor, params: Params, run: Path, end: int) -> LlamaForCausalLM:
    """Go on from the checkpoint in `run`, if there is one, to the end of step `end` of `params.steps`."""
    model = build(params)
    matrices = {"params": [weight for weight in model.parameters() if weight.ndim == 2]}
    gains = {"params": [weight for weight in model.parameters() if weight.ndim == 1], "weight_decay": 0.0}
    shared = {"weight_decay": params.weight_decay, "betas": params.betas, "fused": True}
    adam = torch.optim.AdamW([matrices, gains], lr=params.peak_rate, **shared)
    note = json.dumps(asdict(params) | {"data": hashlib.sha256(stream.numpy().tobytes()).hexdigest()})
    checkpoint = run / "checkpoint.safetensors"
    first = load_checkpoint(checkpoint, model, adam, note) if checkpoint.exists() else 0
    began = time.monotonic()
    for step in range(first, end):
        for group in adam.param_groups:
            group["lr"] = rate(step, params)
        rows = training_batch(stream, step, params)
        loss = model(input_ids=rows, labels=rows, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), params.clip)
        adam.step()
        adam.zero_grad(set_to_none=True)
        done = step + 1
        if done % 50 == 0 or done == end:
            pace = (done - first) / (time.monotonic() - began)
            speed, left = pace * params.batch * params.context, (params.steps - done) / pace / 60
            print(f"step {done:5d}/{params.steps}  loss {loss.item():.3f}  gradient {norm.item():.2f}", end="  ")
            print(f"rate {rate(step, params):.1e}  {speed:,.0f} tokens/s  {left:.0f} min left", flush=True)
        if done % 250 == 0 or done == end:
            print(f"held-out loss {evaluate(model, held, params.context, 64):.3f}", flush=True)
            save_checkpoint(checkpoint, model, adam, step=str(done), note=note)
    return model.eval()


CARD = """# pocket

A small causal language model in Llama format that ships inside attnscope, so that `attnscope scan pocket` has
a trained specimen to look at without a download. `tools/train_pocket.py` trained it and wrote this card.

- Intended use: a specimen for attnscope, its demonstration and its tests. Not for generating text.
- Limits: English of 1600 to 1920, more than a third of it the King James Bible, with the views of its time.
- Licence: Apache-2.0. The books are in the public domain in the United States.
- Architecture: LlamaForCausalLM, {parameters:,} parameters in float32; {layers} layers of {heads} heads,
  width {width}, SwiGLU of {hidden}, RMSNorm, rotary positions, tied embeddings, context {context}.
- Tokenizer: byte-level BPE of {vocab} tokens, learned on the training part; every text begins with `{bos}`.
- sha256 of model.safetensors: `{sha256}`

## Training

{steps:,} steps of {batch} windows (`{bos}` and tokens from a random place up to length {context}): {seen:,}
tokens seen, {epochs:.1f} times the training part. AdamW with warmup, cosine and cooldown; seed {seed}.
All parameters: `{params}`

| with the final weights | nats per token | bits per byte |
|---|---|---|
| training part, 1,024 windows | {train_loss:.3f} | {train_bits:.3f} |
| held-out part, all windows | {held_loss:.3f} | {held_bits:.3f} |
| held-out part, untrained weights | {random_loss:.3f} | {random_bits:.3f} |

## Data

{count} books of Project Gutenberg, without its notices, prose unwrapped into paragraphs. The last
{held_out:.0%} of every book is held out: {train_tokens:,} training and {held_tokens:,} held-out tokens.

{books}

## Sample

Temperature 0.8, top 50; the first four words were given.

```text
{sample}
```
"""


def write_folder(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> str:
    """All that transformers needs to load the model; gives back the hash of the weights."""
    out.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, seed: int) -> str:
    torch.manual_seed(seed)
    start = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    words = model.generate(**start, max_new_tokens=160, do_sample=True, temperature=0.8, top_k=50)
    return tokenizer.decode(words[0], skip_special_tokens=True).strip()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--corpus", type=Path, help="folder of .txt books; Gutenberg if left out")
    options.add_argument("--run", type=Path, default=ROOT / ".weights/pocket-run", help="checkpoint folder")
    options.add_argument("--out", type=Path, default=ROOT / "src/attnscope/pocket", help="model folder")
    asked, params = options.parse_args(), Params()
    torch.set_num_threads(params.threads)
    asked.run.mkdir(parents=True, exist_ok=True)
    if asked.corpus is None:
        import fetch_models  # its neighbour in tools/

        asked.corpus = fetch_models.path("gutenberg")
    if not (paths := sorted(asked.corpus.glob("*.txt"))):
        raise SystemExit(f"There is no .txt file in {asked.corpus}: name a folder of books with --corpus.")
    titles, texts = zip(*map(read_book, paths), strict=True)
    train_texts, held_texts = zip(*(split(text, params.held_out) for text in texts), strict=True)
    tokenizer = learn_tokenizer(train_texts, params)
    stream, held = encode(tokenizer, train_texts), encode(tokenizer, held_texts)
    print(f"{len(paths)} books, {len(stream):,} training and {len(held):,} held-out tokens", flush=True)
    model = train(stream, held, params, asked.run, params.steps)

    seen = params.steps * params.batch * (params.context - 1)
    facts = {"seen": seen, "epochs": seen / len(stream), "bos": BOS, "parameters": model.num_parameters()}
    facts |= {"count": len(paths), "train_tokens": len(stream), "held_tokens": len(held)}
    facts["books"] = "\n".join(f"- {title}" for title in titles)
    facts["sha256"] = write_folder(model, tokenizer, asked.out)
    facts["sample"] = sample(model, tokenizer, "It was a dark", params.seed)
    parts = {"train": (model, stream, train_texts), "held": (model, held, held_texts)}
    for name, (judged, tokens, source) in (parts | {"random": (build(params), held, held_texts)}).items():
        facts[f"{name}_loss"] = evaluate(judged, tokens, params.context, 1024)
        bits = facts[f"{name}_loss"] * len(tokens) / math.log(2)
        facts[f"{name}_bits"] = bits / sum(len(text.encode()) for text in source)
    card = CARD.format(**asdict(params), **facts, params=json.dumps(asdict(params)))
    (asked.out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"held-out loss {facts['held_loss']:.3f} nats per token; wrote {asked.out}")


if __name__ == "__main__":
    main()
