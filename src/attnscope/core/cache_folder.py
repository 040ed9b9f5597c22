"""The folder in which attnscope keeps what it would otherwise measure again: widths of heads, for `capacity`.

It is `attnscope` in XDG_CACHE_HOME, or in ~/.cache. Nothing in it is needed: `attnscope doctor --clear-cache` empties
it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "attnscope"


def cache_size() -> int:
    """In bytes; 0 where there is none."""
    return sum(path.stat().st_size for path in cache_folder().rglob("*") if path.is_file())


def clear_cache() -> int:
    """How many bytes went away. A link in its place is taken away and not followed."""
    folder, size = cache_folder(), cache_size()
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    return size
