"""What `--set` asks for, and the documents with those values in them.

`--set NAME.PATH=V1,V2`: NAME is a policy, or `policy` for every one; PATH goes from its `spec`, as
in `trigger.for` or `actions[0].max_concurrency`. The changed documents go through the whole check,
so a value or a place that a file could not have is refused with the check's own words.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from resilience.app.bundles import Sources, check_sources
from resilience.errors import FindingsError, UsageError
from resilience.model import Bundle, Json
from resilience.policy import compact
from resilience.policy.document import Document, Map, Seq, parse_documents
from resilience.policy.words import did_you_mean, nearest, quoted

COMBINATIONS_MAX = 100
INDEX_DIGITS = 6
EVERY = "policy"
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_PATH = re.compile(
    rf"(?:[^.\[\]]+|\[\d{{1,{INDEX_DIGITS}}}\])(?:\.[^.\[\]]+|\[\d{{1,{INDEX_DIGITS}}}\])*")
_OPENING, _CLOSING = "([{", ")]}"
Chosen = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One `--set`: the policies that it names, the place in their spec, and the values to try.

    `texts` are the values as they were written, `values` what YAML makes of them.
    """

    target: str
    policies: tuple[str, ...]
    path: tuple[str | int, ...]
    texts: tuple[str, ...]
    values: tuple[Json, ...]


def parse_setting(text: str, names: Sequence[str]) -> Setting:
    """Read one `--set`; raises UsageError that says what was meant, where it can."""
    target, equals, right = text.partition("=")
    if not equals or not right.strip():
        raise UsageError(f"`--set {text}` has no value: write `POLICY.PATH=VALUE,VALUE`")
    policies, path = _target(target.strip(), names)
    texts = tuple(itertools.islice(_split(right), COMBINATIONS_MAX + 1))
    if len(texts) > COMBINATIONS_MAX:
        raise UsageError(f"`--set {target.strip()}` has more than {COMBINATIONS_MAX} values: set "
                         "fewer")
    return Setting(target.strip(), policies, path, texts, tuple(_value(t, text) for t in texts))


def _target(target: str, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str | int, ...]]:
    # A name may hold dots, so the longest one that fits is meant.
    for name in sorted(names, key=len, reverse=True):
        if target.startswith(f"{name}."):
            return (name,), _path(target[len(name) + 1 :], target)
    if target in names:
        return (target,), _path("", target)
    if not names:
        raise UsageError(f"`--set {target}`: the rules hold no `kind: Policy`")
    head, _, rest = target.partition(".")
    if head == EVERY:
        return tuple(names), _path(rest, target)
    guess = nearest(head, [*names, EVERY])
    hint = f", did you mean `{guess}`" if guess else ""
    raise UsageError(
        f"`--set {target}`: no policy {quoted(head)}{hint}; write `POLICY.PATH=VALUE`, with "
        f"`{EVERY}` for every policy"
    )


def _path(text: str, target: str) -> tuple[str | int, ...]:
    if text and not _PATH.fullmatch(text):
        raise UsageError(f"`--set {target}`: `{text}` is no place: write it as in "
                         "`trigger.for` or `actions[0].max_concurrency`")
    steps: list[str | int] = []
    for match in _STEP.finditer(text):
        key, index = match.groups()
        steps.append(int(index) if index is not None else _number_or_name(key))
    if steps[:1] == ["spec"]:
        del steps[0]
    if not steps:
        raise UsageError(f"`--set {target}` has no place: write it as in `{EVERY}.trigger.for`")
    return tuple(steps)


def _number_or_name(key: str) -> str | int:
    """Read `actions.0` as `actions[0]`; other digits, or more, are the name of a field."""
    return int(key) if key.isascii() and key.isdigit() and len(key) <= INDEX_DIGITS else key


def _split(text: str) -> Iterator[str]:
    """Split at commas that no quotes or brackets enclose."""
    depth, quote, start = 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _value(text: str, whole: str) -> Json:
    """Return what YAML makes of a value; the same reader as for files, with its refusals."""
    documents, findings = parse_documents([("value", text)])
    wrong = [f for f in findings if f.severity == "error"]
    if wrong:
        hint = f"; {wrong[0].suggestion}" if wrong[0].suggestion else ""
        raise UsageError(f"`--set {whole}`: {wrong[0].message}{hint}")
    if len(documents) != 1:
        raise UsageError(f"`--set {whole}`: `{text}` is no value")
    return documents[0].data


