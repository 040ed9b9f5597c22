"""What other tools say about a damaged model. Each has one verdict here, and its own thresholds.

    loss               the loss beside the healthy model, window by window: worse if Student's paired 95% interval of
                       the difference lies above 0
    weights            the tensors of the two checkpoints (`state_dict`) that differ
    ww                 weightwatcher 0.7.7, `analyze()` with its defaults: layers with a `warning`, which is
                       *over-trained* for alpha < 2 and *under-trained* for alpha > 6 (OVER_TRAINED_THRESH and
                       UNDER_TRAINED_THRESH in its constants.py; README, "layer warning labels")
    ww_new             the same, without the warnings of the healthy model: our reading, not the tool's own
    torchlens_audit    torchlens 2.36.1, `debug.audit_trace` of one window and `debug.audit_params`: findings of its
                       severities *critical* and *warning*. It calls its *info* expected for some tensors
    torchlens_compare  `debug.first_divergence` of two traces of one window, with its tolerances (rtol 1e-5, atol 1e-8)
    interpkit_diff     interpkit 0.7.0, `diff` of two models on one text: a ranking of modules by cosine distance. It
                       has no threshold, so it detects nothing; the block that it ranks first counts as named

interpkit's `scan` and torchlens' traces describe a model and judge nothing, so they have no verdict here.
`make peers` unpacks the packages; none is installed.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnscope.commands.scan.trial.run import should_be_causal
from attnscope.commands.scan.trial.windows import (
    TOKENS,
    WHOLE_TOKENS,
    first_windows,
    questions,
    run_losses,
    windows_of,
)
from attnscope.data.batches import Batch
from attnscope.hf.loading.load import Loaded
from attnscope.stats.intervals import paired_interval
from bench.faults.cases import Bed, Case, prepared_for

PEERS = Path(".peers")


@dataclass(frozen=True)
class Verdict:
    """Whether a tool says that something is wrong (None: it never says so), and the blocks that it names."""

    detected: bool | None
    blocks: tuple[int, ...] = ()
    failed: str = ""  # why the tool gave no verdict


@dataclass
class Beside:
    """A subject and an untouched copy of its model, which two-model tools read."""

    bed: Bed
    healthy: Loaded = field(init=False)
    known: set[tuple[str, str]] = field(init=False)  # weightwatcher's warnings about the healthy model
    paths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.healthy = replace(self.bed.subject.loaded, model=copy.deepcopy(self.bed.subject.loaded.model))
        self.paths = tuple(block.path for block in self.bed.found.stacks[-1].blocks)
        self.known = set(warnings_of(self.healthy))

    def blocks_of(self, modules: Iterable[str]) -> tuple[int, ...]:
        return blocks_of(modules, self.paths)


def blocks_of(modules: Iterable[str], paths: Sequence[str]) -> tuple[int, ...]:
    """Return the numbers of the blocks that hold some modules or tensors, given the paths of all blocks."""
    names = tuple(modules)
    return tuple(
        number for number, path in enumerate(paths) if any(f"{name}.".startswith(f"{path}.") for name in names)
    )


def changed_tensors(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that differ in type, shape or any number."""
    return [
        name
        for name in {**before, **after}
        if name not in before
        or name not in after
        or before[name].dtype != after[name].dtype
        or not torch.equal(before[name], after[name])
    ]


