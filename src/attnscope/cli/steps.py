"""The bar of commands that count steps, under the name by which they import it: see `cli/progress.py`."""

from __future__ import annotations

from attnscope.cli.progress import showing as stepping

__all__ = ["stepping"]
