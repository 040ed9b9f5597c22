"""A shell that asks what could come next is told the commands and their options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.command import offline


def completed(words: str) -> list[str]:
    """What bash is offered behind the last of these words."""
    asked = {"_ATTNSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = "import sys; sys.argv[0] = 'attnscope'; from attnscope.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=offline() | asked, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [("attnscope col", ["collapse"]), ("attnscope scan --stream", ["--stream-weights"]), ("attnscope nothing", [])],
)
def test_commands_and_options_are_offered(words: str, offered: list[str]) -> None:
    assert completed(words) == offered
