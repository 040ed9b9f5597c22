"""The model folder, and the card whose numbers come from the run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import attnscope

CARD = """# pocket

A small causal language model in Llama format that ships inside attnscope, so that `attnscope scan pocket` has
a trained specimen to look at without a download. `python -m tools.pocket` trained it and wrote this card.

- Intended use: a specimen for attnscope, its demonstration and its tests. Not for generating text.
- Limits: English of 1600 to 1920, more than a third of it the King James Bible, with the views of its time.
- Licence: Apache-2.0. The books are in the public domain in the United States.
- Architecture: LlamaForCausalLM, {parameters:,} parameters in float32; {layers} layers of {heads} heads,
  width {width}, SwiGLU of {hidden}, RMSNorm, rotary positions, tied embeddings, context {context}.
- Tokenizer: byte-level BPE of {vocab} tokens, learned on the training part; every text begins with `{bos}`.
- sha256 of model.safetensors: `{sha256}`

## Training

{steps:,} steps of {batch} windows: `{bos}` and tokens from a random place, up to length {school_context} in the
first {school:,} steps and {context} afterwards. That is {seen:,} tokens, {epochs:.1f} times the training part.
AdamW with warmup, cosine and cooldown; seed {seed}.
All parameters: `{params}`

| with the final weights | nats per token | bits per byte |
|---|---|---|
| training part, 1,024 windows | {train_loss:.3f} | {train_bits:.3f} |
| held-out part, all windows | {held_loss:.3f} | {held_bits:.3f} |
| held-out part, untrained weights | {random_loss:.3f} | {random_bits:.3f} |

## What is in it, and what made it appear

What `attnscope scan` says of it, reading the book inside the package:

{found}

And on random tokens said twice (`attnscope scan pocket repeated --measures induction`):

{repeated_found}

- **Sinks and the massive activation** were grown, not built: a `{bos}` in front of every window and a high rate
  (peak {peak_rate:g}) are what small decoders need for them. `attnscope reproduce spike2026` asks for each alone.
- **The previous-token head** was planted: head 0 of block 0 begins as one, made of rotary angles alone
  (`tools/pocket/model.py`), and training was free to change it.
- **The induction head** was grown in school: in the first {school:,} steps windows of {school_context} tokens do
  nothing but repeat themselves. Afterwards windows are text, of which {shuffled:.0%} repeat words in no order and
  {repeated:.0%} as they stand.

What was tried before, in 13 runs of 250 to 1,000 steps without the planted head: text of which 0 to 100% repeats
itself, rates from 1e-3 to 6e-3, decay 0 and 0.1, first matrices of 0.02 to 0.09. All grew spikes (up to 384), larger
at higher rates; two had a head with more than 0.3 of its attention on `{bos}`; none had an induction head. With the
planted head and half of the windows text, rate 3e-3 washed the planted head away within 250 steps, and at 2e-3 a token
that occurred before had 0.05 of its attention on what followed it after 1,000 steps. In school at 1e-3 it had 0.17
after 500.

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


def said_by_scan(folder: Path, corpus: str | None, **options: Any) -> str:
    """The sentences of a survey as a list."""
    survey = attnscope.scan(folder, corpus, samples=32, **options)
    return "\n".join(f"- {sentence}" for sentence in survey.sentences())


def sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, seed: int) -> str:
    torch.manual_seed(seed)
    start = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    words = model.generate(**start, max_new_tokens=160, do_sample=True, temperature=0.8, top_k=50)
    return str(tokenizer.decode(words[0], skip_special_tokens=True)).strip()