def losses_of(beside: Beside, loaded: Loaded, windows: Sequence[Batch]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the loss of every window that predicts a token, and how many tokens each predicts."""
    _, asked = questions(loaded, windows, should_be_causal(beside.healthy, beside.bed.found))
    with torch.no_grad():
        options = {"use_cache": False} if "use_cache" in loaded.accepts else {}
        losses = run_losses(loaded.model, asked, options)
    assert losses is not None
    asked_for = [n for question in asked for n in question.counts]
    kept = [(loss, n) for loss, n in zip(losses, asked_for, strict=True) if n]
    return tuple(loss for loss, _ in kept), tuple(n for _, n in kept)


def windows_for(beside: Beside, case: Case) -> tuple[Batch, ...]:
    """Return the windows of attnscope's own trial of this case."""
    prepared = prepared_for(beside.healthy, case.text, case.options)
    causal = should_be_causal(beside.healthy, beside.bed.found)
    return windows_of(prepared, tokens=TOKENS if causal else WHOLE_TOKENS)


def worse(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the loss rose for sure, or is NaN."""
    if not all(map(math.isfinite, after)):
        return True
    return paired_interval(before, after).low > 0


def raised(before: Sequence[float], after: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return by how many nats per predicted token the loss rose; None if it is NaN."""
    rise = math.fsum(n * (b - a) for a, b, n in zip(before, after, counts, strict=True)) / sum(counts)
    return rise if math.isfinite(rise) else None


def _peer(name: str) -> Any:
    """Import an unpacked package. Installed ones come first: peers must run on the packages that attnscope runs on."""
    if str(PEERS) not in sys.path:
        if not PEERS.is_dir():
            raise SystemExit("`make peers` unpacks the tools that are set beside attnscope.")
        sys.path.append(str(PEERS))
    return importlib.import_module(name)


def warnings_of(loaded: Loaded) -> list[tuple[str, str]]:
    """Return weightwatcher's warnings as pairs of a layer and what it is called."""
    _peer("matplotlib").use("Agg")  # weightwatcher draws nothing by default, but imports pyplot
    details = _peer("weightwatcher").WeightWatcher(model=loaded.model).analyze()
    return [(str(name), str(said)) for name, said in zip(details["longname"], details["warning"], strict=True) if said]


def _traced(loaded: Loaded, window: Batch) -> Any:
    """Return a trace of a copy: torchlens prepares a model once, and fails on a module that is exchanged later."""
    with torch.no_grad():
        return _peer("torchlens").trace(copy.deepcopy(loaded.model), (), input_kwargs=dict(window.inputs))


def _modules(trace: Any, label: str) -> list[str]:
    """Return the paths of the modules in which an operation ran, which torchlens writes with the number of the call."""
    return [str(module).rpartition(":")[0] for module in trace.ops[label].modules]


def weights(beside: Beside, case: Case) -> Verdict:
    changed = changed_tensors(beside.healthy.model.state_dict(), case.loaded.model.state_dict())
    return Verdict(bool(changed), beside.blocks_of(changed))


def weightwatcher_verdicts(beside: Beside, case: Case) -> dict[str, Verdict]:
    """Return weightwatcher's verdict on one model, and the same without what it says of the healthy one."""
    said = warnings_of(case.loaded)
    new = [pair for pair in said if pair not in beside.known]
    return {
        name: Verdict(bool(pairs), beside.blocks_of(layer for layer, _ in pairs))
        for name, pairs in (("ww", said), ("ww_new", new))
    }


def torchlens_verdicts(beside: Beside, case: Case, window: Batch) -> dict[str, Verdict]:
    """Return what torchlens finds in one model, and where its trace parts from that of the healthy one."""
    debug = _peer("torchlens.debug")
    healthy, damaged = _traced(beside.healthy, window), _traced(case.loaded, window)
    findings = [f for f in debug.audit_trace(damaged).findings if f.severity != "info"]
    tensors = [f for f in debug.audit_params(case.loaded.model).findings if f.severity != "info"]
    where = [path for f in findings for label in f.ops for path in _modules(damaged, label)]
    where += [name for f in tensors for name in f.names]
    row = debug.first_divergence(healthy, damaged)
    parted = () if row is None else _modules(damaged if row["status"] == "only-b" else healthy, row["op"])
    return {
        "torchlens_audit": Verdict(bool(findings or tensors), beside.blocks_of(where)),
        "torchlens_compare": Verdict(row is not None, beside.blocks_of(parted)),
    }


def interpkit_diff(beside: Beside, case: Case) -> Verdict:
    interpkit = _peer("interpkit")
    with contextlib.redirect_stdout(io.StringIO()):
        models = [interpkit.load(loaded.model, tokenizer=loaded.tokenizer) for loaded in (beside.healthy, case.loaded)]
        ranked = interpkit.diff(*models, case.text[0])["results"]
    return Verdict(None, beside.blocks_of([ranked[0]["module"]]) if ranked else ())


def verdicts(beside: Beside, case: Case) -> tuple[float | None, dict[str, Verdict]]:
    """Return by how much the loss rose, and the verdict of every tool. A tool that fails gives none."""
    windows = windows_for(beside, case)
    before, counts = losses_of(beside, beside.healthy, windows)
    after, _ = losses_of(beside, case.loaded, windows)
    few = first_windows(windows, 1)[0]
    found = {"loss": Verdict(worse(before, after))}
    attempts: dict[tuple[str, ...], Callable[[], Any]] = {
        ("weights",): lambda: {"weights": weights(beside, case)},
        ("ww", "ww_new"): lambda: weightwatcher_verdicts(beside, case),
        ("torchlens_audit", "torchlens_compare"): lambda: torchlens_verdicts(beside, case, few),
        ("interpkit_diff",): lambda: {"interpkit_diff": interpkit_diff(beside, case)},
    }
    for tools, attempt in attempts.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found |= attempt()
        except Exception as error:  # whatever a peer raises, the other peers are asked all the same
            failed = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            found |= dict.fromkeys(tools, Verdict(None, (), failed))
    return raised(before, after, counts), found
