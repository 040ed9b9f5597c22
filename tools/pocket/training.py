"""The training loop: AdamW over the lessons, with checkpoints from which a run resumes bit for bit."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tools.pocket.lessons import rate, training_batch, windows
from tools.pocket.looking import looks_elsewhere
from tools.pocket.model import build
from tools.pocket.params import Params


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, stream: torch.Tensor, context: int, count: int) -> float:
    """Return nats per token over consecutive windows: all, or `count` evenly spaced ones."""
    starts = torch.arange(0, len(stream) - context + 2, context - 1)
    if count < len(starts):
        starts = starts[torch.linspace(0, len(starts) - 1, count).long()]
    total = 0.0
    for rows in windows(stream, starts, context).split(32):  # type: ignore[no-untyped-call]
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
            raise SystemExit(f"{path} belongs to another run: delete it, or name another folder with --run.")
        for name, weight in model.named_parameters():
            weight.data.copy_(file.get_tensor(f"model.{name}"))
        state: dict[int, dict[str, torch.Tensor]] = {}
        for _, index, key in (name.split(".") for name in file.keys() if name.startswith("adam.")):  # noqa: SIM118
            state.setdefault(int(index), {})[key] = file.get_tensor(f"adam.{index}.{key}")
        adam.load_state_dict({"state": state, "param_groups": adam.state_dict()["param_groups"]})
        return int(file.metadata()["step"])


def _loss(
    model: LlamaForCausalLM, rows: Int[Tensor, "row context"], looking: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return nats per token, and the penalty on attention."""
    if not looking:
        return model(input_ids=rows, labels=rows, use_cache=False).loss, torch.zeros(())
    with looks_elsewhere(model) as looks:
        return model(input_ids=rows, labels=rows, use_cache=False).loss, looking * reduce(add, looks)


def train(stream: torch.Tensor, held: torch.Tensor, params: Params, run: Path, end: int) -> LlamaForCausalLM:
    """Train until step `end` of `params.steps`, from the checkpoint in `run` if there is one."""
    model = build(params)
    matrices: dict[str, Any] = {"params": [weight for weight in model.parameters() if weight.ndim == 2]}
    gains: dict[str, Any] = {
        "params": [weight for weight in model.parameters() if weight.ndim == 1],
        "weight_decay": 0.0,
    }
    adam = torch.optim.AdamW(
        [matrices, gains], lr=params.peak_rate, betas=params.betas, weight_decay=params.weight_decay, fused=True
    )
    note = json.dumps(asdict(params) | {"data": hashlib.sha256(stream.numpy().tobytes()).hexdigest()})
    checkpoint = run / "checkpoint.safetensors"
    first = load_checkpoint(checkpoint, model, adam, note) if checkpoint.exists() else 0
    began = time.monotonic()
    for step in range(first, end):
        for group in adam.param_groups:
            group["lr"] = rate(step, params)
        rows = training_batch(stream, step, params)
        loss, price = _loss(model, rows, params.looking if step >= params.looking_from else 0.0)
        torch.autograd.backward(loss + price)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), params.clip)
        adam.step()
        adam.zero_grad(set_to_none=True)
        done = step + 1
        if done % 50 == 0 or done == end:
            pace = (done - first) / (time.monotonic() - began)
            speed, left = pace * rows.numel(), (params.steps - done) / pace / 60
            losses = f"loss {loss.item():.3f}  price {price.item():.3f}  gradient {norm.item():.2f}"
            print(f"step {done:5d}/{params.steps}  {losses}", end="  ")
            print(f"rate {rate(step, params):.1e}  {speed:,.0f} tokens/s  {left:.0f} min left", flush=True)
        if done % 250 == 0 or done == end:
            print(f"held-out loss {evaluate(model, held, params.context, 64):.3f}", flush=True)
            save_checkpoint(checkpoint, model, adam, step=str(done), note=note)
    return model.eval()
