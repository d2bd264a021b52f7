"""`resilience test`: find the tests beside the policies, run them, and say what was not tested."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from resilience.app.bundles import Sources, check_sources, read_sources
from resilience.app.policy_tests_compare import Failure
from resilience.app.policy_tests_coverage import Coverage, Seen, coverage
from resilience.app.policy_tests_run import run_case
from resilience.app.rules_folders import TEST_ENDINGS, policy_tests
from resilience.errors import UsageError
from resilience.model import Bundle, Finding, Policy
from resilience.policy.case_builder import build_suite
from resilience.policy.cases import Case, Suite, policy_files, read_suite
from resilience.policy.document import SUFFIXES, Document, Place, is_policy_file
from resilience.policy.words import did_you_mean, listed, quoted
from resilience.registry import catalogue

FILE_BYTES_MAX = 1024 * 1024
SIBLINGS_MAX = 1_000
_ENGINE = re.compile(rb"^kind:[ \t]*[\"']?Engine\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Selection:
    """Test files of one rules folder, with what they are tested against."""

    sources: Sources
    tests: tuple[tuple[str, Path], ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One test that ran. `file` as the user wrote it."""

    file: str
    name: str
    line: int
    failures: tuple[Failure, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run found. `findings` are test files that could not be run, `left_out`
    the names of tests that were not asked for."""

    files: tuple[str, ...]
    results: tuple[CaseResult, ...]
    findings: tuple[Finding, ...]
    coverage: Coverage
    left_out: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        return sum(bool(r.failures) for r in self.results)

    @property
    def passed(self) -> bool:
        """Return whether there were tests, and all of them could be run and hold."""
        return bool(self.results) and not self.failed and not self.findings


OnResult = Callable[[CaseResult], None]


@dataclass
class _Tally:
    """What is collected while the files are run."""

    files: list[str] = field(default_factory=list[str])
    results: list[CaseResult] = field(default_factory=list[CaseResult])
    findings: list[Finding] = field(default_factory=list[Finding])
    left_out: list[str] = field(default_factory=list[str])
    seen: list[Seen] = field(default_factory=list[Seen])
    policies: dict[tuple[str, str], Policy] = field(default_factory=dict[tuple[str, str], Policy])


def run_tests(
    paths: Sequence[Path], udf_dirs: Sequence[Path] = (), *, config: Path | None = None,
    features: tuple[str, ...] = (), only: re.Pattern[str] | None = None,
    on_result: OnResult = lambda result: None,
) -> Report:
    """Run every test under `paths`: folders, test files, or policy files with a test beside them.

    `only`: run the tests whose name it finds. Raises UsageError for what cannot be read,
    FindingsError when the policies themselves have errors, SandboxError.
    """
    tally = _Tally()
    for selection in _selections(paths, udf_dirs, config):
        bundle = _bundle(replace(selection.sources, enable_features=features))
        shown = selection.sources.shown or {}
        policies = [replace(p, file=shown.get(p.file, p.file)) for p in bundle.policies]
        tally.policies.update(((p.file, p.name), p) for p in policies)
        for name, path in selection.tests:
            _run_file(_File(name, path, selection.sources), bundle, only, tally, on_result)
    covered = coverage(list(tally.policies.values()), tally.seen)
    return Report(
        tuple(tally.files), tuple(tally.results), tuple(tally.findings), covered,
        tuple(tally.left_out),
    )


def _bundle(sources: Sources) -> Bundle:
    """Return the checked policies; none where a test file names none that is there."""
    return check_sources(sources).bundle if sources.files else Bundle("", ())


# --- finding files -------------------------------------------------------------------------------


def _selections(
    paths: Sequence[Path], udf_dirs: Sequence[Path], config: Path | None
) -> Iterator[Selection]:
    """Yield folders as they are, and single files by their folder, each test once."""
    taken: set[Path] = set()
    for path in dict.fromkeys(paths):
        if not path.exists():
            raise UsageError(f"the path `{path}` does not exist")
        tests = policy_tests(path) if path.is_dir() else _tests_of(path)
        new = [t for t in tests if t.resolve() not in taken]
        taken.update(t.resolve() for t in new)
        outside = [t for t in new if not path.is_dir() or _leaves(path, t)]
        if path.is_dir() and not (new and len(outside) == len(new)):
            inside = [t for t in new if t not in outside]
            names = tuple((t.relative_to(path).as_posix(), t) for t in inside)
            yield Selection(read_sources(path, udf_dirs, config=config), names)
        yield from (_single(test, udf_dirs, config) for test in outside)


def _leaves(folder: Path, test: Path) -> bool:
    """Whether a test names policies that lie outside the folder, as `../rules/queue.yaml`."""
    document, _ = read_suite(str(test), _read(test))
    below = test.relative_to(folder).parent.as_posix()
    return document is not None and any(
        posixpath.normpath(posixpath.join(below, name)).startswith("../")
        for name, _ in policy_files(document)
    )


def _tests_of(path: Path) -> list[Path]:
    """Return the test file that `path` is, or those that lie beside this policy file."""
    if path.name.lower().endswith(TEST_ENDINGS):
        return [path]
    if not is_policy_file(path.name):
        raise UsageError(f"`{path}` is no test: tests are named `NAME.test.yaml` and lie beside "
                         "`NAME.yaml`")
    beside = [path.with_name(path.stem + ending) for ending in TEST_ENDINGS]
    return [file for file in beside if file.is_file()][:1]


def _single(test: Path, udf_dirs: Sequence[Path], config: Path | None) -> Selection:
    """Return one test file with its policies and their folder's `kind: Engine`, nothing else."""
    document, _ = read_suite(str(test), _read(test))
    folder = test.parent
    named = [name for name, _ in policy_files(document)] if document else []
    wanted = [folder / name for name in named] if named else _beside(test)
    files: dict[str, bytes] = {}
    shown: dict[str, str] = {}
    for path in [p for p in wanted if p.is_file()]:
        name = posixpath.normpath(path.relative_to(folder).as_posix())
        files[name], shown[name] = _read(path), str(path)
    if not files:
        return Selection(Sources((), shown=shown), ((test.name, test),))
    home = Path(next(iter(shown.values()))).parent
    roots = udf_dirs or [p for p in (home / "udfs", home.absolute().parent / "udfs")
                         if p.is_dir()][:1]
    first = read_sources(folder / next(iter(files)), roots, config=config)
    extra = dict(first.files[1:]) or dict(_engines(home, files))
    shown.update({k: v for k, v in (first.shown or {}).items() if k not in shown})
    sources = replace(first, files=tuple({**files, **extra}.items()), shown=shown)
    return Selection(sources, ((test.name, test),))


def _beside(test: Path) -> list[Path]:
    return [test.parent / name for name in _names_beside(test.name)]


def _names_beside(name: str) -> list[str]:
    stem, _, ending = name.rpartition(".")
    stem = stem[: -len(".test")]
    return [stem + e for e in dict.fromkeys((f".{ending}", *SUFFIXES))]


def _engines(folder: Path, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the configuration that lies in the folder, unless the policy files hold one."""
    if any(_ENGINE.search(body) for body in files.values()):
        return
    for name in _siblings(folder / "here"):
        body = _read(folder / name)
        if _ENGINE.search(body):
            yield name, body
            return


def _siblings(path: Path) -> list[str]:
    """Return the names of the policy files in the folder of `path`."""
    return [
        p.name for p in sorted(path.parent.iterdir())[:SIBLINGS_MAX]
        if is_policy_file(p.name) and p.is_file()
    ]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {(error.strerror or '').lower()}") from error
    if len(body) > FILE_BYTES_MAX:
        raise UsageError(f"`{path}` is larger than {FILE_BYTES_MAX} bytes")
    return body


# --- running a file ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A test file: its name below the rules folder, and where it lies."""

    name: str
    path: Path
    sources: Sources


def _run_file(
    file: _File, bundle: Bundle, only: re.Pattern[str] | None, tally: _Tally, on_result: OnResult
) -> None:
    tally.files.append(str(file.path))
    suite, findings = _suite(file, bundle)
    tally.findings.extend(findings)
    if suite is None:
        return
    chosen = replace(
        bundle, policies=tuple(p for p in bundle.policies if p.name in suite.policies)
    )
    for case in suite.cases:
        if only is None or only.search(case.name):
            result = _run(suite, case, chosen, tally)
            tally.results.append(result)
            on_result(result)
        else:
            tally.left_out.append(case.name)


def _suite(file: _File, bundle: Bundle) -> tuple[Suite | None, tuple[Finding, ...]]:
    document, findings = read_suite(str(file.path), _read(file.path))
    if document is None:
        return None, findings
    names, missing = _files_of(document, file)
    if missing:
        return None, missing
    policies = [p for p in bundle.policies if p.file in names]
    asleep = [p.name for p in policies if p.mode == "off"]
    if asleep or not policies:
        message = (f"policy {listed(asleep)} is `mode: off`: it is never evaluated" if asleep
                   else f"no policy in {listed(names)}")
        return None, (document.finding(document.place, "error", "test-name", message,
                                       "name other files in `policy_files`"),)
    return build_suite(document, policies, bundle.config, catalogue("actions"))


def _files_of(document: Document, file: _File) -> tuple[list[str], tuple[Finding, ...]]:
    """Return the policy files that a test is about, by their names in the bundle."""
    known = [name for name, _ in file.sources.files]
    folder = posixpath.dirname(file.name)
    named = policy_files(document)
    if not named:
        beside = [posixpath.join(folder, n) for n in _names_beside(posixpath.basename(file.name))]
        found = [name for name in beside if name in known]
        if found:
            return found, ()
        hint = did_you_mean(beside[0], known) or "name them in `policy_files`"
        return [], (_unknown(document, document.place, Path(beside[0]).name, hint),)
    wanted = [(posixpath.normpath(posixpath.join(folder, n)), n, place) for n, place in named]
    near = [*known, *(posixpath.join(folder, n) for n in _siblings(file.path))]
    missing = [
        _unknown(document, place, written, did_you_mean(name, near))
        for name, written, place in wanted if name not in known
    ]
    return [name for name, _, _ in wanted], tuple(missing)


def _unknown(document: Document, place: Place, name: str, hint: str | None) -> Finding:
    return document.finding(
        place, "error", "test-name", f"the policy file {quoted(name)} is not there", hint
    )


def _run(suite: Suite, case: Case, bundle: Bundle, tally: _Tally) -> CaseResult:
    began = time.perf_counter()
    ran = run_case(bundle, case)
    tally.seen.extend(ran.seen)
    seconds = time.perf_counter() - began
    return CaseResult(suite.file, case.name, case.place.line, ran.failures, seconds)
