"""The attention functions that `bench.variants` compares with the fused kernel, and how one is measured.

    python -m bench.attentions '{"tokens": 4096, "dim": 64, "causal": false, "backward": true, ..., "ways": ["local"]}'

Time is CPU time on one thread; the functions take turns, and the smallest of several turns counts. Memory is the peak
of resident memory during one call minus the memory in use before it. One sequence, two heads, float32.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.core.registry import variants
from attnscope.core.variant import Size
from attnscope.matrix.visibility import AttentionInputs
from bench.work import peak_megabytes_of

PEERS = Path(__file__).parent.parent / ".peers"  # other libraries, unpacked by `make peers`, for development only
HEADS = 2
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def ways(tokens: int, dim: int, causal: bool) -> dict[str, Callable[[], Attend]]:
    """Return by name what builds each function: `fused` first, then ours, then those of other libraries."""
    size = Size(heads=HEADS, dim=dim, width=HEADS * dim)

    def ours(name: str) -> Callable[[], Attend]:
        def make() -> Attend:
            variant = variants()[name]
            own = variant.start(size)
            return lambda q, k, v: variant(AttentionInputs(q, k, v, causal=causal, scale=dim**-0.5), **own)

        return make

    def gated() -> Attend:
        gates = variants()["gated_output"]
        own = gates.start(size)
        stream = torch.randn(1, tokens, size.width, generator=torch.Generator().manual_seed(1))

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
            return torch.as_tensor(gates(mixed.transpose(1, 2), stream, **own))

        return attend

    made: dict[str, Callable[[], Attend]] = {"fused": lambda: lambda q, k, v: _fused(q, k, v, causal)}
    made |= {name: ours(name) for name in ("local", "performer", "fastmax1", "fastmax2")}
    made |= {name: ours(name) for name in ("minus_uniform", "shaped", "attn_scale", "softmax_plus_one", "learned_sink")}
    made |= {"gated_output": gated}
    made |= {"performer-pytorch": lambda: _performer_pytorch(dim, causal)}
    made |= {"local-attention": lambda: _local_attention(dim, causal)}
    made |= {"x-transformers": lambda: _x_transformers(dim, causal, gate=False)}
    made |= {"x-transformers, gated": lambda: _x_transformers(dim, causal, gate=True)}
    return made


def _fused(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def _performer_pytorch(dim: int, causal: bool) -> Attend:
    """Build performer-pytorch with as many features as ours. Its causal form needs a GPU extension and is not
    measured."""
    from performer_pytorch.performer_pytorch import FastAttention

    if causal:
        raise ImportError("performer-pytorch's causal attention needs an extension for GPUs")
    made: Attend = FastAttention(dim, nb_features=4 * dim, causal=False)
    return made


def _local_attention(dim: int, causal: bool) -> Attend:
    """Build local-attention, which x-transformers and performer-pytorch use; its blocks see one block back (and
    ahead)."""
    from local_attention import LocalAttention

    made: Attend = LocalAttention(window_size=64, causal=causal, dim=dim, autopad=True, use_rotary_pos_emb=False)
    return made


def _x_transformers(dim: int, causal: bool, *, gate: bool) -> Attend:
    """Build a whole layer with projections. Only the ratio of its gated to its plain form is meaningful."""
    from x_transformers.x_transformers import Attention

    layer = Attention(dim=HEADS * dim, heads=HEADS, dim_head=dim, causal=causal, flash=True, gate_values=gate)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.as_tensor(layer(query.transpose(1, 2).flatten(2))[0])

    return attend


def measured(tokens: int, dim: int, causal: bool, backward: bool, names: list[str], turns: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(0)
    three = [torch.randn(1, HEADS, tokens, dim, generator=rng, requires_grad=backward) for _ in range(3)]
    found: dict[str, Any] = {}
    calls: dict[str, Callable[[], None]] = {}
    for name in names:
        try:
            attend = ways(tokens, dim, causal)[name]()
        except ImportError as error:
            found[name] = {"left_out": str(error)}
            continue
        calls[name] = _call(attend, three, backward)
        calls[name]()  # the first call includes allocations
        found[name] = {"seconds": float("inf")}
    for _ in range(turns):
        for name, call in calls.items():
            start = time.process_time()
            call()
            found[name]["seconds"] = min(found[name]["seconds"], time.process_time() - start)
    for name, call in calls.items():
        ctypes.CDLL(None).malloc_trim(0)
        found[name]["megabytes"] = peak_megabytes_of(call)["added_mb"]
    return found


def _call(attend: Attend, three: list[Tensor], backward: bool) -> Callable[[], None]:
    def call() -> None:
        with torch.set_grad_enabled(backward):
            mixed = attend(*three)
            if backward:
                torch.autograd.grad(
                    mixed.square().sum(), [one for one in three if one.requires_grad], allow_unused=True
                )

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=json.loads)
    case = parser.parse_args().case
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # warnings of other libraries
    if PEERS.is_dir():
        sys.path.append(str(PEERS))
    names = case.pop("ways")
    print(json.dumps(measured(**case, names=names)))


if __name__ == "__main__":
    main()
