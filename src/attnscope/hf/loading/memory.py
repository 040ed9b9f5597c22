"""Memory: how much is free, how long a text fits into it, and refusals when it runs out.

with refusing_when_memory_runs_out("Paths of 900 tokens do not fit into memory: give a text of 450 tokens."):
    ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from attnscope.core.errors import RefusalError


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out. Allocators other than CUDA's raise a plain RuntimeError."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(w in str(error).lower() for w in words)


@contextmanager
def refusing_when_memory_runs_out(sentence: str) -> Iterator[None]:
    """Refuse with this sentence if memory runs out. Other errors pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise RefusalError(sentence) from error


@dataclass(frozen=True)
class TextSizes:
    """The sizes that determine the memory of work on a text. Subclasses add sizes, and define `bytes` from them.

    `bytes` grows with `tokens`.
    """

    tokens: int

    @property
    def bytes(self) -> int:
        raise NotImplementedError

    def tokens_that_fit(self, memory: int) -> int:
        """Return the longest beginning of the text for that many bytes; 0 if not even one token fits."""
        low, high = 0, self.tokens
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if replace(self, tokens=middle).bytes <= memory else (low, middle - 1)
        return low


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
    except (OSError, ValueError, KeyError):  # not Linux: unknown, so leave it to the allocator
        return 1 << 62


def _reclaimable() -> int:
    """Return the bytes of cached files in the container, which are dropped when memory is needed."""
    try:
        lines = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        return int(lines["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def widest_layer(block: nn.Module) -> int:
    """Return the sum of the two sides of a block's widest matrix: usually the widths of its MLP and of the stream.

    Tensors of experts have more axes; the last two count.
    """
    shapes = [tuple(parameter.shape[-2:]) for parameter in block.parameters() if parameter.ndim >= 2]
    return int(sum(max(shapes, key=max, default=(1, 1))))
