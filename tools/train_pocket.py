"""Train pocket, the small Llama-format language model that ships inside attnscope.

    python tools/fetch_models.py gutenberg      # unpacks the books into .weights/gutenberg
    python tools/train_pocket.py                # half an hour on two CPU cores; run it again to resume

Everything is in this file: the books are cleaned and split, a byte-level BPE is learned on the training part, a
transformers LlamaForCausalLM is trained with AdamW and a cosine schedule, and the model folder is written together
with its MODEL_CARD.md, whose numbers come from the run. The batches are a function of (seed, step) alone, so a run
that was interrupted and resumed ends in the same weights as an unbroken one; another machine or number of threads
adds floating point numbers in another order and ends near them, not in the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import time
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
    """All that decides the outcome. 1.22 M float32 weights stay under 5 MB without rounding them."""

    vocab: int = 1024
    width: int = 128
    layers: int = 6
    heads: int = 4
    hidden: int = 304
    context: int = 256

    steps: int = 4800
    batch: int = 8
    peak_rate: float = 3e-3
    last_rate: float = 3e-5
    warmup: int = 300
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    held_out: float = 0.05  # the last part of every book
    seed: int = 1729
    threads: int = 2


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Book:
    title: str
    text: str


def read_book(path: Path) -> Book:
    """The words of the author: no Project Gutenberg notice, and prose in paragraphs instead of 70-column lines."""
    text = path.read_bytes().decode("latin-1").replace("\r\n", "\n")
    heading = re.match(r"\[([^\]]+)\]", text)
    title = heading[1] if heading else path.stem
    text = text[heading.end() :] if heading else text
    text = re.split(
        r"\n(?:End of|\*\*\* ?END OF)[^\n]*Project Gutenberg", text, maxsplit=1, flags=re.IGNORECASE
    )[0]
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"(?<=[^\n]{55})\n(?=[^\s])", " ", text)  # a full line goes on; lines of verse are shorter
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return Book(title, text)


def split(book: Book, held_out: float) -> tuple[str, str]:
    """The last `held_out` of a book, from the start of a paragraph, is never trained on."""
    cut = book.text.find("\n\n", int(len(book.text) * (1 - held_out)))
    cut = len(book.text) if cut < 0 else cut + 2
    return book.text[:cut], book.text[cut:]


def learn_tokenizer(texts: list[str], params: Params) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text has an encoding and comes back unchanged; every text starts with BOS."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab,
        special_tokens=[BOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BOS,
        pad_token=PAD,
        padding_side="right",
        model_max_length=params.context,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> torch.Tensor:
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


# --- model and training ---------------------------------------------------------------------------------------------


def build(params: Params) -> LlamaForCausalLM:
    torch.manual_seed(params.seed)
    config = LlamaConfig(
        vocab_size=params.vocab,
        hidden_size=params.width,
        intermediate_size=params.hidden,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        max_position_embeddings=params.context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=1,
        initializer_range=0.02,
        dtype="float32",
        use_cache=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # GPT-2: the residual stream starts with the same size at every depth
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_((2 * params.layers) ** -0.5)
    return model


def rate(step: int, params: Params) -> float:
    if step < params.warmup:
        return params.peak_rate * (step + 1) / params.warmup
    progress = (step - params.warmup) / max(1, params.steps - params.warmup)
    return params.last_rate + (params.peak_rate - params.last_rate) * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, stream: torch.Tensor, context: int, count: int | None = None) -> float:
    """Nats per token over windows side by side: all of the stream, or `count` of them at even distances."""
    starts = torch.arange(0, len(stream) - context + 2, context - 1)
    if count is not None and count < len(starts):
        starts = starts[torch.linspace(0, len(starts) - 1, count).long()]
    total = 0.0
    for part in starts.split(32):
        rows = windows(stream, part, context)
        total += model(input_ids=rows, labels=rows, use_cache=False).loss.item() * len(part)
    return total / len(starts)


def save_checkpoint(
    path: Path, step: int, model: LlamaForCausalLM, optimizer: torch.optim.AdamW, note: str
) -> None:
    tensors = {f"model.{name}": weight for name, weight in model.named_parameters()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
    unfinished = path.with_suffix(".part")
    save_file(
        {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
        unfinished,
        {"step": str(step), "params": note},
    )
    unfinished.replace(path)


def load_checkpoint(path: Path, model: LlamaForCausalLM, optimizer: torch.optim.AdamW, note: str) -> int:
    with safe_open(path, framework="pt") as file:
        if file.metadata()["params"] != note:
            raise SystemExit(
                f"{path} belongs to a run with other parameters or books: delete it, or name another --run folder."
            )
        state: dict[int, dict[str, torch.Tensor]] = {}
        weights = dict(model.named_parameters())
        for name in file.keys():  # noqa: SIM118 - the file is not a mapping
            owner, rest = name.split(".", 1)
            if owner == "model":
                weights[rest].data.copy_(file.get_tensor(name))
            else:
                index, key = rest.split(".")
                state.setdefault(int(index), {})[key] = file.get_tensor(name)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return int(file.metadata()["step"])


def train(
    train_stream: torch.Tensor,
    held_stream: torch.Tensor,
    params: Params,
    run: Path,
    stop_after: int | None = None,
) -> LlamaForCausalLM:
    """`stop_after` ends this call early, checkpointed, as if it had been interrupted there."""
    model = build(params)
    decayed = [weight for weight in model.parameters() if weight.ndim >= 2]
    plain = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [
        {"params": decayed, "weight_decay": params.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=params.peak_rate, betas=params.betas, fused=True)
    checkpoint = run / "checkpoint.safetensors"
    note = json.dumps(asdict(params) | {"data": hashlib.sha256(train_stream.numpy().tobytes()).hexdigest()})
    first = load_checkpoint(checkpoint, model, optimizer, note) if checkpoint.exists() else 0
    began, end = time.monotonic(), min(params.steps, stop_after or params.steps)
    for step in range(first, end):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, params)
        rows = training_batch(train_stream, step, params)
        loss = model(input_ids=rows, labels=rows, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), params.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % 50 == 0 or done == end:
            pace = (done - first) / (time.monotonic() - began)
            line = (
                f"step {done:5d}/{params.steps}  loss {loss.item():.3f}  gradient {norm.item():.2f}  "
                f"rate {rate(step, params):.1e}  {pace * params.batch * params.context:,.0f} tokens/s  "
                f"{(params.steps - done) / pace / 60:.0f} min left"
            )
            if done % 250 == 0 or done == end:
                line += f"  held-out {evaluate(model, held_stream, params.context, 64):.3f}"
                save_checkpoint(checkpoint, done, model, optimizer, note)
            print(line, flush=True)
    return model


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--corpus", type=Path, default=ROOT / ".weights" / "gutenberg", help="folder of .txt books")
    options.add_argument("--run", type=Path, default=ROOT / ".weights" / "pocket-run", help="folder of the checkpoint")
    options.add_argument("--out", type=Path, default=ROOT / "src" / "attnscope" / "pocket", help="the model folder")
    asked, params = options.parse_args(), Params()
    torch.set_num_threads(params.threads)
    asked.run.mkdir(parents=True, exist_ok=True)

    books = [read_book(path) for path in sorted(asked.corpus.glob("*.txt"))]
    if not books:
        raise SystemExit(f"There are no .txt books in {asked.corpus}: run `python tools/fetch_models.py gutenberg`.")
    train_texts, held_texts = (list(part) for part in zip(*(split(book, params.held_out) for book in books), strict=True))
    tokenizer = learn_tokenizer(train_texts, params)
    train_stream, held_stream = encode(tokenizer, train_texts), encode(tokenizer, held_texts)
    print(f"{len(books)} books, {len(train_stream):,} training and {len(held_stream):,} held-out tokens", flush=True)
    model = train(train_stream, held_stream, params, asked.run)


if __name__ == "__main__":
    main()
