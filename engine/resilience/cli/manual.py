"""The sections below the options in every command's help: examples, exit status, environment.

Plain tuples, because this is read at every start. A test parses each example with the command's
own parser, and asks for an entry for each command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import click

WIDTH_MAX = 80
_WIDTH_MIN = 30
_COLUMN_MIN = 20
_INDENT = 4
_UNCUT = 10_000
EXAMPLES: dict[str, tuple[str, ...]] = {
    "check": (
        "resilience check rules/",
        "resilience check rules/ --strict -o github",
        "resilience check rules/ --target vllm@0.11",
        "resilience check rules/kv-pressure.yaml --server http://127.0.0.1:8000",
    ),
    "test": (
        "resilience test rules/",
        "resilience test rules/ --coverage --min-coverage 90 --junit out/policies.xml",
        "resilience test rules/kv-pressure.test.yaml --verbose",
    ),
    "plan": (
        "resilience plan rules/",
        "resilience plan rules/ --against origin/main --recording week.parquet --html plan.html",
        "resilience plan rules/ --detailed-exitcode -o json",
    ),
    "apply": (
        "resilience apply rules/",
        "resilience apply rules/ --dry-run --recording week.parquet --html report.html",
        "resilience apply rules/ --dry-run --recording week.parquet "
        "--set queue-growth.trigger.for=30s,1m,2m",
    ),
    "promote": ("resilience promote",),
    "discard": ("resilience discard",),
    "serve": (
        "resilience serve rules/ -- Qwen/Qwen3-0.6B --port 8000",
        "resilience serve rules/ --attach http://127.0.0.1:8000 --token-file core.token",
        "resilience serve rules/ --prometheus http://prometheus:9090 -- MODEL",
    ),
    "record": (
        "resilience record live rules/ --out now.parquet --for 10m",
        "resilience record import week.om.txt --out week.parquet",
    ),
    "record live": (
        "resilience record live rules/ --out now.parquet --for 10m",
        "resilience record live rules/ --prometheus http://prometheus:9090 --start -7d "
        "--out week.parquet",
    ),
    "record import": ("resilience record import week.om.txt --out week.parquet",),
    "query": (
        "resilience query 'vllm:num_requests_waiting'",
        "resilience query 'rate(vllm:prompt_tokens_total[1m])' --recording week.parquet --step 1m",
    ),
    "get": (
        "resilience get policies",
        "resilience get decisions --since 1h --policy kv-pressure -o json",
    ),
    "explain": ("resilience explain 0f3c9a7be21d4c55",),
    "replay": ("resilience replay 0f3c9a7be21d4c55",),
    "history": ("resilience history --limit 10",),
    "rollback": ("resilience rollback", "resilience rollback --to sha256:2f61c0a7e9b4"),
    "pause": ("resilience pause kv-pressure --for 1h --reason 'load test'",),
    "resume": (
        "resilience resume kv-pressure",
        "resilience resume --attach http://127.0.0.1:8000 --token-file core.token",
    ),
    "release": ("resilience release --attach http://127.0.0.1:8000 --token-file core.token",),
    "udf": (
        "resilience udf check udfs/",
        "resilience udf run udfs/limit.py limit --context ctx.json",
    ),
    "udf check": ("resilience udf check udfs/",),
    "udf run": ("resilience udf run udfs/limit.py limit --context ctx.json",),
    "init": ("resilience init resilience/",),
    "import": ("resilience import alerts.yaml > rules/imported.yaml",),
    "schema": ("resilience schema policy > policy.json", "resilience schema --write schemas/"),
    "doctor": (
        "resilience doctor",
        "resilience doctor --attach http://127.0.0.1:8000 --prometheus http://prometheus:9090",
    ),
    "completion": ("resilience completion bash > ~/.local/share/bash-completion/completions/"
                   "resilience",),
}
_USUAL = (("0", "done"), ("1", "failed, with one line that says why"), ("2", "wrong usage"))
_FOUND = ("3", "errors found in policies, UDFs or configuration")
_MORE: dict[str, tuple[tuple[str, str], ...]] = {
    "check": (("3", "errors found, with --strict also warnings"),),
    "test": (_FOUND, ("4", "a test failed, could not be run, or there is none")),
    "plan": (_FOUND, ("5", "there is a difference, with --detailed-exitcode")),
    "apply": (("1", "failed; or the decisions of a dry run differ from the recorded ones"), _FOUND),
    "serve": (_FOUND,), "record": (_FOUND,), "record live": (_FOUND,),
    "record import": (_FOUND,), "udf": (_FOUND,), "udf check": (_FOUND,), "replay": (_FOUND,),
    "query": (_FOUND,), "import": (("3", "an alert could not be imported"),),
    "promote": (_FOUND,), "rollback": (_FOUND,),
}
OF_ALL = (
    ("0", "done"),
    ("1", "failed, with one line that says why"),
    ("2", "wrong usage"),
    ("3", "errors found in policies, UDFs or configuration"),
    ("4", "a policy test failed"),
    ("5", "`plan --detailed-exitcode` found a difference"),
    ("130", "interrupted"),
)
_ALWAYS = (
    ("NO_COLOR", "no colours, also on a terminal"),
    ("RESILIENCE_DEBUG", "show the traceback of an error, as --debug"),
)
BEGIN = (
    "resilience init resilience/",
    "resilience check rules/",
    "resilience test rules/",
    "resilience serve rules/ -- Qwen/Qwen3-0.6B --port 8000",
)
_OF_OPTIONS = {
    "socket": ("RESILIENCE_SOCKET", "control socket of the engine"),
    "state": ("RESILIENCE_STATE",
              "state folder; else $XDG_STATE_HOME/resilience, else ~/.local/state/resilience"),
}


class Formatter(click.HelpFormatter):
    """A formatter for terminals narrower than click's 50 columns, too."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        import shutil

        widest = max_width or WIDTH_MAX
        columns = shutil.get_terminal_size((WIDTH_MAX, 24)).columns
        super().__init__(indent_increment, width or max(min(columns, widest) - 2, _WIDTH_MIN))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write two columns; the first takes at most two fifths of the line."""
        super().write_dl(rows, min(col_max, self.width * 2 // 5), col_spacing)


class Context(click.Context):
    """A context that writes its help with our formatter."""

    formatter_class = Formatter


class Group(click.Group):
    """A group whose list of commands wraps long summaries, where click cuts them."""

    context_class = Context

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line, or some, for each command: the first sentence of its help."""
        names = self.list_commands(ctx)
        loaded = [(name, self.get_command(ctx, name)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_UNCUT))
                                for name, command in loaded if command and not command.hidden])


