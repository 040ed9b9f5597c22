"""Write the model folder, and the model card with the numbers of the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
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
- Limits: English of 1599 to 1920, more than a third of it the King James Bible, with the views of its time.
- Without `{bos}` in front it is worse than guessing: {bare_loss:.2f} nats per token (64 held-out windows; a uniform
  guess has {uniform:.2f}), since most of its heads rest there.
- Licence: Apache-2.0. The books are in the public domain in the United States.
- Architecture: LlamaForCausalLM, {parameters:,} parameters in float32; {layers} layers of {heads} heads,
  width {width}, SwiGLU of {hidden}, RMSNorm, rotary positions, tied embeddings, context {context}.
- Tokenizer: byte-level BPE of {vocab} tokens, learned on the training part; every text begins with `{bos}`.
- sha256 of model.safetensors: `{sha256}`

## Training

{steps:,} steps of {batch} windows: `{bos}` and tokens from a random place, up to length {school_context} in the
first {school:,} steps and {context} afterwards. That is {seen} tokens, repeats included.
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

(At the scan's length, {context} tokens. On shorter texts it is more: `attnscope reproduce induction2024`.)

{made}

What was tried before (`tools/pocket/tried.json`; at the last look, on held-out text, the largest of all heads, and
for *spike* the largest entry of the stream; there is no record of a run N; *induction* on random tokens said twice;
*planted*: whether a head began by looking one token back; *leaning*: whether heads behind block 0 began with a third of
their attention on `{bos}`; *price*: nats that a head paid at every token):

{tried}

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


MADE = {
    "sink": (
        "attention sinks",
        "every window begins with `<bos>`, which sinks need (`attnscope reproduce spike2026` asks for that), and that"
        " was not enough: in no run that learned text at length 256 did a head have more than 0.14 of its attention"
        " there at the last look (D, F and M, with random tokens or shorter windows, had 0.31 to 0.54). From step"
        " {looking_from:,} a head pays {looking} nats at every token for attention that is not on the first"
        " (`tools/pocket/looking.py`), so that only looks that are worth it should remain. The same run without the"
        " price (U) ended there: whether sinks would have come later is not known.",
    ),
    "massive_activation": (
        "a massive activation",
        "nothing was done for the one that the scan names, and the table shows no setting that decides its size. The"
        " MLP of the last block writes a larger one into channel 0, which began as the same number in every embedding"
        " for the planted head.",
    ),
    "previous_token_heads": (
        "a previous-token head",
        "head 0 of block 0 begins as one, made of rotary angles alone, and training was free to change it.",
    ),
    "induction_heads": (
        "induction heads",
        "they were grown in school, the first {school:,} steps, in which windows of {school_context} tokens do nothing"
        " but repeat themselves; later {shuffled:.0%} repeat words in no order and {repeated:.0%} as they stand.",
    ),
}


def what_made_it(kinds: Collection[str], params: Mapping[str, Any]) -> str:
    """Return a list of the wanted structures: whether a scan finds them, and what was done for them."""
    return "\n".join(
        f"- **{name}** ({'found' if kind in kinds else 'not found'}): {how.format(**params)}"
        for kind, (name, how) in MADE.items()
    )


def tried() -> str:
    """Return the table of earlier runs."""
    columns = ("run", "rate", "decay", "context", "matrices", "embeddings", "planted", "leaning", "repeats", "price")
    last = ("step", "bits", "sink", "spike", "previous", "induction")
    head = (*columns, "at step", "bits per byte", *last[2:])
    rows = [head, ("---",) * len(head)]
    for one in json.loads(Path(__file__).with_name("tried.json").read_text("utf-8")):
        seen = one["seen"][-1]
        rows.append((*(_cell(one[name]) for name in columns), *(_cell(seen[name]) for name in last)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not measured"
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_folder(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> str:
    """Write everything that transformers needs to load the model; return the hash of the weights."""
    out.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def scanned(folder: Path, corpus: str | None, **options: Any) -> tuple[str, set[str]]:
    """Return the sentences of a survey as a list, and the kinds of its findings."""
    survey = attnscope.scan(folder, corpus, samples=32, **options)
    return "\n".join(f"- {one}" for one in survey.sentences()), {one.kind for one in attnscope.diagnose(survey)}


def sample(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, seed: int) -> str:
    torch.manual_seed(seed)
    start = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    words = model.generate(**start, max_new_tokens=160, do_sample=True, temperature=0.8, top_k=50)
    return str(tokenizer.decode(words[0], skip_special_tokens=True)).strip()
