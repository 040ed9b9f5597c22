"""`attnscope` as a person types it, without a process of its own: torch is imported once, and not for every command.

Everything between the words and the exit code is the program's own `run`. What is about processes (signals, a terminal,
a closed pipe, what is imported and what is not) is tested with real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import chdir, nullcontext
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from attnscope.cli.main import run


def attnscope(
    *words: str | Path, stdin: str | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What came of the command, in the words of `subprocess`."""
    argv = ["attnscope", *map(str, words)]
    environment = {"HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
    code = 0
    with (
        CliRunner().isolation(input=stdin, env=environment) as (out, err, *_),
        patch.object(sys, "argv", argv),
        nullcontext() if cwd is None else chdir(cwd),
    ):
        try:
            run()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        said = [stream.getvalue().decode().replace("\r\n", "\n") for stream in (out, err)]
    return subprocess.CompletedProcess(argv, code, *said)


def offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
