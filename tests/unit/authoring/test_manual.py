"""Every command's help is a page of a manual, and its examples are commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from resilience.cli import manual, resilience

SECTIONS = ("Usage: resilience", "Options:", "Examples:", "Exit status:", "Environment:")


def every() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and subcommand of ours."""
    with click.Context(resilience) as context:
        for name in resilience.list_commands(context):
            command = resilience.get_command(context, name)
            assert command is not None
            yield name, command
            for sub, below in getattr(command, "commands", {}).items():
                yield f"{name} {sub}", below


COMMANDS = dict(every())


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def page(path: str) -> str:
    parent = click.Context(resilience, info_name="resilience")
    if not path:
        return resilience.get_help(parent)
    words = path.split()
    for word in words[:-1]:
        parent = click.Context(COMMANDS[word], info_name=word, parent=parent)
    return COMMANDS[path].get_help(click.Context(COMMANDS[path], info_name=words[-1],
                                                 parent=parent))


def test_no_command_is_without_examples_and_none_is_left_over() -> None:
    assert set(COMMANDS) == set(manual.EXAMPLES)


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_sections_in_their_order(path: str) -> None:
    text = page(path)
    places = [text.find(section) for section in SECTIONS]
    assert -1 not in places and places == sorted(places), text
    described = text[text.index("\n"):places[1]].strip()
    assert described and described.split("\n")[0].strip()
    assert re.search(r"^ +0 +done", text, re.M)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_says_what_it_does(path: str) -> None:
    for param in COMMANDS[path].params:
        if isinstance(param, click.Option):
            assert param.help and param.help.rstrip(".)]").strip(), param.name
            assert param.help[0].isupper() or param.help[0] in "`-", param.help


@pytest.mark.parametrize(
    ("path", "example"), [(p, e) for p, examples in manual.EXAMPLES.items() for e in examples]
)
def test_examples_are_understood(path: str, example: str) -> None:
    words = shlex.split(example.partition(" > ")[0])
    assert example.replace(" ", "") in re.sub(r"\s|\\", "", page(path))
    assert words[0] == "resilience"
    command: click.Command = resilience
    context = click.Context(resilience, info_name="resilience")
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, rest[0]
        command, rest = found, rest[1:]
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=command.name, parent=context)
    made = command.make_context(command.name, list(rest), parent=context)
    assert made.params
    assert example.startswith(f"resilience {path}")


def test_engine_commands_name_what_finds_the_engine() -> None:
    assert "RESILIENCE_SOCKET" in page("get") and "XDG_STATE_HOME" in page("get")
    assert "RESILIENCE_SOCKET" not in page("check")


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_no_line_is_wider_than_a_terminal_and_nothing_is_cut(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page(path)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "..." not in re.sub(r"\w+\.\.\.|\]\.\.\.", "", text), text


@pytest.mark.parametrize("path", COMMANDS)
def test_every_exit_code_that_the_text_names_is_in_the_table(path: str) -> None:
    text = page(path)
    words, _, table = text.partition("Exit status:")
    named = set(re.findall(r"[Ee]xit (?:code|with) (\d+)|(?<=; )(\d+): ", " ".join(words.split())))
    codes = set(re.findall(r"^ +(\d+) ", table.partition("Environment:")[0], re.M))
    assert {code for pair in named for code in pair if code} <= codes


def test_the_program_has_its_codes_and_variables_in_one_place() -> None:
    top = page("")
    for path in COMMANDS:
        for line in page(path).partition("Exit status:")[2].splitlines():
            code = re.match(r" +(\d+|[A-Z_]{4,}) ", line)
            assert code is None or re.search(rf"^ +{code[1]} ", top, re.M), (path, line)


@pytest.mark.parametrize("path", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_gets_narrow_lines(
    monkeypatch: pytest.MonkeyPatch, columns: int, path: str
) -> None:
    """What may be longer is a word, a path, an option's name, and a line to copy."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = CliRunner().invoke(resilience, [*path.split(), "--help"])
    assert shown.exit_code == 0
    prose = shown.output.partition("Examples:")
    lines = [*prose[0].splitlines(), *prose[2].partition("Exit status:")[2].splitlines()]
    unbroken = re.compile(r" +\S+|  -\S+( --\S+)?( \S+)?|  (record|bash|zsh|fish) .*")
    assert [x for x in lines if len(x) > columns and not unbroken.fullmatch(x)] == []
