"""`make bench-promql`: the 24 trigger expressions on Prometheus, VictoriaMetrics and ours, one run.

Generates the data set (PODS pods, HOURS hours at 15 s), loads the servers, asks each for every
expression as a range query, compares our answers with Prometheus' point by point, and prints CPU
seconds, wall time, peak memory and ratios. All three take turns, ROUNDS times; of each the least of
each expression counts, and of ours the least of start, of parsing and of reading: what other users
of the machine add is left out. Environment: PODS (50), HOURS (24), STEP seconds (60), ROUNDS (3),
RESILIENCE_BENCH (the generator's folder), RESILIENCE_REFERENCE (a folder with bin/prometheus,
bin/promtool and bin/victoria-metrics), RESILIENCE_BENCH_WORK (where data is kept).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "engine"), str(ROOT)]

import data_set  # noqa: E402
import report  # noqa: E402
from build_kernel import build  # noqa: E402
from measure import Server, free_address, serving  # noqa: E402

BENCH = Path(os.environ.get("RESILIENCE_BENCH", ROOT.parent / "shared" / "bench"))
WORK = Path(os.environ.get("RESILIENCE_BENCH_WORK", ROOT / "build" / "bench-promql"))
REFERENCE = os.environ.get("RESILIENCE_REFERENCE")
PODS, HOURS = int(os.environ.get("PODS", "50")), int(os.environ.get("HOURS", "24"))
STEP_S = int(os.environ.get("STEP", "60"))
ROUNDS = max(1, int(os.environ.get("ROUNDS", "3")))
START_S = 1_793_491_200


def main() -> int:
    if not (BENCH / "queries.json").exists():
        print(f"no generator in {BENCH}: set RESILIENCE_BENCH", file=sys.stderr)
        return 2
    say("kernel: " + _kernel())
    data = data_set.prepare(BENCH, WORK, PODS, HOURS, say)
    queries = json.loads((BENCH / "queries.json").read_text())
    span = (START_S, START_S + HOURS * 3600, STEP_S)
    answers: dict[str, Any] = {}
    shutil.rmtree(WORK / "answers", ignore_errors=True)  # of another version of ours
    programs = _programs()
    rounds = [_round(programs, data, queries, span, answers) for _ in range(ROUNDS)]
    results = {name: _least([r[name] for r in rounds]) for name in rounds[0]}
    report.table(queries, results)
    report.exactness(queries, answers, WORK / "answers")
    report.extras(_cold(data, queries, span), data, _live(data))
    if programs is not None:
        _week(programs)
    return 0


def _round(
    programs: Path | None, data: data_set.DataSet, queries: list[list[str]],
    span: tuple[int, int, int], answers: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """Measure all three once."""
    found = {"ours": _ours(data, span)}
    if programs is not None:
        with _prometheus(programs, data) as server:
            found["prometheus"] = _ask(server, queries, span, answers)
        with _victoria(programs, data) as server:
            found["victoria-metrics"] = _ask(server, queries, span, {})
    return found


def _least(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the least of each expression and of what comes before, the same for all three."""
    least = {
        kind: {query: min(r[kind][query] for r in rounds) for query in rounds[0][kind]}
        for kind in ("cpu", "wall")
    }
    before = sum(min(stage) for stage in zip(*(r["before"] for r in rounds), strict=True))
    return {**rounds[0], **least, "before": before, "peak_mib": max(r["peak_mib"] for r in rounds)}


def say(text: str) -> None:
    print(text, flush=True)


def _kernel() -> str:
    try:
        return f"compiled ({build().name})"
    except RuntimeError as error:
        return f"not compiled: {error}"


def _programs() -> Path | None:
    """Return the folder of the reference servers, unpacking them once if the tool is there."""
    if REFERENCE:
        return Path(REFERENCE) / "bin"
    tool = BENCH.parent / "tools" / "reference-servers"
    folder = WORK / "servers"
    if not tool.exists() or subprocess.run([tool, folder], check=False).returncode:
        say("no reference servers: only ours is measured (set RESILIENCE_REFERENCE)")
        return None
    return folder / "bin"


