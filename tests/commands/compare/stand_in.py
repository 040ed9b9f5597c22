"""A small stand-in for the trial of a scan, for causal Llama models: losses of a few windows, and sizes of writes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.scan.survey.trial import Exposure, Part, Trial
from attnscope.data.read import read


def tried(survey: Survey, model: Any, tokenizer: Any, windows: int = 8, tokens: int = 128) -> Survey:
    """Return the survey with a trial on the first windows of the embedded text."""
    text = tokenizer(str(read(None).documents[0]), add_special_tokens=False)["input_ids"]
    ids = torch.tensor(text[: windows * tokens]).view(windows, tokens)
    if tokenizer.bos_token_id is not None:
        ids[:, 0] = tokenizer.bos_token_id
    writes: dict[tuple[int, str], float] = {}
    hooks = []
    for layer, block in enumerate(model.model.layers):
        hooks += [
            _watch(block, "attention", block.self_attn, layer, writes),
            _watch(block, "mlp", block.mlp, layer, writes),
        ]
    with torch.no_grad():
        logits = model(ids).logits
        moved = _moved(model, ids, logits)
    for hook in (hook for pair in hooks for hook in pair):
        hook.remove()
    loss = nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none").mean(1)
    stack = survey.stacks[0]
    parts = [Part(stack, layer, half, size, math.nan) for (layer, half), size in sorted(writes.items())]  # type: ignore[arg-type]
    sizes = tuple(len(tokenizer.decode(row[1:]).encode()) for row in ids)
    trial = Trial(
        fingerprint=hashlib.sha256(ids.numpy().tobytes()).hexdigest(),
        task="next token",
        counts=(tokens - 1,) * windows,
        loss=tuple(loss.tolist()),
        bytes=sizes,
        exposures=(Exposure(stack, moved, 1e-4, 0 if moved > 1e-4 else None),),
        parts=tuple(parts),
    )
    return replace(survey, trial=trial)


def _watch(block: Any, half: str, module: nn.Module, layer: int, writes: dict[tuple[int, str], float]) -> list[Any]:
    """Record the size of a write, relative to the stream that it is added to."""
    norm = block.input_layernorm if half == "attention" else block.post_attention_layernorm
    stream: list[torch.Tensor] = []

    def read_stream(_: nn.Module, args: Any) -> None:
        stream[:] = [args[0]]

    def read_write(_: nn.Module, __: Any, output: Any) -> None:
        wrote = output[0] if isinstance(output, tuple) else output
        writes.setdefault((layer, half), float((wrote.norm(dim=-1) / stream[0].norm(dim=-1)).mean()))

    return [norm.register_forward_pre_hook(read_stream), module.register_forward_hook(read_write)]


def _moved(model: Any, ids: torch.Tensor, logits: torch.Tensor) -> float:
    """Return how far outputs at the first half of the tokens move when the second half is replaced."""
    half = ids.shape[1] // 2
    other = ids.clone()
    other[:, half:] = ids[:, half:].flip(1)
    return float((model(other).logits[:, :half] - logits[:, :half]).abs().max() / logits.abs().max())
