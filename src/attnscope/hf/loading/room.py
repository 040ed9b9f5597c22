"""Whether a model fits into memory, known before it is built.

A copy without numbers (on torch's meta device) says how many parameters there are, for any family. A configuration of a
million layers would take hours even so: of what is very deep two small copies are made, with two layers and with three,
and the rest is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers.initialization import no_init_weights

from attnscope.core.errors import RefusalError

DEEP = 512  # layers that are still built one by one, which takes a second
MOST_MODULES = 100_000  # the largest mixtures of experts have 60,000; their copy takes a minute
BYTES_OF_A_LAYER = 30_000  # of Python objects, beside its numbers

_LAYERS = re.compile(r"(num_|n_)?(\w+_)?(layers?|depth|blocks?)")


class _TooManyModulesError(Exception):
    pass


def refuse_what_memory_cannot_hold(cls: Any, config: Any, precision: torch.dtype | None, name: str) -> None:
    """`cls` is the class that will be built from `config`. Where a copy cannot be made, building says why itself."""
    layers = sum(int(getattr(owner, key)) for owner, key in _deep(config))
    try:
        parameters = _parameters(cls, config)
    except _TooManyModulesError:
        raise RefusalError(
            f"The configuration of {name} asks for more than {MOST_MODULES:,} modules, which would take hours to "
            "build: write smaller sizes into it."
        ) from None
    except Exception:
        if layers < MOST_MODULES:
            return
        raise RefusalError(
            f"The configuration of {name} asks for {layers:,} layers, which would take hours to build: write fewer "
            "into it."
        ) from None
    width = 2 if precision is None else precision.itemsize
    needed, free = parameters * width + layers * BYTES_OF_A_LAYER, memory_left()
    if needed > free:
        asked = f" in {layers:,} layers" if layers else ""
        smaller = "" if width == 2 else ", or pass --dtype bfloat16 if half of that is enough"
        raise RefusalError(
            f"{name} has {parameters:,} parameters{asked}, which take {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB "
            f"of memory are free: give a smaller model{smaller}."
        )
    if layers > MOST_MODULES:
        raise RefusalError(
            f"The configuration of {name} asks for {layers:,} layers, which would take hours to build: write fewer "
            "into it."
        )


def memory_left() -> int:
    """Bytes that can still be had: what the machine has free, or what is left of a container's share of it."""
    left = [_available()]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left.append(int(Path(limit).read_text()) - int(Path(used).read_text()) + _reclaimable())
        except (OSError, ValueError):  # no such group, or one without a limit ("max")
            continue
    return max(0, min(left))


def _available() -> int:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * sum(int(lines[key].split()[0]) for key in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError):  # not Linux: nobody knows, and the allocator has to say it
        return 1 << 62


def _reclaimable() -> int:
    """Files that a container keeps in memory count as used, and go when something else needs the room."""
    try:
        lines = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return int(lines["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def _parameters(cls: Any, config: Any) -> int:
    deep = [(owner, key, int(getattr(owner, key))) for owner, key in _deep(config)]
    if not deep:
        return _count(cls, config)
    shallow = deepcopy(config)
    places = list(_deep(shallow))
    for owner, key in places:
        setattr(owner, key, 2)
    total = base = _count(cls, shallow)
    for (owner, key), (_, _, layers) in zip(places, deep, strict=True):
        setattr(owner, key, 3)
        total += (_count(cls, shallow) - base) * (layers - 2)
        setattr(owner, key, 2)
    return total


def _deep(config: Any) -> Iterator[tuple[Any, str]]:
    """The settings that are very large numbers of layers, in a configuration and those inside it."""
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from _deep(value)
        elif isinstance(value, int) and value > DEEP and _LAYERS.fullmatch(key):
            yield config, key


def _count(cls: Any, config: Any) -> int:
    made = 0

    def counted(*_: Any) -> None:
        nonlocal made
        made += 1
        if made > MOST_MODULES:
            raise _TooManyModulesError

    watch = register_module_module_registration_hook(counted)
    try:
        model = skeleton(cls, config)
    finally:
        watch.remove()
    return sum(int(parameter.numel()) for parameter in model.parameters())


def skeleton(cls: Any, config: Any) -> nn.Module:
    """The model without numbers: every part of it, with shapes."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
        model: Any = cls._from_config(deepcopy(config))
        model.tie_weights()  # a table that is read at both ends counts once
    assert isinstance(model, nn.Module)
    return model
