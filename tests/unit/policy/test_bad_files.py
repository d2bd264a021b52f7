"""Files as people write them by mistake: each gives what it should, at its line, and no more.

Each row is a whole file: its name, its bytes, and the (code, line) of what is said; none: accepted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
HEAD = "apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: a}\n"
TRIGGER = "  trigger: {expr: 'up == 0', on_no_data: hold}\n"
ACTIONS = "  actions: [{type: throttle, max_concurrency: 8}]\n"
WHOLE = f"{HEAD}spec:\n{TRIGGER}{ACTIONS}"


def spec(*lines: str) -> str:
    return f"{HEAD}spec:\n" + "".join(f"  {line}\n" for line in lines)


def action(text: str) -> str:
    return f"{HEAD}spec:\n{TRIGGER}  actions: [{text}]\n"


def trigger(text: str) -> str:
    return f"{HEAD}spec:\n  trigger: {{expr: 'up == 0', on_no_data: hold, {text}}}\n{ACTIONS}"


def annotated(text: str) -> str:
    name = "apiVersion: resilience/v1\nkind: Policy\nmetadata:\n  name: a\n"
    return f"{name}  annotations: {{summary: {text}}}\nspec:\n{TRIGGER}{ACTIONS}"


def throttle(value: str) -> str:
    return action(f"{{type: throttle, max_concurrency: {value}}}")


Row = tuple[str, str | bytes, list[tuple[str, int]]]
FILES: list[Row] = [
    # bytes and encodings
    ("utf16be", b"\xfe\xff" + WHOLE.encode("utf-16-be"), [("encoding", 1)]),
    ("utf16le without a mark", WHOLE.encode("utf-16-le"), [("encoding", 1)]),
    ("utf32", WHOLE.encode("utf-32"), [("encoding", 1)]),
    ("utf32le without a mark", WHOLE.encode("utf-32-le"), [("encoding", 1)]),
    ("utf32be without a mark", WHOLE.encode("utf-32-be"), [("encoding", 1)]),
    ("two marks", f"\ufeff\ufeff{WHOLE}", [("control-character", 1)]),
    ("surrogate as an escape", annotated('"\\ud83d\\ude00"'), [("yaml-syntax", 5)]),
    *[(f"escape {escape}", annotated(f'"a{escape}b"'), [("control-character", 5)])
      for escape in ("\\0", "\\e[31m", "\\r", "\\u202e", "\\u2028", "\\ufeff", "\\x85")],
    ("escapes that are text", annotated('"a\\tb\\nc\\u00e9\\U0001f525"'), []),
    ("carriage returns only", WHOLE.replace("\n", "\r"), []),
    ("latin1", f"{WHOLE}# grün\n".encode("latin-1"), [("encoding", 7)]),
    ("cp1252 quotes", f"{WHOLE}# \x93a\x94\n".encode("latin-1"), [("encoding", 7)]),
    ("overlong utf8", WHOLE.encode() + b"# \xc0\xaf\n", [("encoding", 7)]),
    ("surrogate in utf8", WHOLE.encode() + b"# \xed\xa0\x80\n", [("encoding", 7)]),
    ("utf8 mark", b"\xef\xbb\xbf" + WHOLE.encode(), []),
    ("mark in the middle", f"{WHOLE}---\n\ufeff{WHOLE}", [("control-character", 8)]),
    ("nul at the end", WHOLE.encode() + b"\0", [("control-character", 7)]),
    ("gzip", b"\x1f\x8b\x08\0\0\0\0\0", [("encoding", 1)]),
    ("crlf", WHOLE.replace("\n", "\r\n"), []),
    ("mixed line ends", WHOLE.replace("\n", "\r\n", 2), []),
    ("vertical tab", f"{WHOLE}# \x0b\n", [("control-character", 7)]),
    ("next line", f"{WHOLE}# \x85\n", [("control-character", 7)]),
    ("form feed", f"\x0c{WHOLE}", [("control-character", 1)]),
    # a text that begins in its key's own column; a variable of a shell in braces
    ("block not indented", spec("trigger:", "  expr: |", "  up == 0", "  on_no_data: hold"),
     [("yaml-syntax", 7)]),
    ("variable in braces", throttle("${LIMIT}"), [("yaml-template", 6)]),
    # what is not ours is said once
    ("custodian", "policies:\n  - name: a\n    resource: ec2\n", [("not-a-policy", 1)]),
    ("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
     [("not-a-policy", 1)]),
    ("for in the short form",
     "on_alert: a\ntrigger_if: up == 0\nfor: 30s\n"
     "actions: [{type: throttle, max_concurrency: 8}]\n", [("unknown-field", 3)]),
    # nothing there
    ("empty", "", [("no-policy", 1)]),
    ("blank lines", "\n\n   \n", [("no-policy", 1)]),
    ("null document", "null\n", [("no-policy", 1)]),
    ("tilde", "~\n", [("no-policy", 1)]),
    ("number", "42\n", [("type", 1)]),
    ("true", "true\n", [("type", 1)]),
    ("end mark only", "...\n", [("yaml-syntax", 1)]),
    # YAML
    ("tab as indentation", f"{HEAD}spec:\n\ttrigger: {{}}\n", [("yaml-syntax", 5)]),
    ("tab inside a line", f"{HEAD}spec:\n{TRIGGER}  actions:\t[{{type: throttle, "
     "max_concurrency: 8}]\n", []),
    ("duplicate key nested", trigger("for: 1m, for: 2m"), [("yaml-duplicate-key", 5)]),
    ("duplicate key at the top", f"{WHOLE}kind: Policy\n", [("yaml-duplicate-key", 7)]),
    ("duplicate key quoted", f'{WHOLE}"kind": Policy\n', [("yaml-duplicate-key", 7)]),
    ("alias of nothing", throttle("*nine"), [("yaml-alias", 6)]),
    ("alias in itself", f"{HEAD}spec: &s {{trigger: *s}}\n", [("yaml-alias", 4)]),
    ("two that hold each other", "a: &a [&b [*a]]\n", [("yaml-alias", 1)]),
    ("anchor used twice", f"{HEAD}spec:\n  trigger: {{expr: &e 'up == 0', on_no_data: hold, "
     f"resolve: {{expr: 'up == 1', for: &d 1m}}, for: *d}}\n{ACTIONS}", []),
    ("merge key", f"{HEAD}spec:\n  <<: {{mode: shadow}}\n{TRIGGER}{ACTIONS}", [("yaml-merge", 5)]),
    ("merge list", f"{HEAD}spec:\n  <<: [{{mode: shadow}}]\n{TRIGGER}{ACTIONS}",
     [("yaml-merge", 5)]),
    ("python object", throttle("!!python/object:os.system 8"), [("yaml-tag", 6)]),
    ("python apply", "!!python/object/apply:os.system ['id']\n", [("yaml-tag", 1)]),
    ("python name", throttle("!!python/name:os.system 8"), [("yaml-tag", 6)]),
    ("ruby object", throttle("!ruby/object:Gem 8"), [("yaml-tag", 6)]),
    ("include", throttle("!include other.yaml"), [("yaml-tag", 6)]),
    ("vault", throttle("!vault abc"), [("yaml-tag", 6)]),
    ("set tag", throttle("!!set {a, b}"), [("yaml-tag", 6)]),
    ("explicit float", throttle("!!float 8"), [("yaml-tag", 6)]),
    ("tag of a key", f"{HEAD}!x spec:\n{TRIGGER}{ACTIONS}", [("yaml-tag", 4)]),
    ("list tag of a mapping", f"{HEAD}spec: !!seq\n{TRIGGER}{ACTIONS}", [("yaml-tag", 4)]),
    ("mapping tag of a mapping", f"{HEAD}spec: !!map\n{TRIGGER}{ACTIONS}", []),
    ("anchor of a key", f"{HEAD}&k spec:\n{TRIGGER}{ACTIONS}", []),
    ("alias of another document", f"{WHOLE.replace('{name', '&m {name')}---\n"
     f"{WHOLE.replace('{name: a}', '*m')}", [("yaml-alias", 10)]),
    ("alias as key", f"{HEAD}spec:\n  trigger: {{expr: &e 'up == 0', on_no_data: hold}}\n"
     f"  *e : 1\n{ACTIONS}", [("yaml-key", 6)]),
    ("list as key", f"{WHOLE}? [a, b]\n: 1\n", [("yaml-key", 7)]),
    *[(f"null key {word}", f"{WHOLE}{word}: 1\n", [("yaml-key", 7)])
      for word in ("~", "null", "Null", "NULL")],
    ("deep nesting", "[" * 200 + "]" * 200, [("too-deep", 1)]),
    ("nesting beyond the scanner's limit", "[" * 5_000, [("too-deep", 1)]),
    ("deep mapping", "{a: " * 200 + "1" + "}" * 200, [("too-deep", 1)]),
    ("unclosed bracket", f"{HEAD}spec:\n  actions: [\n", [("yaml-syntax", 5)]),
    ("unclosed quote", f"{HEAD}spec:\n  mode: 'shadow\n", [("yaml-syntax", 5)]),
    ("unclosed block", f"{WHOLE}x: {{\n", [("yaml-syntax", 7)]),
    ("at sign", throttle("@8"), [("yaml-syntax", 6)]),
    ("backtick", throttle("`8`"), [("yaml-syntax", 6)]),
    ("percent", throttle("%8"), [("yaml-syntax", 6)]),
    ("colon in a plain value", f"{HEAD}spec:\n  mode: shadow: yes\n", [("yaml-syntax", 5)]),
    ("bad indentation", f"{HEAD}spec:\n   trigger: {{}}\n  actions: []\n", [("yaml-syntax", 6)]),
    ("directive 1.2", f"%YAML 1.2\n---\n{WHOLE}", []),
    ("directive 3.0", f"%YAML 3.0\n---\n{WHOLE}", [("yaml-syntax", 1)]),
    ("directive without a line", f"%YAML 1.2\n{WHOLE}", [("yaml-syntax", 2)]),
    ("directive twice", f"%YAML 1.2\n%YAML 1.2\n---\n{WHOLE}", [("yaml-syntax", 2)]),
    ("directive of nobody", f"%FOO bar\n---\n{WHOLE}", [("yaml-syntax", 1)]),
    ("text after the end", f"{WHOLE}...\nfoo\n", [("yaml-syntax", 8)]),
    ("two end marks", f"{WHOLE}...\n...\n", []),
    ("no blank after a colon", WHOLE.replace("kind: ", "kind:"), [("yaml-syntax", 2)]),
    ("block sign before a value", annotated("x").replace("{summary: x}", "\n    summary: > 5"),
     [("yaml-syntax", 6)]),
    ("dash before a value", annotated("x").replace("{summary: x}", "\n    summary: - a"),
     [("yaml-syntax", 6)]),
    ("tag directive", f"%TAG !e! tag:example.com,2000:\n---\n{throttle('!e!x 8')}",
     [("yaml-tag", 8)]),
    ("helm value", throttle("{{ .Values.max }}"), [("yaml-template", 6)]),
    ("helm block", f"{{{{- if .Values.on }}}}\n{WHOLE}{{{{- end }}}}\n", [("yaml-template", 1)]),
    ("jinja block", f"{{% if on %}}\n{WHOLE}{{% endif %}}\n", [("yaml-template", 1)]),
    ("jinja value", throttle("{% if x %}8{% endif %}"), [("yaml-template", 6)]),
    ("variable of a shell", throttle("${LIMIT}"), [("yaml-template", 6)]),
    ("jinja comment", f"{{# x #}}\n{WHOLE}", [("yaml-template", 1)]),
    ("erb block", f"<% if x %>\n{WHOLE}<% end %>\n", [("yaml-template", 1)]),
    ("conflict marker", f"{WHOLE}>>>>>>> other\n", [("git-conflict", 7)]),
    ("middle of a conflict", f"{WHOLE}=======\n{WHOLE}", [("git-conflict", 7)]),
    ("base of a conflict", f"{HEAD}||||||| base\n{WHOLE}", [("git-conflict", 4)]),
    ("a heading in a comment", f"# =======\n{WHOLE}", []),
    # scalars that YAML 1.1 and 1.2 read differently
    *[(f"boolean {word}", action(f"{{type: fallback_model, to: {word}, lease: 30s}}"),
       [("yaml-ambiguous", 6)]) for word in ("no", "NO", "Off", "yes", "ON")],
    ("key on", f"{HEAD}on: {{}}\nspec:\n{TRIGGER}{ACTIONS}", [("unknown-field", 4)]),
    ("octal", throttle("010"), [("yaml-ambiguous", 6)]),
    ("octal 1.2", throttle("0o10"), [("yaml-ambiguous", 6)]),
    ("binary", throttle("0b101"), [("yaml-ambiguous", 6)]),
    ("hexadecimal", throttle("0x10"), [("yaml-ambiguous", 6)]),
    ("underscores", throttle("1_000"), [("yaml-ambiguous", 6)]),
    ("exponent", throttle("1e3"), [("yaml-ambiguous", 6)]),
    ("sexagesimal", trigger("for: 1:30"), [("yaml-ambiguous", 5)]),
    ("sexagesimal of hours", trigger("for: 1:30:00"), [("yaml-ambiguous", 5)]),
    ("date as a name", f"{HEAD.replace('a}', '2026-01-01}')}spec:\n{TRIGGER}{ACTIONS}",
     [("yaml-ambiguous", 3)]),
    ("time stamp", f"{HEAD.replace('a}', '2026-01-01T00:00:00Z}')}spec:\n{TRIGGER}{ACTIONS}",
     [("yaml-ambiguous", 3)]),
    ("infinity", throttle(".inf"), [("number-not-finite", 6)]),
    ("minus infinity", throttle("-.INF"), [("number-not-finite", 6)]),
    ("not a number", throttle(".NaN"), [("number-not-finite", 6)]),
    ("huge integer", throttle("99999999999999999999"), [("number-too-large", 6)]),
    ("thousand digits", throttle("9" * 1000), [("number-too-large", 6)]),
    ("huge float", throttle("1" + "0" * 400 + ".0"), [("number-too-large", 6)]),
    ("equals sign", throttle("="), [("yaml-ambiguous", 6)]),
    # shape
    ("list for a mapping", f"{HEAD}spec: [trigger, actions]\n", [("type", 4)]),
    ("mapping for a list", spec(TRIGGER.strip(), "actions: {type: throttle}"), [("type", 6)]),
    ("list for metadata", WHOLE.replace("{name: a}", "[a]"), [("type", 3)]),
    ("text for a list", spec(TRIGGER.strip(), "actions: throttle"), [("type", 6)]),
    ("null spec", f"{HEAD}spec:\n", [("null", 4)]),
    ("null actions", spec(TRIGGER.strip(), "actions:"), [("null", 6)]),
    ("null action", action("null"), [("null", 6)]),
    ("no actions", spec(TRIGGER.strip()), [("required", 4)]),
    ("no trigger", f"{HEAD}spec:\n{ACTIONS}", [("required", 4)]),
    ("no metadata", WHOLE.replace("metadata: {name: a}\n", ""), [("required", 1)]),
    ("no name", WHOLE.replace("{name: a}", "{labels: {}}"), [("required", 3)]),
    ("no apiVersion", WHOLE.replace("apiVersion: resilience/v1\n", ""), [("required", 1)]),
    ("no on_no_data", WHOLE.replace(", on_no_data: hold", ""), [("required", 5)]),
    ("unknown key deep inside", trigger("resolve: {expr: 'up == 1', fro: 1m}"),
     [("unknown-field", 5)]),
    ("unknown key of a limit", f"{WHOLE}  limits: {{rate: [{{max: 1, per: 1h, burst: 2}}]}}\n",
     [("unknown-field", 7)]),
    ("camel case", trigger("keepFiringFor: 1m"), [("unknown-field", 5)]),
    ("labels of Helm", WHOLE.replace("{name: a}", "\n  name: a\n  labels:\n    team: x\n"
     "    app.kubernetes.io/managed-by: Helm"), [("format", 7)]),
    ("annotations of Helm", WHOLE.replace("{name: a}", "\n  name: a\n  annotations:\n"
     "    meta.helm.sh/release-name: r"), []),
    ("fields of Kubernetes", WHOLE.replace("{name: a}", "{name: a, creationTimestamp: null}")
     + "status: {}\n", [("unknown-field", 3), ("unknown-field", 7)]),
    ("upper case key", WHOLE.replace("kind:", "Kind:"), [("required", 2), ("unknown-field", 2)]),
    ("empty list", spec(TRIGGER.strip(), "actions: []"), [("empty", 6)]),
    ("empty name", WHOLE.replace("{name: a}", "{name: ''}"), [("empty", 3)]),
    ("wrong apiVersion", WHOLE.replace("resilience/v1", "resilience/v2"), [("not-a-policy", 1)]),
    ("another system", WHOLE.replace("resilience/v1", "apps/v1"), [("not-a-policy", 1)]),
    ("number as apiVersion", WHOLE.replace("resilience/v1", "1"), [("choice", 1)]),
    ("wrong kind", WHOLE.replace("kind: Policy", "kind: Polciy"), [("unknown-kind", 2)]),
    ("kind in lower case", WHOLE.replace("kind: Policy", "kind: policy"), [("unknown-kind", 2)]),
    ("kind list", WHOLE.replace("kind: Policy", "kind: List"), [("unknown-kind", 2)]),
    ("kind as a number", WHOLE.replace("kind: Policy", "kind: 3"), [("unknown-kind", 2)]),
    ("alertmanager", "route: {receiver: a}\nreceivers: []\n", [("not-a-policy", 2)]),
    ("prometheus", "global: {}\nscrape_configs: []\n", [("not-a-policy", 2)]),
    ("a test of another name", "tests: []\n", [("not-a-policy", 1)]),
    # names
    *[(f"name {name!r}", WHOLE.replace("{name: a}", f"{{name: '{name}'}}"), [("name", 3)])
      for name in ("A", "a b", "a/b", "-a", "a-", "a" * 64, "ä", "../a", "a\u200bb")],
    ("longest name", WHOLE.replace("{name: a}", f"{{name: {'a' * 63}}}"), []),
    # durations
    *[(f"for {text!r}", trigger(f"for: {text}"), [("duration", 5)]) for text in (
        "5", "5min", "5 m", "1.5h", "-5m", "PT5M", "5M", "m5", "1m1h", "1m1m", "'5m '", "five",
        "100y", "[5m]", "true", "３０s", "٣s")],
    *[(f"for {text}", trigger(f"for: {text}"), []) for text in ("0", "0s", "1h30m", "90m", "1d")],
    ("interval of nothing", f"{WHOLE}  interval: 0s\n", [("duration", 7)]),
    ("lease of a day", action("{type: throttle, max_concurrency: 8, lease: 1d}"),
     [("duration", 6)]),
    # values
    *[(f"concurrency {value}", throttle(value), [(code, 6)]) for value, code in (
        ("-1", "range"), ("0", "range"), ("8.5", "type"), ("true", "type"), ("'8'", "type"),
        ("many", "type"), (".5", "type"), ("1 000", "type"), ("[8]", "type"),
        ("null", "null"), ("2000000000", "range"))],
    ("share above one", action("{type: fallback_model, to: b, share: 150%, lease: 30s}"),
     [("share", 6)]),
    ("word for a mode", f"{WHOLE}  mode: dry\n", [("choice", 7)]),
    ("boolean for a mode", f"{WHOLE}  mode: true\n", [("type", 7)]),
    ("action without a type", action("{max_concurrency: 8}"), [("required", 6)]),
    ("action that is text", action("throttle"), [("type", 6)]),
    ("action that nobody has", action("{type: restart}"), [("unknown-action", 6)]),
    ("two actions in one", action("{type: [throttle, cache_degrade]}"), [("type", 6)]),
    ("template in an expression", WHOLE.replace("up == 0", "up == {{ $value }}"),
     [("template", 5)]),
    ("template in a name", WHOLE.replace("{name: a}", "{name: '{{ $labels.x }}'}"), [("name", 3)]),
    ("go template in a parameter", action("{type: throttle, max_concurrency: 8, tier: "
                                          "'{{ .Tier }}'}"), [("template", 6)]),
    ("UDF that is nowhere", action("{type: udf_call, function: nobody}"), [("udf-missing", 6)]),
    ("UDF with a path", action("{type: udf_call, function: a.b}"), [("format", 6)]),
    # several documents
    ("one of two is broken", f"{WHOLE}---\n{HEAD}spec: 3\n", [("type", 11)]),
    ("two of one name", f"{WHOLE}---\n{WHOLE}", [("duplicate-name", 10)]),
    ("empty ones between", f"---\n---\n{WHOLE}---\n", []),
    ("JSON lines", '{"kind": "Policy"}\n{"kind": "Policy"}\n', [
        ("required", 1), ("required", 1), ("required", 1), ("yaml-syntax", 2)]),
]


@pytest.mark.parametrize(("name", "body", "wanted"), FILES, ids=[row[0] for row in FILES])
def test_a_file(run: Run, name: str, body: str | bytes, wanted: list[tuple[str, int]]) -> None:
    raw = body if isinstance(body, bytes) else body.encode("utf-8")
    findings = run({"f.yaml": raw}).findings
    assert [(f.code, f.line) for f in findings] == wanted, findings
    for finding in findings:
        assert finding.message.isprintable() and not finding.message.endswith(".")


def test_a_name_that_two_files_use_is_said_at_the_second(run: Run) -> None:
    (finding,) = run({"a.yaml": WHOLE, "b.yaml": WHOLE}).findings
    assert (finding.file, finding.line, finding.code) == ("b.yaml", 3, "duplicate-name")
    assert "a.yaml:3" in finding.message


def test_a_bomb_of_aliases_is_refused_early(run: Run) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 12)]
    (finding,) = run("\n".join(lines)).findings
    assert (finding.code, finding.line) == ("too-large", 5)


def test_limits(run: Run) -> None:
    big = run({"f.yaml": b"# x\n" * 3_000_000}).findings
    assert [f.code for f in big] == ["file-too-large"]
    many = run(action(", ".join(["{type: throttle, max_concurrency: 8}"] * 20_000))).findings
    assert "too-large" in {f.code for f in many}
    long = run(WHOLE.replace("up == 0", "up == 0 or " * 10_000 + "up == 0")).findings
    assert [f.code for f in long] == ["too-large"]


@pytest.mark.parametrize("colon", [":", "\uff1a", ":\u00a0", ":\u200b"])
def test_a_colon_that_is_none_is_said_to_be_the_matter(run: Run, colon: str) -> None:
    (finding,) = run(WHOLE.replace("kind: ", f"kind{colon}")).findings
    assert (finding.line, finding.column, finding.code) == (2, 1, "yaml-syntax")
    assert finding.suggestion == "write `kind: ` with a blank after the colon"
