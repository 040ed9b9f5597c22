"""The subjects of measurement: models, their inputs, and the ways of running them that are compared."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from attnscope.commands.scan.observer import Observer
from attnscope.commands.scan.plan import Subject as Observed
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.core.registry import choose
from attnscope.data.batches import Batches
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import Loaded, batches_for, forward_options, load
from attnscope.hf.loading.options import Sampling
from tools.fetch_models import path as weights


@dataclass(frozen=True)
class Subject:
    """A model with batches, and the ways of running them once: bare, scan, eager."""

    loaded: Loaded
    batches: Batches

    @cached_property
    def found(self) -> Anatomy:
        """Probe the model. This is done once per model and is not part of the ratio."""
        with torch.inference_mode():
            return anatomy(self.loaded.model, self.batches.batches[0].inputs)

    def bare(self) -> None:
        """Run the model's own fused forward pass."""
        with torch.inference_mode():
            for batch in self.batches:
                self.loaded.model(**batch.inputs, **forward_options(self.loaded))

    def scan(self, measures: str = "default") -> SurveyBuilder:
        """Run the same forward pass with the measures."""
        chosen = choose(measures.split(","))
        ledger = SurveyBuilder({m.card.name: m.card for m in chosen})
        observer = Observer(chosen, ledger, torch.float32)
        observed = Observed(self.loaded.model, self.found, forward_options(self.loaded))
        with torch.inference_mode():
            for batch in self.batches:
                observed.observe(observer, batch)
                observer.commit()
        if not ledger.survey({}).cells:
            raise RuntimeError("the scan measured nothing, so its time is meaningless")
        return ledger

    def eager(self) -> float:
        """Compute statistics of every n x n map, as other tools do."""
        model: Any = self.loaded.model
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        total = 0.0
        try:
            with torch.inference_mode():
                for batch in self.batches:
                    out = model(**batch.inputs, **forward_options(self.loaded), output_attentions=True)
                    total += sum(dense_statistics(a) for a in out.attentions)
        finally:
            model.set_attn_implementation(before)
        return total


def dense_statistics(a: torch.Tensor) -> float:
    """Return entropy, received mass, effective support, first key and mean distance of a dense map."""
    n = a.shape[-1]
    entropy = -torch.xlogy(a, a).sum(-1)
    received = a.sum(-2)
    support = 1 / a.square().sum(-1)
    place = torch.arange(n, dtype=a.dtype)
    distance = (a * (place[:, None] - place).abs()).sum(-1)
    return float(entropy.mean() + received.amax() + support.mean() + distance.mean() + a[..., 0].mean())


def minilm() -> Subject:
    """Return MiniLM-L6 with 64 texts of 128 tokens."""
    loaded = load(str(weights("minilm")))
    return Subject(loaded, _text_batches(loaded, sequences=64, tokens=128, batch_size=16))


def llama(tokens: int) -> Subject:
    """Return four random Llama blocks with grouped heads: 8 query heads on 2 key heads, width 512."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=tokens,
        use_cache=False,
    )
    torch.manual_seed(0)
    loaded = in_memory(LlamaForCausalLM(config).eval().model)
    ids = torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(0))
    return Subject(loaded, Batches.of([{"input_ids": ids}]))


def smollm2() -> Subject:
    """Return SmolLM2-135M with 64 sequences of 256 tokens of WikiText-2."""
    loaded = load(str(weights("smollm2")))
    return Subject(loaded, _text_batches(loaded, sequences=64, tokens=256, batch_size=8))


def _text_batches(loaded: Loaded, *, sequences: int, tokens: int, batch_size: int) -> Batches:
    """Return full windows only, so that all ways of running them read the same number of tokens without padding."""
    ready = batches_for(loaded, [wikitext()], Sampling(2 * sequences, tokens, batch_size=1))
    rows = [batch.inputs for batch in ready if batch.tokens == tokens][:sequences]
    return Batches.of(
        [
            {name: torch.cat([row[name] for row in rows[i : i + batch_size]]) for name in rows[0]}
            for i in range(0, sequences, batch_size)
        ],
        name=ready.name,
    )


def wikitext() -> str:
    found = sorted(Path(weights("wikitext2")).rglob("test*"))[0]
    raw = found.read_bytes()
    return (gzip.decompress(raw) if found.suffix == ".gz" else raw).decode()


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "minilm": minilm,
    "llama-4096": lambda: llama(4096),
    "llama-32768": lambda: llama(32768),
    "smollm2": smollm2,
}
