"""YAML is read safely, and everything keeps its place."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.policy import composer, encoding
from resilience.policy.document import Map, Seq, is_policy_file, parse_documents


def read(text: str | bytes) -> tuple[list[Any], list[str]]:
    documents, findings = parse_documents([("f.yaml", text)])
    shown = [f"{f.line}:{f.column} {f.severity} {f.code}" for f in findings]
    return [d.data for d in documents], shown


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("a: 1\na: 2\n", ["2:1 error yaml-duplicate-key"]),
        ('a: 1\n"a": 2\n', ["2:1 error yaml-duplicate-key"]),
        ("a: &x [1]\nb: *x\n", []),
        ("a: &x [*x]\n", ["1:8 error yaml-alias"]),
        ("a: *nowhere\n", ["1:4 error yaml-alias"]),
        ("a: &x 1\n*x : 2\n", ["2:1 error yaml-key"]),
        ("<<: {a: 1}\n", ["1:1 error yaml-merge"]),
        ("'<<': 1\n", []),
        ("a: !!python/object:os.system x\n", ["1:4 error yaml-tag"]),
        ("a: !!int 3\n", ["1:4 error yaml-tag"]),
        ("a: !!str 3\n", []),
        ("a: !!set {x, y}\n", ["1:4 error yaml-tag"]),
        ("? [a]\n: 1\n", ["1:3 error yaml-key"]),
        ("?\n: 1\n", ["1:2 error yaml-key"]),
        ("null: 1\n", ["1:1 error yaml-key"]),
        ("a:\n\tb: 1\n", ["2:1 error yaml-syntax"]),
        ("a: \x00\n", ["1:4 error control-character"]),
        ("a: \x07b\n", ["1:4 error control-character"]),
        ("a: x\u2028y\n", ["1:5 error control-character"]),
        ("a: x\ufeffy\n", ["1:5 error control-character"]),
        ("a: x  # \u202e y\n", ["1:9 error control-character"]),
        ("a: x\n# \u2066 y\n", ["2:3 error control-character"]),
        ("a: x\u200fy\n", []),
        ('a: "\\x1b[31m"\n', ["1:4 error control-character"]),
        ('a: "x\\ty\\nz"\n', []),
        ("a: [1\nb: 2\n", ["2:2 error yaml-syntax"]),
        ("a: [1,\n\n", ["1:4 error yaml-syntax"]),
        ("a: 'b\n\n", ["1:4 error yaml-syntax"]),
        ("a: |\n b\nc\nd: 1\n", ["3:1 error yaml-syntax"]),
        ("%YAML 2.0\n---\na: 1\n", ["1:1 error yaml-syntax"]),
        ("a: @b\n", ["1:4 error yaml-syntax"]),
        ("", ["1:1 warning empty-file"]),
        ("---\n---\n", ["1:1 warning empty-file"]),
        ("x: {{ .Values.a }}\n", ["1:4 error yaml-template"]),
        ("{{- range .x }}\na: 1\n", ["1:1 error yaml-template"]),
        ("<<<<<<< HEAD\na: 1\n", ["1:1 error git-conflict"]),
        ("spec = [1]: x: y\n", ["1:14 error yaml-syntax"]),
    ],
)
def test_findings(text: str, findings: list[str]) -> None:
    assert read(text)[1] == findings


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"a: \xff\n", "1:4 error encoding"),
        ("a: é\n".encode("latin-1"), "1:4 error encoding"),
        ("a: 1\n".encode("utf-16"), "1:1 error encoding"),
        ("a: 1\n".encode("utf-16-be"), "1:1 error encoding"),
        ("a: 1\n".encode("utf-32"), "1:1 error encoding"),
        (b"x" * (encoding.FILE_MAX_BYTES + 1), "1:1 error file-too-large"),
    ],
)
def test_bytes_that_are_refused(content: bytes, place: str) -> None:
    assert read(content)[1] == [place]


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfa: 1\nb: 2\n", b"a: 1\r\nb: 2\r\n", b"a: 1\rb: 2\r", b"a: 1\nb: 2"],
)
def test_bytes_that_are_read(content: bytes) -> None:
    documents, findings = parse_documents([("f.yaml", content)])
    assert not findings
    assert documents[0].data == {"a": 1, "b": 2}
    assert documents[0].data.keys_at["b"].line == 2


def test_places_count_from_one_and_include_comments() -> None:
    documents, _ = parse_documents([("f.yaml", "# x\na:\n  - b: 'c'\n---\nd: e\n")])
    first, second = documents
    assert (first.data.keys_at["a"].line, first.data.keys_at["a"].column) == (2, 1)
    inner = first.data["a"][0]
    assert isinstance(inner, Map)
    assert (inner.values_at["b"].line, inner.values_at["b"].column) == (3, 8)
    assert isinstance(first.data["a"], Seq)
    assert (second.index, second.data.keys_at["d"].line) == (2, 5)


def test_a_document_goes_on_after_a_refused_value() -> None:
    documents, findings = parse_documents([("f.yaml", "a: no\nb: 010\nc: x\n")])
    assert documents[0].data["c"] == "x"
    assert documents[0].spoiled == {(1, 4), (2, 4)}
    assert [f.code for f in findings] == ["yaml-ambiguous"] * 2


def test_a_broken_document_spoils_only_its_file() -> None:
    documents, findings = parse_documents([("a.yaml", "a: [\n"), ("b.yaml", "a: 1\n")])
    assert [d.file for d in documents] == ["b.yaml"]
    assert [f.file for f in findings] == ["a.yaml"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 100 + "]" * 100, "too-deep"),
        ("a: &a [" + "1," * 1000 + "]\n" + "".join(f"b{i}: *a\n" for i in range(100)), "too-large"),
        ("a: [" + "1," * 30_000 + "]\n", "too-large"),
        ("a: '" + "x" * 70_000 + "'\n", "too-large"),
        ("---\na: 1\n" * 20_001, "too-many-documents"),
    ],
)
def test_limits(text: str, code: str) -> None:
    _, findings = parse_documents([("f.yaml", text)])
    assert [f.code for f in findings] == [code]


def test_findings_of_one_file_are_bounded() -> None:
    text = "".join(f"a{i}: no\n" for i in range(1000))
    _, findings = parse_documents([("f.yaml", text)])
    assert len(findings) == composer.FINDINGS_MAX


@pytest.mark.parametrize(
    ("name", "read_it"),
    [
        ("a.yaml", True), ("a.yml", True), ("A.YAML", True), ("a.yaml~", False), ("a.json", False),
        (".a.yaml", False), ("#a.yaml#", False), ("a.test.yaml", False), ("notes.txt", False),
        ("yaml", False), ("..data", False), ("#1.yaml", True), ("~a.yaml", True),
    ],
)
def test_which_files_of_a_folder_are_read(name: str, read_it: bool) -> None:
    assert is_policy_file(name) is read_it
