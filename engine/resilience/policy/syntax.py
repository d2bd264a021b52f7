"""What a YAML parser's complaint means to the person who wrote the file."""

from __future__ import annotations

import re
from typing import Any

from resilience.model import Finding
from resilience.policy.encoding import position
from resilience.policy.words import quoted

DEPTH_MAX = 64

_CONFLICT = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |\r?$)|^={7}\r?$", re.MULTILINE)
_OTHER_TEMPLATE = re.compile(
    r"(?:^[ \t]*|[:-][ \t]+)(?:\{%.*%\}|<%.*%>|\{#.*#\}|\$\{\w+\})", re.MULTILINE
)
_HELM_LINE = re.compile(r"^[ \t]*\{\{|:[ \t]+\{\{|-[ \t]+\{\{", re.MULTILINE)
_BLOCK = re.compile(r"(?P<blanks> *(?:- +)?)(?P<key>[\"']?\w+[\"']? *: *[|>][-+0-9]*) *(?:#.*)?$")
_EQUALS = re.compile(r"^\s*[A-Za-z_]+\s*=\s*[\[{\"']")
_EXPR_LINE = re.compile(r"^\s*(?:-\s+)?[\"']?(?:expr|trigger_if)[\"']?\s*:\s*[^\s'\"|>]")
_RULE_1X = re.compile(r"ALERT\s+\S+\s+IF\s")


def before_parsing(file: str, text: str) -> Finding | None:
    """Return what is better said before a parser stumbles over it."""
    conflict = _CONFLICT.search(text)
    if conflict is None:
        return None
    line, column = position(text[: conflict.start()])
    return Finding(file, line, column, "error", "git-conflict", "git conflict marker",
                   "resolve the conflict, then check again")


def looks_like_template(text: str, index: int) -> bool:
    """Return whether `{{` begins just before or at `index`."""
    return "{{" in text[max(0, index - 2) : index + 2]


def is_prometheus_1_rule(text: str) -> bool:
    """Return whether a scalar document is an alerting rule of Prometheus 1."""
    return _RULE_1X.match(text) is not None


def explain(
    file: str, text: str, error: Any, opened: tuple[int, int, int] | None = None
) -> Finding:
    """Turn a YAML error that has a place into a finding.

    `opened` is (index, line, column) of the innermost collection that is open.
    """
    mark = _best_mark(text, error)
    index, line, column = (mark.index, mark.line + 1, mark.column + 1) if mark else (0, 1, 1)
    if opened and index >= len(text.rstrip()) and "flow" in (error.context or ""):
        index, line, column = opened
    template = _template_before(text, index)
    if template is not None:
        at_line, at_column = position(text[:template])
        mark = text[template : template + 2]
        return Finding(file, at_line, at_column, "error", "yaml-template",
                       f"this looks like a template: `{mark}` outside quotes",
                       "render the template first, or quote the value")
    source = _line_at(text, index)
    if "block scalar" in (error.context or "") and _EXPR_LINE.match(source):
        column = source.index(":") + 2
    if "nesting depth" in _plain(error.problem):      # the scanner's own limit, far above ours
        return Finding(file, line, column, "error", "too-deep",
                       f"more than {DEPTH_MAX} levels of nesting", None)
    above = _block_above(text, index)
    message, suggestion = _meaning(error, source, text[index : index + 1], above)
    return Finding(file, line, column, "error", "yaml-syntax", message, suggestion)


def _best_mark(text: str, error: Any) -> Any:
    """Return where the mistake is: what was never closed began earlier than the parser noticed."""
    problem, context = error.problem_mark, error.context_mark
    if problem is None or context is None:
        return problem or context
    at_end = problem.index >= len(text.rstrip())
    if "simple key" in (error.context or ""):
        return context
    return context if at_end and "quoted" in (error.context or "") else problem


