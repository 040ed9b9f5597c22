"""Models that do not fit where they run: spread over devices, memory and disk, or left on disk block by block.

    load("./large", device_map="auto")              as much as fits on accelerators, then in memory, the rest on disk
    load("./large", device_map="map.json")          as a file says, part by part
    load("./large", stream_weights=True)            every block on disk, the rest in memory

accelerate's hooks bring the weights of a module when it runs and take them away after it. From safetensors nothing is
copied: weights are read from where they are, also where they are cast on the way.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers.initialization import no_init_weights

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.classes import device_named
from attnscope.hf.loading.options import DISK, Loading, read_device_map, spread
from attnscope.hf.loading.sources import Source

# Whether a model fits into memory is checked before it is built. A copy on torch's meta device tells the number of
# parameters. For very deep configurations two small copies are made, with two blocks and with three, and the number is
# extrapolated: a million blocks would take hours even without numbers.

DEEP = 512  # layers that are still built one by one, which takes a second
MOST_MODULES = 100_000  # the largest mixtures of experts have 60,000; their copy takes a minute
BYTES_OF_A_LAYER = 30_000  # of Python objects, beside its numbers

_LAYERS = re.compile(r"(num_|n_)?(\w+_)?(layers?|depth|blocks?)")


class _TooManyModulesError(Exception):
    pass


def refuse_what_memory_cannot_hold(cls: Any, config: Any, precision: torch.dtype | None, name: str) -> None:
    """Refuse a model that is too large; if no meta copy can be made, let building fail with its own error."""
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
        smaller = "" if width == 2 else ", or pass `dtype='bfloat16'` if half of that is enough"
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
    """Return the free bytes of the machine or of its container, whichever is less."""
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
    """Subtract cached files from the memory in use: they are dropped when memory is needed."""
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
    """Return the settings that are very large numbers of layers, in nested configurations too."""
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
    """Return the model on the meta device: all parts and shapes, without numbers."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), no_init_weights():
        model: Any = cls._from_config(deepcopy(config))
        model.tie_weights()  # a table that is read at both ends counts once
    assert isinstance(model, nn.Module)
    return model


_SHARE_OF_MEMORY = 0.8  # what `auto` fills of what is free: activations and statistics need some too


def is_spread(loading: Loading) -> bool:
    return loading.device_map is not None or loading.stream_weights


def refuse_what_cannot_be_spread(found: Source, loading: Loading) -> None:
    """Refuse combinations of options, and weights that cannot be read in parts."""
    if loading.device_map is not None and loading.stream_weights:
        raise RefusalError(
            "`stream_weights=True` leaves every block on disk and `device_map=` says itself what lies there: give one."
        )
    if loading.device_map is not None and loading.device not in ("cpu", "auto"):
        raise RefusalError("`device_map=` says where everything goes: leave `device=` out, or give `device=` alone.")
    way = "`stream_weights=`" if loading.stream_weights else "`device_map=`"
    if find_spec("accelerate") is None:
        raise RefusalError(f"{way} needs the package accelerate: pip install 'attnscope[large]'.")
    if loading.random_init:
        raise RefusalError(f"{way} reads weights in parts, and random ones are made in memory: leave one of them out.")
    if found.form != "safetensors":
        form = {"gguf": "a GGUF file, which is unpacked as a whole", "pickle": "a pickle"}.get(found.form, found.form)
        raise RefusalError(f"{way} reads weights in parts, and {found.name} is {form}: save it as safetensors first.")
    if found.treated is not None:
        raise RefusalError(f"The attention of {found.name} was exchanged, which {way} does not bear: leave it out.")
    if loading.trust_remote_code and "auto_map" in found.config:
        raise RefusalError(f"{way} needs to know the parts of a model before it is built: not with code of its own.")


def spread_options(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    """Return the options for `from_pretrained`."""
    folder = tempfile.mkdtemp(prefix="attnscope-offload-")
    try:
        return {"offload_folder": folder, **_device_map(cls, config, precision, loading, name)}
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def keep_while_used(model: nn.Module, folder: str) -> None:
    """Remove the offload folder when the model is deleted."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)


def placed_where(model: nn.Module) -> dict[str, int]:
    """Return how many parameters are on each device, for the provenance."""
    count: Counter[str] = Counter()
    told: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    for name, parameter in model.named_parameters():
        fitting = [part for part in told if not part or name == part or name.startswith(f"{part}.")]
        count[str(told[max(fitting, key=len)]) if fitting else str(parameter.device)] += parameter.numel()
    return dict(sorted(count.items()))


def _device_map(cls: Any, config: Any, precision: torch.dtype | None, loading: Loading, name: str) -> dict[str, Any]:
    empty = skeleton(cls, config)
    if loading.stream_weights:
        place = str(device_named(loading.device))
        asked: dict[str, str | int] = {"": place, **dict.fromkeys(_blocks(empty), DISK)}
        if len(asked) == 1:
            raise RefusalError(f"{name} has no list of blocks for `stream_weights=True` to stream: leave it out.")
        _refuse_large_parts(empty, asked, precision, name)
        return {"device_map": spread(asked, _tree(empty), name)}
    assert loading.device_map is not None
    read = read_device_map(loading.device_map)
    if read is None:
        if torch.accelerator.is_available():
            return {"device_map": "auto"}
        return {"device_map": "auto", "max_memory": {"cpu": int(_SHARE_OF_MEMORY * memory_left())}}
    parts = spread(read, _tree(empty), name)
    return {"device_map": {part: _device(device) for part, device in parts.items()}}


def _device(asked: str | int) -> str | int:
    if asked == DISK:
        return DISK
    if isinstance(asked, int):
        kind = torch.accelerator.current_accelerator(check_available=True)
        return str(device_named(f"{'cuda' if kind is None else kind.type}:{asked}"))
    return str(device_named(asked))


def _tree(model: nn.Module) -> dict[str, list[str]]:
    """Map every module to its children, parameters and buffers."""
    return {
        path: [
            f"{path}.{name}".lstrip(".")
            for name, _ in (
                *module.named_children(),
                *module.named_parameters(recurse=False),
                *module.named_buffers(recurse=False),
            )
        ]
        for path, module in model.named_modules(remove_duplicate=False)
    }


def _blocks(model: nn.Module) -> Iterator[str]:
    """Return the entries of the outermost module lists."""
    lists = [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    for path in lists:
        if not any(path.startswith(f"{other}.") for other in lists):
            for name, block in model.get_submodule(path).named_children():
                if any(True for _ in block.parameters()):
                    yield f"{path}.{name}"


def _refuse_large_parts(model: nn.Module, asked: Mapping[str, Any], precision: torch.dtype | None, name: str) -> None:
    width = 2 if precision is None else precision.itemsize
    sizes = {path: sum(p.numel() for p in model.get_submodule(path).parameters()) for path in asked if path}
    rest = sum(parameter.numel() for parameter in model.parameters()) - sum(sizes.values())
    needed, free = width * (rest + max(sizes.values())), memory_left()
    if needed > free:
        raise RefusalError(
            f"The largest block of {name} and what is outside its blocks take {needed / 1e9:,.0f} GB together, and "
            f"{free / 1e9:,.0f} GB of memory are free: pass `dtype='bfloat16'`, or use a larger machine."
        )
