"""Whether this processor survives torch's products of narrow matrices; asked without importing torch.

Some virtual machines announce AMX and describe no tiles to go with it. oneDNN (3.12, in torch 2.13) believes the
announcement, and the first product in bfloat16 kills the whole program with an illegal instruction: no exception, no
record kept. A child process tries one first. The limit in the environment is read at torch's first
product, so it has to be there before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
LIMITED_TO = "AVX512_CORE_BF16"  # the largest set of instructions without tiles that every such processor has
_PRODUCT = (
    "import torch; torch.set_num_threads(1); x = torch.ones(64, 64); "
    "[x.to(t) @ x.to(t) for t in (torch.bfloat16, torch.float16)]"
)


def narrow_products_are_deadly() -> bool:
    """Never where no tiles are announced, nor where somebody has set the limit: then no child is asked."""
    return LIMIT not in os.environ and announces_tiles() and _a_child_dies()


def announces_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        return "amx_tile" in cpuinfo.read_text()
    except OSError:
        return False


@cache
def _a_child_dies() -> bool:
    """One child for one program: it imports torch, which takes seconds."""
    done = subprocess.run([sys.executable, "-c", _PRODUCT], stderr=subprocess.DEVNULL, check=False)
    return done.returncode == -signal.SIGILL