# --- documents with other values -----------------------------------------------------------------


def policies(sources: Sources) -> dict[str, Document]:
    """Return the policies that are written as such, by name, in full form."""
    found: dict[str, Document] = {}
    for document in parse_documents(sources.files)[0]:
        full = _full(document)
        if full.data.get("kind") == "Policy":
            found[full.data["metadata"]["name"]] = full
    return dict(sorted(found.items()))


def bundles(
    sources: Sources, settings: Sequence[Setting], documents: Mapping[str, Document]
) -> list[tuple[Chosen, Bundle]]:
    """Return every combination with its checked bundle, the rules as written first."""
    count = 1
    for place, setting in enumerate(settings):
        count *= len(setting.values)
        if any(s.path == setting.path and set(s.policies) & set(setting.policies)
               for s in settings[:place]):
            raise UsageError(f"`--set {setting.target}`: another `--set` names the same place")
    if count > COMBINATIONS_MAX:
        raise UsageError(f"{count} combinations are more than {COMBINATIONS_MAX}: set fewer values")
    found: list[tuple[Chosen, Bundle]] = [((), check_sources(sources).bundle)]
    for picks in itertools.product(*(range(len(s.values)) for s in settings)):
        chosen = tuple((s.target, s.texts[i]) for s, i in zip(settings, picks, strict=True))
        changed = _with(sources, settings, picks)
        try:
            found.append((chosen, check_sources(changed).bundle))
        except FindingsError as error:
            raise _refused(error, chosen, settings, documents) from error
    return found


def _refused(
    error: FindingsError, chosen: Chosen, settings: Sequence[Setting],
    documents: Mapping[str, Document],
) -> UsageError:
    finding = next(f for f in error.findings if f.severity == "error")
    hint = finding.suggestion or next(filter(None, (_meant(s, documents) for s in settings)), None)
    shown = " ".join(f"--set {target}={text}" for target, text in chosen)
    return UsageError(f"`{shown}`: {finding.message}" + (f"; {hint}" if hint else ""))


def _meant(setting: Setting, documents: Mapping[str, Document]) -> str | None:
    """Return which of the fields that are there a new one was most likely meant to be."""
    at: Any = documents[setting.policies[0]].data["spec"]
    for step in setting.path:
        if isinstance(at, list) and isinstance(step, int):
            at = at[step]
        elif not isinstance(at, dict):
            return None
        elif step not in at:
            return did_you_mean(str(step), at)
        else:
            at = at[step]
    return None


def _with(sources: Sources, settings: Sequence[Setting], picks: Sequence[int]) -> Sources:
    files: list[tuple[str, bytes]] = []
    targets = {name for setting in settings for name in setting.policies}
    for path, body in sources.files:
        documents = [_full(d) for d in parse_documents([(path, body)])[0]]
        if not any(_name(d) in targets for d in documents):
            files.append((path, body))
            continue
        for document in documents:
            for setting, pick in zip(settings, picks, strict=True):
                if _name(document) in setting.policies:
                    _put(document.data, setting, setting.values[pick])
        text = "\n---\n".join(json.dumps(d.data, ensure_ascii=False) for d in documents)
        files.append((path, text.encode()))
    return replace(sources, files=tuple(files))


def _full(document: Document) -> Document:
    return compact.expand(document) if compact.is_compact(document.data) else document


def _name(document: Document) -> str | None:
    data: Any = document.data
    if not isinstance(data, Map) or data.get("kind") != "Policy":
        return None
    return str(data["metadata"]["name"])


def _put(data: Any, setting: Setting, value: Json) -> None:
    """Set one place; maps on the way are made, items of lists must be there."""
    at: Any = data["spec"]
    *way, last = setting.path
    for step in way:
        if isinstance(at, dict) and isinstance(step, str) and step not in at:
            at[step] = {}
        at = _into(at, step, setting)
    if isinstance(at, dict):
        at[str(last)] = value
    else:
        _into(at, last, setting)
        at[last] = value


def _into(at: Any, step: str | int, setting: Setting) -> Any:
    place = f"`--set {setting.target}`"
    if isinstance(at, Seq | list):
        if not isinstance(step, int):
            raise UsageError(f"{place}: `{step}` stands in a list of {len(at)}: write its number")
        if step >= len(at):
            raise UsageError(f"{place}: there is no item {step} in a list of {len(at)}")
        return at[step]
    if isinstance(at, dict):
        return at[str(step)]
    raise UsageError(f"{place}: nothing stands below `{at}`")
