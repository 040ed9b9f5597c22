"""`python -m bench.explain`: what explanations cost, as ratios in one run. Written to bench/explain.json.

    short    relevance of one logit of four random Llama layers with grouped heads (8 over 2, width 512), n = 4096: the
          whole of `attnscope.explain(..., methods="relevance")`, including the search for the model's parts, compared
          with one forward and backward pass to the embedding under fused attention, and with the method of
          arXiv:2103.15679: eager maps, their gradients, and R as an n x n matrix
    long     the same at n = 16,384: whether it runs, and in how much memory
    small    all default methods on 256 tokens of SmolLM2-135M, compared with captum's integrated gradients of 50 steps
    trial    the trial on eight texts of 64 tokens with SmolLM2-135M, compared with one forward and backward pass

One thread, CPU time, the smaller of two turns. Memory is the peak of a separate process minus the memory in use before.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from rich.console import Console
from rich.table import Table

import attnscope
from bench.attentions import PEERS
from bench.subjects import wikitext
from bench.work import peak_megabytes_of

RESULTS = Path(__file__).with_name("explain.json")
SHORT, LONG, READ, STEPS = 4096, 16384, 256, 50
TRIED, TEXTS, APART = 64, 8, 4000  # tokens and number of texts for the trial, and tokens between their beginnings
MOST_STAND_INS = 20
REACH = {"time": 3.0, "trial": 3.0, "memory": 2.0, "long_mb": 6 * 1024}
WAYS = ("forward + backward", "relevance", "eager maps")


def llama(tokens: int, attention: str = "sdpa") -> tuple[Any, torch.Tensor]:
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
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    ids = torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(0))
    return LlamaForCausalLM(config).eval().requires_grad_(False), ids


def forward_and_backward(model: Any, ids: torch.Tensor) -> None:
    """Compute the gradient at the embedding only: the cheapest gradient that an explanation can use."""
    vectors = model.get_input_embeddings()(ids).requires_grad_()
    torch.autograd.grad(model(inputs_embeds=vectors).logits[0, -1].max(), vectors)


def relevance(model: Any, ids: torch.Tensor) -> None:
    attnscope.explain(model, {"input_ids": ids}, methods="relevance")


def eager_maps(model: Any, ids: torch.Tensor) -> None:
    """Compute relevance as the paper's code does: every map and its gradient, and R as a full matrix."""
    vectors = model.get_input_embeddings()(ids).requires_grad_()
    answer = model(inputs_embeds=vectors, output_attentions=True)
    maps = list(answer.attentions)
    gradients = torch.autograd.grad(answer.logits[0, -1].max(), maps)
    del answer
    carried = torch.eye(ids.shape[1])
    for pattern, gradient in zip(maps, gradients, strict=True):
        carried += (pattern.detach() * gradient).clamp_min(0).mean(1)[0] @ carried


CALLS: dict[str, Callable[[Any, torch.Tensor], None]] = {
    "forward + backward": forward_and_backward,
    "relevance": relevance,
    "eager maps": eager_maps,
}


def prepared(way: str, tokens: int) -> Callable[[], None]:
    model, ids = llama(tokens, "eager" if way == "eager maps" else "sdpa")
    return lambda: CALLS[way](model, ids)


def timed(tokens: int, turns: int) -> dict[str, float]:
    best = dict.fromkeys(WAYS, float("inf"))
    calls = {way: prepared(way, tokens) for way in WAYS}
    for turn in range(turns + 1):
        for way, call in calls.items():
            if way == "eager maps" and turn > 1:
                continue  # takes tens of seconds and is far from the others, so one turn suffices
            gc.collect()
            begun = time.process_time()
            call()
            if turn:  # the first call includes allocations
                best[way] = min(best[way], time.process_time() - begun)
    return best


def smollm2() -> dict[str, Any]:
    """Return the seconds of each default method, without loading the model and finding its parts, and of captum."""
    from attnscope.core.registry import chosen_methods
    from attnscope.hf.loading.load import load
    from tools.fetch_models import path as weights

    beside = captum_gradients()  # imported first, so that a missing captum is noticed at once
    loaded = load(str(weights("smollm2")))
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(wikitext()[:8000])["input_ids"][:READ]])
    model: Any = loaded.model
    seconds: dict[str, float] = {}

    def measure(name: str, call: Callable[[], Any]) -> None:
        begun = time.process_time()
        call()
        seconds[name] = time.process_time() - begun

    model.requires_grad_(False)
    forward_and_backward(model, ids)
    measure("forward + backward", lambda: forward_and_backward(model, ids))
    for method in chosen_methods(["default"]):
        name = method.card.name
        measure(name, lambda name=name: attnscope.explain(loaded, {"input_ids": ids}, methods=name))
    measure(f"captum {STEPS} steps", lambda: captum_integrated_gradients(beside, model, ids))
    return seconds