def _template_before(text: str, index: int) -> int | None:
    """Return where the last unquoted `{{`, `{%`, `{#`, `<%` or `${` at the start of a line or of a
    value stands, near the error."""
    end = text.find("\n", index)
    window = text[: end if end >= 0 else len(text)]
    last = None
    for match in _HELM_LINE.finditer(window):
        last = match.start() + match.group().index("{{")
    for match in _OTHER_TEMPLATE.finditer(window):
        begin = re.search(r"\{[%#]|<%|\$\{", match.group())
        last = max(last or 0, match.start() + (begin.start() if begin else 0))
    return last


def _line_at(text: str, index: int) -> str:
    start = max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1
    end = text.find("\n", index)
    return text[start : end if end >= 0 else len(text)][:2000]


def _block_above(text: str, index: int) -> str | None:
    """Return the `key: |` of the line before, if the line at `index` should be its text."""
    lines = text[: index + 1][-4000:].splitlines()
    before = [line for line in lines[:-1] if line.strip()]
    opened = _BLOCK.match(before[-1]) if before else None
    if opened is None or not lines[-1].strip():
        return None
    depth = len(lines[-1]) - len(lines[-1].lstrip(" "))
    return opened["key"].strip() if depth <= len(opened["blanks"]) else None


def _meaning(
    error: Any, source: str, character: str, above: str | None
) -> tuple[str, str | None]:
    """Return the message and what to do, from the parser's problem and the line it is in; `above`
    is the `key: |` over a line that should be deeper."""
    problem = _plain(error.problem)
    if "incompatible YAML" in problem:
        return "a `%YAML` line of another version than 1.1 or 1.2", "remove the line"
    if character == "\t" or (source[: len(source) - len(source.lstrip())].count("\t")):
        return "tab in the indentation; YAML indents with blanks", "replace the tab by blanks"
    if _EQUALS.match(source):
        return f"`=` where YAML has `:` in {quoted(source.strip())}", "write `key: value`"
    if _EXPR_LINE.match(source) and "{" in source:
        return (f"{problem}; an expression with braces must be quoted",
                "put the expression between single quotes")
    if "mapping values are not allowed" in problem:
        return ("a second `: ` in one value", "quote the value, or indent the next key")
    if character in ("@", "`", "%") and "directive" not in problem:
        return f"a value cannot start with {quoted(character)}", "quote the value"
    context = _plain(error.context or "")
    special = next((said for sign, said in _SAID if sign in f"{problem} {context}"), None)
    if special is not None:
        return special
    if above is not None:
        return (f"the text after {quoted(above)} is not indented deeper than its key",
                "put blanks before each of its lines")
    if "could not find expected ':'" in problem and (bad := _BAD_COLON.match(source)):
        return "a key without `: ` after it", f"write `{bad[1]}: ` with a blank after the colon"
    return (f"{problem} {context}".strip() or "not YAML"), _hint(problem)


_BAD_COLON = re.compile(r"\s*(?:-\s+)?[\"']?([A-Za-z_]\w*)[\"']?(?:：|:(?=[^ \t]))")
# (a part of what the parser says, what that means and what to do)
_SAID = (
    ("expected `document start`", ("another document begins here without `---`",
                                   "write `---` on a line of its own before it")),
    ("duplicate %YAML directive", ("a second `%YAML` line", "remove it")),
    ("expected comment or line break while scanning a block scalar",
     ("`>` and `|` begin a text on the next lines", "quote the value")),
    ("block sequence entries are not allowed", ("`- ` begins a list inside a line",
                                                "begin the list on the next line, or quote it")),
    ("mapping keys are not allowed", ("`?` begins a key inside a line", "quote the value")),
    ("invalid Unicode character escape", ("an escape that is half of a character (a surrogate)",
                                          "write the character itself, or `\\UXXXXXXXX`")),
)


def _plain(problem: str) -> str:
    return " ".join(problem.split()).rstrip(".").replace("<", "`").replace(">", "`")


def _hint(problem: str) -> str | None:
    if "expected" in problem or "could not find" in problem:
        return "look at the indentation, quotes and brackets here and in the lines above"
    return None


def unplaced(file: str, error: Exception) -> Finding:
    """Turn a YAML error without a place into a finding."""
    text = " ".join(str(error).split())[:200]
    return Finding(file, 1, 1, "error", "yaml-syntax", f"not YAML: {text}", None)