def attach(path: str, command: click.Command, columns: int | None = None) -> None:
    """Give `command` and those below it their sections; a plug-in's command keeps its own.

    `columns`: how wide the terminal is; None: ask. No line is wider than 80, however wide it is.
    """
    if path not in EXAMPLES:
        return
    command.context_class = Context
    command.epilog = _sections(
        EXAMPLES[path], _codes(path), (*_named(command), *_ALWAYS), columns
    )
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            attach(f"{path} {name}", below, columns)


def _sections(
    examples: Sequence[str], codes: Sequence[tuple[str, str]],
    environment: Sequence[tuple[str, str]], columns: int | None,
) -> str:
    """Return the sections as click takes them, in lines that fit as far as they can be broken."""
    import shutil

    wanted = columns or shutil.get_terminal_size((WIDTH_MAX, 24)).columns
    width = max(min(wanted, WIDTH_MAX) - _INDENT, _WIDTH_MIN)
    return "\n\n".join(
        f"\b\n{title}:\n" + "\n".join(f"  {line}" for line in lines)
        for title, lines in (
            ("Examples", [line for e in examples for line in _broken(e, width)]),
            ("Exit status", _aligned(codes, width)),
            ("Environment", _aligned(environment, width)),
        )
    )


def _broken(example: str, width: int) -> list[str]:
    """Break a command before an option, as a shell reads it: with a backslash."""
    lines = [""]
    for part in re.split(r" (?=--|> )", example):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append("  " + part)
        else:
            lines[-1] += (" " if lines[-1] else "") + part
    return lines


def _codes(path: str) -> tuple[tuple[str, str], ...]:
    """Return the usual codes, those that mean more here in their place, and the command's own."""
    more = _MORE.get(path, ())
    codes = {**dict(_USUAL), **dict(more), "130": "interrupted"}
    return tuple(sorted(codes.items(), key=lambda code: int(code[0])))


def _named(command: click.Command) -> list[tuple[str, str]]:
    names = {param.name for param in command.params}
    return [line for option, line in _OF_OPTIONS.items() if option in names]


def _aligned(lines: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and what they mean in two columns; what is too long goes on below, and where
    there is no room for two columns all of it does."""
    import textwrap

    first = max(len(name) for name, _ in lines) + 2
    if width - first < _COLUMN_MIN:
        return [part for name, text in lines
                for part in (name, *(f"    {w}" for w in textwrap.wrap(text, width - 4)))]
    found: list[str] = []
    for name, text in lines:
        wrapped = textwrap.wrap(text, width - first)
        found += [f"{name if not i else '':<{first}}{part}" for i, part in enumerate(wrapped)]
    return found


def of_all(columns: int | None = None) -> str:
    """Return the sections of the whole program."""
    return _sections(BEGIN, OF_ALL, (*_OF_OPTIONS.values(), *_ALWAYS), columns)