def trials() -> list[dict[str, Any]]:
    """Return the seconds of a trial and of one forward and backward pass, for several texts.

    Methods that take one backward pass choose the words. The first text is left out: it includes imports.
    """
    from attnscope.commands.explain import run as explain_run
    from attnscope.core.registry import chosen_methods
    from attnscope.hf.loading.load import load
    from tools.fetch_models import path as weights

    loaded = load(str(weights("smollm2")))
    assert loaded.tokenizer is not None
    model: Any = loaded.model
    model.requires_grad_(False)
    ids = loaded.tokenizer(wikitext()[: 8 * APART * (TEXTS + 1)])["input_ids"]
    methods = [method.card.name for method in chosen_methods(["default"]) if method.card.cost == "one backward pass"]
    seconds: dict[str, float] = {}

    def timing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            begun = time.process_time()
            answer = call(*args)
            seconds[name] = time.process_time() - begun
            return answer

        return run

    rows = []
    with patch.object(explain_run, "try_on_model", timing("trial", explain_run.try_on_model)):
        for number in range(TEXTS + 1):
            row = torch.tensor([ids[number * APART :][:TRIED]])
            timing("forward + backward", forward_and_backward)(model, row)
            found = attnscope.explain(loaded, {"input_ids": row}, methods=",".join(methods)).trial
            assert found is not None
            rows.append({**seconds, "inputs": found.inputs, "pairs": len(found.pairs)})
    return rows[1:]


def captum_gradients() -> Any:
    """Return captum's class. Its plotting imports are replaced by stubs, since nothing is drawn."""
    sys.path.append(str(PEERS))
    for _ in range(MOST_STAND_INS):
        try:
            from captum.attr import IntegratedGradients
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.partition(".")[0] not in ("matplotlib", "mpl_toolkits"):
                raise
            sys.modules[missing.name] = MagicMock(__path__=[], __spec__=None)
            for name in [name for name in sys.modules if name.partition(".")[0] == "captum"]:
                del sys.modules[name]  # remove partially imported modules
        else:
            return IntegratedGradients
    raise RuntimeError("captum imports more than the stubs cover")


def captum_integrated_gradients(of: Any, model: Any, ids: torch.Tensor) -> None:
    vectors = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        target = int(model(input_ids=ids).logits[0, -1].argmax())
    nothing = model.get_input_embeddings().weight.mean(0).expand_as(vectors).clone()
    answer = of(lambda given: model(inputs_embeds=given).logits[:, -1, target])
    answer.attribute(vectors, nothing, n_steps=STEPS, internal_batch_size=8)


def child(*words: str) -> Any:
    """Run one measurement in its own process."""
    command = [sys.executable, "-m", "bench.explain", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def in_child(asked: argparse.Namespace) -> Any:
    if asked.what == "trials":
        return trials()
    if asked.what == "time":
        return timed(SHORT, asked.turns)
    if asked.what == "smollm2":
        return smollm2()
    call = prepared(asked.way, asked.tokens)
    begun = time.process_time()
    found = peak_megabytes_of(call)
    return {**found, "cpu_seconds": time.process_time() - begun}


def short_rows(turns: int) -> list[dict[str, Any]]:
    seconds = child("time", "--turns", str(turns))
    memory = {way: child("memory", way, "--tokens", str(SHORT)) for way in WAYS}
    first = WAYS[0]
    return [
        {
            "way": way,
            "cpu_seconds": seconds[way],
            "time_ratio": seconds[way] / seconds[first],
            "added_mb": memory[way]["added_mb"],
            "peak_mb": memory[way]["peak_mb"],
            "memory_ratio": memory[way]["added_mb"] / memory[first]["added_mb"],
        }
        for way in WAYS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["all", "short", "long", "small", "trial", "time", "memory", "smollm2", "trials"],
        default="all",
    )
    parser.add_argument("way", nargs="?", choices=WAYS, default="relevance")
    parser.add_argument("--tokens", type=int, default=SHORT)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what in ("time", "memory", "smollm2", "trials"):
        print(json.dumps(in_child(options)))
        return
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine()}
    if options.what in ("all", "short"):
        results["relevance_4096"] = short_rows(options.turns)
    if options.what in ("all", "long"):
        results["relevance_16384"] = child("memory", "relevance", "--tokens", str(LONG))
    if options.what in ("all", "small"):
        results["smollm2_256_seconds"] = child("smollm2")
    if options.what in ("all", "trial"):
        results["smollm2_trials_64"] = child("trials")
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # parts may be measured separately
    RESULTS.write_text(json.dumps(kept | results, indent=2) + "\n")
    _print(results)


def _print(results: dict[str, Any]) -> None:
    console = Console(width=110)
    table = Table(title=f"relevance of one logit, n = {SHORT} (one thread; forward + backward = 1)")
    for heading in ("way", "CPU seconds", "time", "reach", "memory added", "ratio", "reach"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in results.get("relevance_4096", ()):
        ours = row["way"] == "relevance"
        table.add_row(
            row["way"],
            f"{row['cpu_seconds']:.2f}",
            f"{row['time_ratio']:.2f}x",
            f"{REACH['time']:g}x" if ours else "",
            f"{row['added_mb']:,.0f} MB",
            f"{row['memory_ratio']:.2f}x",
            f"{REACH['memory']:g}x" if ours else "",
        )
    console.print(table)
    if long := results.get("relevance_16384"):
        console.print(
            f"relevance at n = {LONG}: peak {long['peak_mb']:,.0f} MB (reach {REACH['long_mb']:,.0f}), "
            f"{long['cpu_seconds']:.0f} CPU seconds"
        )
    for name, seconds in results.get("smollm2_256_seconds", {}).items():
        console.print(f"SmolLM2-135M, {READ} tokens: {name} {seconds:.1f} CPU seconds")
    if rows := results.get("smollm2_trials_64"):
        ratios = sorted(row["trial"] / row["forward + backward"] for row in rows)
        console.print(
            f"SmolLM2-135M, trial on {len(rows)} texts of {TRIED} tokens: median {statistics.median(ratios):.1f} "
            f"forward and backward passes, {ratios[0]:.1f} to {ratios[-1]:.1f} (reach {REACH['trial']:g})"
        )


if __name__ == "__main__":
    main()
