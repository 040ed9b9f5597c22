"""Help at 80 columns and shell completion: complete descriptions, working examples, and no heavy imports."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from attnscope.cli.help import EXAMPLES, WHAT_IS_WRITTEN
from attnscope.cli.main import app
from tests.command import offline

GROUP: Any = typer.main.get_command(app)
COMMANDS = tuple(GROUP.commands)


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}, prog_name="attnscope")
    assert done.exit_code == 0, done.output
    return done.stdout


def in_one_line(text: str) -> str:
    """Join lines, which may be broken after a hyphen."""
    return "".join(text.split())


def test_the_list_of_commands_has_whole_descriptions_and_the_rule_of_what_is_written() -> None:
    shown = help_of()
    assert max(map(len, shown.splitlines())) <= 80
    for name in COMMANDS:
        assert in_one_line(f"{name} {GROUP.commands[name].help}") in in_one_line(shown)
    assert in_one_line(WHAT_IS_WRITTEN) in in_one_line(shown)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_whole_descriptions_and_two_examples(name: str) -> None:
    shown = help_of(name)
    assert max(map(len, shown.splitlines())) <= 80
    for parameter in GROUP.commands[name].params:
        assert parameter.help, parameter.name
        assert in_one_line(parameter.help) in in_one_line(shown)
    lines = shown.splitlines()
    assert [line.strip() for line in lines[lines.index("Examples:") + 1 :] if line] == list(EXAMPLES[name])
    assert len(set(EXAMPLES[name])) == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_named_in_capitals_without_types_and_defaults_are_given_once(name: str) -> None:
    shown = help_of(name)
    usage = shown.partition("\n\n")[0]
    assert "{" not in usage
    assert "......" not in usage
    assert "<list" not in shown
    for parameter in GROUP.commands[name].params:
        assert parameter.help.count("Default:") <= 1
        if parameter.param_type_name == "argument":
            assert parameter.metavar.isupper()
            assert parameter.get_help_record(GROUP.make_context("attnscope", [name]))[0] == parameter.metavar


def test_every_example_names_an_existing_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("example", [one for two in EXAMPLES.values() for one in two])
def test_examples_parse(example: str) -> None:
    program, name, *words = shlex.split(example)
    assert program == "attnscope"
    context = GROUP.commands[name].make_context(name, words)  # raises for an unknown option
    assert context.args == []


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from attnscope.cli.main import app\n"
        f"for words in {[[], *([name] for name in COMMANDS)]!r}:\n"
        "    try: app([*words, '--help'])\n    except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'altair', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Examples:") == len(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ("sc\x1b[31man",),
        ("scan", "pocket", "--samples", "\x1b[31m4\n"),
        ("scan", "pocket", "--fail-on", "\x1b]0;title\x07"),
        ("scan", "pocket", "--no-\x9b31m-such"),
        ("scan", "pocket", "corpus", "one too many\x1b[2J\u2028"),
        ("capacity", "-n", "\x1b[31m", "-k", "1"),
    ],
    ids=lambda words: repr(words[-1]),
)
def test_error_messages_contain_no_terminal_escapes(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Error: " in done.stderr
    last = done.stderr.rstrip("\n").rpartition("Error: ")[2]
    assert last.isprintable(), last
    assert "Traceback" not in done.stderr


def completed(words: str) -> list[str]:
    """Return the completions that bash gets after these words."""
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