def _run(*arguments: object) -> Any:
    command = [sys.executable, *map(str, arguments)]
    start = time.perf_counter()
    # As installed: with byte code, which a variable or a fresh checkout may lack.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(WORK / "bytecode")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {**json.loads(done.stdout), "seconds": time.perf_counter() - start}


def _ms(span: tuple[int, int, int]) -> tuple[int, int, int]:
    return span[0] * 1000, span[1] * 1000, span[2] * 1000


def _ours(data: data_set.DataSet, span: tuple[int, int, int]) -> dict[str, Any]:
    answers = WORK / "answers"
    if not answers.exists():
        answers.mkdir(parents=True)
        _run(HERE / "ours.py", "range", data.recording, BENCH / "queries.json", *_ms(span), answers)
    return dict(_run(HERE / "ours.py", "range", data.recording, BENCH / "queries.json", *_ms(span)))


def _prometheus(programs: Path, data: data_set.DataSet) -> Any:
    blocks = data.blocks(programs / "promtool", say)
    config = WORK / "prometheus.yml"
    config.write_text("global: {evaluation_interval: 1m}\n")
    address = free_address()
    return serving(
        [str(programs / "prometheus"), f"--config.file={config}", f"--storage.tsdb.path={blocks}",
         f"--web.listen-address={address}", "--storage.tsdb.retention.time=100y",
         "--query.max-samples=500000000", "--log.level=error"],
        f"http://{address}", "/-/ready",
    )


def _victoria(programs: Path, data: data_set.DataSet) -> Any:
    folder, address = WORK / "victoria", free_address()
    command = [
        str(programs / "victoria-metrics"), f"-storageDataPath={folder}", "-retentionPeriod=100y",
        f"-httpListenAddr={address}", "-search.disableCache",
        "-search.maxPointsPerTimeseries=100000", "-search.maxMemoryPerQuery=4GB",
        "-search.maxSamplesPerQuery=10000000000", "-search.latencyOffset=0s",
    ]
    data.import_into_victoria(command, f"http://{address}", folder, say)
    return serving(command, f"http://{address}", "/health")


def _ask(
    server: Server, queries: list[list[str]], span: tuple[int, int, int], answers: dict[str, Any]
) -> dict[str, Any]:
    """Ask each expression once warm-up is over; CPU is the server's own."""
    server.range("up", *span)
    cpu: dict[str, float] = {}
    wall: dict[str, float] = {}
    for name, expr in queries:
        before, clock = server.cpu_s(), time.perf_counter()
        answers[name] = server.range(expr, *span)
        wall[name] = time.perf_counter() - clock
        time.sleep(0.05)
        cpu[name] = server.cpu_s() - before
    return {"cpu": cpu, "wall": wall, "peak_mib": server.peak_mib(), "before": []}


def _cold(
    data: data_set.DataSet, queries: list[list[str]], span: tuple[int, int, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, expr in queries:
        if name[:3] in ("q01", "q03", "q08", "q17"):
            runs = [
                _run(HERE / "ours.py", "cold", data.recording, expr, *_ms(span))
                for _ in range(ROUNDS)
            ]
            yield name, min(runs, key=lambda r: r["seconds"])


def _live(data: data_set.DataSet) -> dict[str, Any]:
    return dict(_run(HERE / "live.py", data.labels, BENCH / "queries.json"))


def _week(programs: Path) -> None:
    """100 policies over seven days of one server, here and as query_range calls."""
    data = data_set.prepare(BENCH, WORK / "week", 1, 168, say)
    span = (START_S, START_S + 168 * 3600, STEP_S)
    mine = _run(HERE / "ours.py", "many", data.recording, BENCH / "queries.json", *_ms(span), 100)
    from ours import varied

    queries = json.loads((BENCH / "queries.json").read_text())
    with _prometheus(programs, data) as server:
        server.range("up", *span)
        before, clock = server.cpu_s(), time.perf_counter()
        for i in range(100):
            server.range(varied(queries[i % len(queries)][1], i), *span)
        theirs = {"cpu": server.cpu_s() - before, "seconds": time.perf_counter() - clock}
    report.week(mine, theirs)


if __name__ == "__main__":
    sys.exit(main())
