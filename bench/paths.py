"""`python -m bench.paths`: the cost of sorting all paths by length, relative to one forward pass in the same run.

BERT-base size (12 layers, 12 heads, width 768), random weights, 128 tokens, float32, one thread, CPU time, the smallest
of several turns. The model is attnscope's nano with norms behind the skips, as in BERT: once with attention only, once
with MLPs of 3072 units. `freeze` runs before and has its own row. For comparison: enumerating all (H+1)^L paths (the
measured time of one path times their number), a sample of 20 paths, and the lengths of one target, meeting in the
middle. `pocket` and `smollm2` measure the same on trained models with 64 tokens. `command` measures all of `attnscope
paths pocket TEXT` at 179 tokens, from loading the model to the report (and drawing the page separately), in forward
passes of the same model in float64. `effects` measures the same command with heads taken out against the command
without (`--no-effects`), on pocket (all 24 heads, 179 tokens) and SmolLM2-135M (160 of 270 heads, 64 tokens). `memory`
measures lengths and head values of SmolLM2-135M on 64 tokens in its own process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from attnscope.hf.editing.freeze import freeze
from attnscope.papers.models.nano import Config, Nano
from attnscope.pathways.graded import Graded, watching
from attnscope.pathways.lengths import by_length, lengths
from attnscope.pathways.network import Network
from attnscope.pathways.sums import Sums
from attnscope.pathways.targets import logit

LAYERS, HEADS, WIDTH, TOKENS, SAMPLE = 12, 12, 768, 128, 20
COMMAND_TOKENS = 179
MET = "all edges of one target, meeting in the middle"
REACH = {"all lengths, attention only": 4.0, "all lengths, with MLPs": 8.0, "all edges, with MLPs": 8.0, MET: 5.0}
REACH["pocket, 179 tokens, whole command"] = 40.0
REACH |= {"pocket, 179 tokens, with effects of heads": 2.0, "smollm2, 64 tokens, with effects of heads": 1.5}


def cpu_seconds(ways: dict[str, Callable[[], Any]], turns: int, warm_up: bool = True) -> dict[str, float]:
    """Return the smallest CPU time of several alternating turns, since disturbances only add time."""
    best = dict.fromkeys(ways, float("inf"))
    with torch.no_grad():
        for turn in range(turns + warm_up):
            for name, way in ways.items():
                start = time.process_time()
                way()
                if turn or not warm_up:  # the first call includes allocations
                    best[name] = min(best[name], time.process_time() - start)
    return best


def model(mlp: int | None) -> Nano:
    return Nano(Config(vocab_size=1000, width=WIDTH, heads=HEADS, layers=LAYERS, norm="post", mlp=mlp, out=2)).eval()


def one_path(network: Network) -> None:
    """Compute a single path through one head of every block, with everything else frozen."""
    parts = network.streams[0][None, None, None]

    def only_the_first_head(mixed: Graded, pattern: torch.Tensor) -> Graded:
        alone = torch.zeros_like(mixed.sums.parts)
        alone[:, :, :, :, 0] = mixed.sums.parts[:, :, :, :, 0]
        return mixed.made(mixed.value, lambda: Sums(alone))

    with watching(only_the_first_head):
        for layer in range(network.layers):
            parts = network.block(layer, Graded.of(network.streams[layer], parts, None, "none")).parts


def measured(turns: int) -> list[dict[str, Any]]:
    ids = torch.randint(0, 1000, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    rows = []
    for kind, mlp in (("attention only", None), ("with MLPs", 3072)):
        bare = model(mlp)
        frozen = freeze(bare, {"input_ids": ids})
        ways: dict[str, Callable[[], Any]] = {
            f"one forward, {kind}": lambda bare=bare: bare(ids),
            f"freeze, {kind}": lambda bare=bare: freeze(bare, {"input_ids": ids}),
            f"all lengths, {kind}": lambda frozen=frozen: lengths(frozen, sources=False),
            f"all lengths, sources apart, {kind}": lambda frozen=frozen: lengths(frozen),
        }
        if mlp:
            ways["all edges, with MLPs"] = lambda frozen=frozen: lengths(frozen, "edges", sources=False)
            ways[MET] = lambda frozen=frozen: by_length(frozen, logit(0), sources=False)
            ways[f"{MET}, sources apart"] = lambda frozen=frozen: by_length(frozen, logit(0))
        ways[f"one path, {kind}"] = lambda frozen=frozen: one_path(frozen)
        seconds = cpu_seconds(ways, turns)
        one, path = seconds[f"one forward, {kind}"], seconds[f"one path, {kind}"]
        seconds[f"{SAMPLE} paths drawn (extrapolated), {kind}"] = SAMPLE * path
        seconds[f"all {(HEADS + 1) ** LAYERS:.1e} paths (extrapolated), {kind}"] = (HEADS + 1) ** LAYERS * path
        rows += [{"way": name, "cpu_seconds": s, "ratio": s / one} for name, s in seconds.items()]
    return rows


def real(name: str, turns: int) -> list[dict[str, Any]]:
    """Return the cost of one target's lengths, relative to a forward pass of a trained model on 64 tokens in
    float32."""
    from attnscope.hf.loading.load import load
    from attnscope.pathways.heads import head_table
    from bench.subjects import wikitext
    from tools.fetch_models import path as weights

    loaded = load(name if name == "pocket" else str(weights(name)))
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(wikitext()[:2000])["input_ids"][:64]])
    frozen = freeze(loaded.model, {"input_ids": ids})
    target = logit(int(frozen.output[0, -1].argmax()))
    ways: dict[str, Callable[[], Any]] = {
        f"one forward, {name}": lambda: loaded.model(ids, use_cache=False),
        f"all edges followed to the end, {name}": lambda: lengths(frozen, "edges", sources=False),
        f"{MET}, {name}": lambda: by_length(frozen, target, sources=False),
        f"values of all heads, {name}": lambda: head_table(frozen, target),
    }
    seconds = cpu_seconds(ways, turns)
    one = seconds[f"one forward, {name}"]
    return [{"way": way, "cpu_seconds": s, "ratio": s / one} for way, s in seconds.items()]


def whole_command(turns: int) -> list[dict[str, Any]]:
    """Measure all of `paths` on a text of 179 tokens. The first turn is skipped, because it includes imports."""
    import tempfile
    from pathlib import Path

    from attnscope.commands.paths.run import paths
    from attnscope.hf.loading.load import load

    loaded = load("pocket", dtype="float64")
    text = text_of(loaded.tokenizer, COMMAND_TOKENS)
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    report = paths(loaded, text)
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], Any]] = {
            "one forward, pocket, 179 tokens": lambda: loaded.model(ids, use_cache=False),
            "pocket, 179 tokens, whole command": lambda: paths("pocket", text, effects=None),
            "its page": lambda: report.write_page(Path(folder) / "paths.html"),
        }
        seconds = cpu_seconds(ways, turns)
    one = seconds["one forward, pocket, 179 tokens"]
    return [{"way": way, "cpu_seconds": s, "ratio": s / one} for way, s in seconds.items()]


def text_of(tokenizer: Any, tokens: int) -> str:
    """Return the beginning of WikiText-2 that has this many tokens."""
    from bench.subjects import wikitext

    whole = wikitext()
    return next(whole[:cut] for cut in range(2 * tokens, 3000) if len(tokenizer(whole[:cut])["input_ids"]) == tokens)


def effects(turns: int) -> list[dict[str, Any]]:
    """Measure the whole command with and without the effects of heads."""
    from attnscope.commands.paths.run import paths
    from attnscope.hf.loading.load import load
    from tools.fetch_models import path as weights

    rows = []
    for name, tokens, own_turns in (("pocket", COMMAND_TOKENS, turns), ("smollm2", 64, 1)):
        source = name if name == "pocket" else str(weights(name))
        text = text_of(load(source).tokenizer, tokens)
        ways: dict[str, Callable[[], Any]] = {
            f"{name}, {tokens} tokens, without effects of heads": lambda s=source, t=text: paths(s, t, effects=None),
            f"{name}, {tokens} tokens, with effects of heads": lambda s=source, t=text: paths(s, t),
        }
        seconds = cpu_seconds(ways, own_turns, warm_up=name == "pocket")
        one = next(iter(seconds.values()))
        rows += [{"way": way, "cpu_seconds": s, "ratio": s / one} for way, s in seconds.items()]
    return rows


def smollm2() -> dict[str, float]:
    """Return the peak memory of this process after loading, freezing, lengths and head values."""
    from attnscope.hf.loading.load import load
    from attnscope.pathways.heads import head_table
    from attnscope.pathways.shapley import shapley
    from attnscope.pathways.targets import logit
    from attnscope.pathways.top_paths import top_paths
    from bench.subjects import wikitext
    from tools.fetch_models import path as weights

    loaded = load(str(weights("smollm2")))
    assert loaded.tokenizer is not None
    ids = torch.tensor([loaded.tokenizer(wikitext()[:2000])["input_ids"][:64]])
    figures = {"loaded_mb": _peak()}

    def timed(name: str, way: Callable[[], Any]) -> Any:
        start = time.process_time()
        answer = way()
        figures[f"{name}_seconds"], figures[f"{name}_peak_mb"] = time.process_time() - start, _peak()
        return answer

    network = timed("freeze", lambda: freeze(loaded.model, {"input_ids": ids}))
    target = logit(int(network.output[0, -1].argmax()))
    timed("lengths", lambda: lengths(network))
    timed("head_table", lambda: head_table(network, target))
    timed("shapley", lambda: shapley(network, target))
    timed("top_paths", lambda: top_paths(network, target))
    return figures


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["all", "time", "pocket", "command", "effects", "smollm2", "memory", "peak"],
        default="all",
    )
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=110)
    if options.what == "peak":
        print(json.dumps(smollm2()))
        return
    measuring: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "time": lambda: measured(options.turns),
        "pocket": lambda: real("pocket", options.turns),
        "command": lambda: whole_command(options.turns),
        "effects": lambda: effects(options.turns),
        "smollm2": lambda: real("smollm2", options.turns),
    }
    for what in [name for name in measuring if options.what in ("all", name)]:
        table = Table(title="sorting all paths by length (one thread; one forward = 1)")
        for heading in ("way", "CPU seconds", "ratio", "reach"):
            table.add_column(heading, justify="left" if heading == "way" else "right")
        for row in measuring[what]():
            reach = REACH.get(row["way"])
            table.add_row(
                row["way"], f"{row['cpu_seconds']:.3g}", f"{row['ratio']:.3g}x", f"{reach:g}x" if reach else ""
            )
        console.print(table)
    if options.what in ("all", "memory"):
        command = [sys.executable, "-m", "bench.paths", "peak"]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            console.print(
                f"SmolLM2-135M, 64 tokens: {name} {value:,.1f}" + (" (reach 4,096)" if "peak" in name else "")
            )


if __name__ == "__main__":
    main()
