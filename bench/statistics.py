"""Measure the cost of attention statistics, relative to the CPU time of one fused call on the same tensors.

Run: python bench/statistics.py [--threads 1] [--repeat 10] [--longest 16384]

Rounds are interleaved and the quickest of each is kept, so that ratios hold on a busy machine. The log-sum-exp of the
model's own call is given, as in a scan, except in rows with `no lse`. `no spans` leaves out the mass by distance, which
the fused route cannot give.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.matrix.attend import attend_with_lse
from attnscope.matrix.scores import Scores
from attnscope.matrix.statistics import attention_statistics

DEFAULT_SET = (
    *("row_entropy", "row_sum_squares", "first_key_mass", "self_mass", "previous_mass"),
    *("received", "head_overlap", "mass_by_distance"),
)
#        name                    batch heads kv  n      dim causal
CASES = (
    ("MiniLM, n=128", 64, 12, 12, 128, 32, False),
    ("encoder, n=512", 8, 12, 12, 512, 64, False),
    ("decoder, n=512", 8, 12, 12, 512, 64, True),
    ("grouped decoder, n=4096", 1, 8, 2, 4096, 64, True),
    ("grouped decoder, n=16384", 1, 8, 2, 16384, 64, True),
)


def quickest(works: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the least CPU seconds of each function over interleaved rounds."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeat):
        for name, work in works.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def heads_of(batch: int, tokens: int, heads: int, dim: int) -> Tensor:
    """Return a tensor in the memory layout of a projection: heads inside tokens."""
    return torch.randn(batch, tokens, heads, dim).transpose(1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--longest", type=int, default=16384)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    columns = ("fused call", "auto", "auto, no spans", "blocked", "blocked, no lse", "fused", "dense")
    print(f"{'':26}" + "".join(f"{c:>17}" for c in columns))
    for name, batch, heads, kv_heads, n, dim, causal in CASES:
        if n > options.longest:
            continue
        query = heads_of(batch, n, heads, dim)
        key, value = heads_of(batch, n, kv_heads, dim), heads_of(batch, n, kv_heads, dim)
        mask = torch.ones(batch, n, dtype=torch.bool)
        call = {"is_causal": causal, "enable_gqa": heads != kv_heads}
        _, lse = attend_with_lse(query, key, value, **call)
        known = Scores(query, key, dim**-0.5, causal=causal, lse=lse)
        unknown = replace(known, lse=None)

        def measure(scores: Scores, route: str, mask: Tensor = mask, want: tuple[str, ...] = DEFAULT_SET) -> object:
            return attention_statistics(
                scores, want, query_mask=mask, key_mask=mask, route=route, accumulate=torch.float32
            )

        works: dict[str, Callable[[], object]] = {
            "fused call": lambda q=query, k=key, v=value, c=call: attend_with_lse(q, k, v, **c),
            "auto": lambda s=known: measure(s, "auto"),
            "auto, no spans": lambda s=known: measure(s, "auto", want=DEFAULT_SET[:-1]),
            "blocked": lambda s=known: measure(s, "blocked"),
            "blocked, no lse": lambda s=unknown: measure(s, "blocked"),
            "fused": lambda s=known: measure(s, "fused", want=DEFAULT_SET[:-1]),
        }
        if n <= 512:
            works["dense"] = lambda s=known: measure(s, "dense")
        best = quickest(works, options.repeat if n < 10000 else max(1, options.repeat // 5))
        bare = best["fused call"]
        cells = [f"{bare * 1e3:.0f} ms = 1"] + [f"{best[c] / bare:.2f}" if c in best else "-" for c in columns[1:]]
        print(f"{name:26}" + "".join(f"{cell:>17}" for cell in cells), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
