"""Scan models for a comparison, and compare their tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnscope.commands.compare.weights import (
    Home,
    TensorChange,
    WeightsChange,
    largest_first,
    tensor_change,
)
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.core.progress import AdvanceReading
from attnscope.data.read import EMBEDDED
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.anatomy.recording import Matrix
from attnscope.hf.anatomy.weights import ParametersInEffect
from attnscope.hf.loading.load import Loaded, Ready, Text, load
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet


@dataclass(frozen=True)
class ScanSettings:
    """The settings with which every model of a comparison is scanned."""

    corpus: Text | Ready | None
    tokenizer: Tokenizer | None
    measures: str | Iterable[str]
    loading: Loading
    sampling: Sampling
    keep_text: bool


def scanned(
    model: str | Path | nn.Module | Loaded, settings: ScanSettings, tell: AdvanceReading
) -> tuple[Survey, Loaded]:
    """Load and scan one model."""
    tell("loading", 0, 0, 0)
    loaded = load(model, loading=settings.loading, tokenizer=settings.tokenizer, cast=False)
    survey = scan(
        loaded,
        settings.corpus,
        measures=settings.measures,
        loading=settings.loading,
        sampling=settings.sampling,
        keep_text=settings.keep_text,
        progress=tell,
    )
    return survey, loaded


def settings_of(survey: Survey, settings: ScanSettings) -> ScanSettings:
    """Return the settings with which a survey was made, so that a model can be scanned to be compared with it.

    A corpus that the caller gives is kept. Refuse if the corpus of the survey cannot be read again.
    """
    origin = survey.provenance
    corpus: dict[str, Any] = origin.get("corpus") or {}
    text, name = settings.corpus, str(corpus.get("name"))
    if text is None and name != EMBEDDED:
        if "shards" in corpus or not Path(name).exists():
            raise RefusalError(
                f"The survey is of the corpus '{name:.80}', which is not here under that name: name it with `corpus=`."
            )
        text = name
    sampling = replace(
        settings.sampling,
        samples=corpus.get("sequences") or settings.sampling.samples,
        max_tokens=corpus.get("window"),
        seed=origin.get("seed", settings.sampling.seed),
        batch_size=origin.get("batch_size", settings.sampling.batch_size),
    )
    loading = replace(settings.loading, dtype=origin.get("dtype", settings.loading.dtype))
    measures = origin.get("measures") or settings.measures
    return replace(settings, corpus=text, measures=measures, sampling=sampling, loading=loading)


def weights_change(first: nn.Module, other: nn.Module, survey: int = 1) -> WeightsChange:
    """Return the tensors of two models that differ, largest difference first."""
    one, two = _tensors(first), _tensors(other)
    homes = _homes(first)
    found = [_absent(name, one[name], "missing", homes) for name in one if name not in two]
    found += [_absent(name, two[name], "extra", homes) for name in two if name not in one]
    shared = [name for name in one if name in two]
    rounded = 0
    for name in shared:
        if _rounds_to(one[name], two[name]):
            rounded += 1
            continue
        change = tensor_change(name, _numbers(one[name]), _numbers(two[name]), homes.get(name, Home()))
        if change is not None:
            found.append(change)
    return WeightsChange(len(shared), rounded, tuple(sorted(found, key=largest_first)), survey)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters with which a model computes, and its stored buffers. Tied tensors are listed once."""
    parameters = ParametersInEffect(model)
    stored = {name: model.get_buffer(name) for name, _ in model.named_buffers() if name in model.state_dict()}
    return {name: parameters[name] for name in parameters} | stored


def _rounds_to(one: Tensor, other: Tensor) -> bool:
    """Return whether two different tensors are equal once both are in bfloat16, or in float16."""
    if one.shape != other.shape or not one.is_floating_point() or torch.equal(one.float(), other.float()):
        return False
    for dtype in (torch.bfloat16, torch.float16):
        coarse = [each.to(dtype).float() for each in (one, other)]
        if torch.equal(coarse[0], coarse[1]) and any(
            torch.equal(c, e.float()) for c, e in zip(coarse, (one, other), strict=True)
        ):
            return True
    return False


def _numbers(tensor: Tensor) -> NDArray[np.float32]:
    whole: NDArray[np.float32] = tensor.detach().float().cpu().numpy()
    return whole


def _absent(name: str, tensor: Tensor, happened: Literal["missing", "extra"], homes: dict[str, Home]) -> TensorChange:
    home = homes.get(name, Home())
    return TensorChange(name, happened, tuple(tensor.shape), stack=home.stack, layer=home.layer, part=home.part)


def _homes(model: nn.Module) -> dict[str, Home]:
    """Return the block and part of every parameter; nothing if the model cannot be probed without its inputs."""
    try:
        with quiet():
            found = anatomy(model)
    except Exception:  # a model of any kind may fail on made-up inputs; names of tensors are enough then
        return {}
    homes: dict[str, Home] = {}
    for stack in found.stacks:
        for block in stack.blocks:
            attention = _attention_paths(found, stack.name, block.layer)
            for name, parameter in model.named_parameters():
                if name.startswith(f"{block.path}."):
                    inside = any(name.startswith(f"{path}.") for path in attention)
                    part = "attention" if inside else "norm" if parameter.ndim < 2 else "mlp"
                    homes[name] = Home(stack.name, block.layer, part)  # type: ignore[arg-type]
    for site in found.sites:
        for name, matrix in site.projections.matrices.items():
            if matrix.parameter in homes and not matrix.axes and matrix.first_row == 0:
                homes[matrix.parameter] = _with_heads(homes[matrix.parameter], name, matrix, site)
    return homes


def _attention_paths(found: Anatomy, stack: str, layer: int) -> set[str]:
    """Return the modules of the attention of one block: those that call it, and those that hold its projections."""
    sites = [site for site in found.sites if (site.stack, site.layer) == (stack, layer)]
    projections = (
        matrix.parameter.rpartition(".")[0] for site in sites for matrix in site.projections.matrices.values()
    )
    return {*(site.path for site in sites), *projections}


def _with_heads(home: Home, name: str, matrix: Matrix, site: Site) -> Home:
    """Return the home with the rows or columns of every head."""
    if home.heads:  # one tensor for queries, keys and values: its rows are several things
        return replace(home, heads_axis=None, heads=((0, 0),))
    if name == "output":
        bounds = tuple((head * site.value_dim, (head + 1) * site.value_dim) for head in range(site.heads))
        return replace(home, heads_axis=1 if matrix.out_in else 0, heads=bounds)
    columns = getattr(site.projections, name)
    assert isinstance(columns, Columns)
    bounds = tuple((start, start + columns.dim) for start in columns.starts)
    noun = "head" if len(bounds) == site.heads else "key head"
    return replace(home, heads_axis=0 if matrix.out_in else 1, heads=bounds, heads_noun=noun)
