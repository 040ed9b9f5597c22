"""Check whether matrix products in bfloat16 or float16 crash on this processor, without importing torch.

Some virtual machines report AMX support but no AMX tiles. oneDNN 3.12 (in torch 2.13) trusts the report, and the first
product in bfloat16 kills the process with an illegal instruction that Python cannot catch. So a child process tries a
product first. torch reads the environment variable `LIMIT` at its first product, so it must be set before that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
LIMITED_TO = "AVX512_CORE_BF16"  # the largest instruction set without tiles that every such processor has
_PRODUCT = (
    "import torch; torch.set_num_threads(1); x = torch.ones(64, 64); "
    "[x.to(t) @ x.to(t) for t in (torch.bfloat16, torch.float16)]"
)


def half_precision_crashes() -> bool:
    """Return whether a product crashes. Without AMX, or if `LIMIT` is already set, return False and start no child."""
    return LIMIT not in os.environ and announces_amx() and _child_crashes()


def announces_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        return "amx_tile" in cpuinfo.read_text()
    except OSError:
        return False


@cache
def _child_crashes() -> bool:
    """Run the product in a child process. Cached, because the child imports torch, which takes seconds."""
    child = subprocess.run([sys.executable, "-c", _PRODUCT], stderr=subprocess.DEVNULL, check=False)
    return child.returncode == -signal.SIGILL
