"""`python -m attnscope` is the `attnscope` command."""

from __future__ import annotations

from attnscope.cli.main import run

if __name__ == "__main__":
    run()
