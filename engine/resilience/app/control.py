"""The control API, version 1: what the command line asks a running engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from resilience.app import breaker_events, views
from resilience.app.bundles import Sources
from resilience.app.candidates import Candidates
from resilience.app.explaining import standing
from resilience.app.http import Request, Response, Route
from resilience.app.journal import KEEP_ROWS
from resilience.app.metrics import CONTENT_TYPE
from resilience.app.operations import Operations
from resilience.app.runtime import Runtime
from resilience.errors import ControlError, CoreError
from resilience.model import (
    EXPERIMENTAL_FUNCTIONS,
    REASON_MAX,
    VERSION,
    Json,
    QueryResult,
    format_float,
)

DECISIONS_MAX = 1_000
EXECUTIONS_MAX = 100
BREAKERS_MAX = 100
HISTORY_MAX = 200
QUERY_DEADLINE_MS = 10_000
EXPR_MAX = 16_384
TIME_MAX_MS = 2**53
# Parameters of the query by route; any other is refused, so that a slip never applies a bundle.
PARAMETERS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("GET", "decisions"): ("since_ms", "policy", "limit"),
    ("GET", "executions"): ("limit",),
    ("GET", "history"): ("limit",),
    ("PUT", "bundle"): ("dry_run", "allow_missing_metrics", "shadow"),
}


def routes(runtime: Runtime) -> list[Route]:
    """Return the routes of the Unix socket."""
    control = Control(runtime)
    table: list[tuple[str, str, Callable[[Request], Json]]] = [
        ("GET", "status", control.status),
        ("GET", "policies", control.policies),
        ("GET", "claims", control.claims),
        ("GET", "capabilities", control.capabilities),
        ("GET", "gate", control.gate),
        ("GET", "ladder", control.ladder),
        ("GET", "udfs", control.udfs),
        ("GET", "decisions", control.decisions),
        ("GET", "decisions/([0-9a-f]{4,16})", control.decision),
        ("GET", "executions", control.executions),
        ("GET", "history", control.history),
        ("GET", "bundle", control.bundle),
        ("PUT", "bundle", control.put_bundle),
        ("POST", "bundle/rollback", control.rollback),
        ("GET", "canary", control.canary),
        ("POST", "canary/promote", control.promote),
        ("POST", "canary/discard", control.discard),
        ("POST", r"policies/([^/]{1,80})/pause", control.pause),
        ("POST", r"policies/([^/]{1,80})/resume", control.resume),
        ("POST", "query", control.query),
        ("POST", "recordings", control.recordings),
    ]
    return [
        Route(method, f"/v1/{path}", _json(handle, PARAMETERS.get((method, path), ())))
        for method, path, handle in table
    ]


def public_routes(runtime: Runtime) -> list[Route]:
    """Return the routes of `--listen`: metrics and health, nothing that changes anything."""

    def metrics(request: Request) -> Response:
        return Response(200, runtime.metrics.exposition(), CONTENT_TYPE)

    return [
        Route("GET", "/metrics", metrics),
        Route("GET", "/-/healthy", lambda request: _health(runtime.overview.healthy(), "healthy")),
        Route("GET", "/-/ready", lambda request: _health(runtime.overview.ready(), "ready")),
    ]


def _health(why: str | None, word: str) -> Response:
    return Response.text(f"{word}\n") if why is None else Response.text(f"not {word}: {why}\n", 503)


def _json(
    handle: Callable[[Request], Json], parameters: Collection[str]
) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        for name in sorted(request.query.keys() - set(parameters)):
            known = ", ".join(f"`{p}`" for p in parameters) or "none"
            raise ControlError(
                f"unknown parameter `{name}`; this path takes {known}", code="bad_request"
            )
        return Response.of_json({"version": VERSION, **handle(request)})

    return answer


class Control:
    """One method for each route; each returns a JSON object without its `version`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._parts = runtime.parts
        self._operations = Operations(runtime)
        self._candidates = Candidates(runtime)

    def status(self, request: Request) -> Json:
        return self._runtime.overview.status()

    def policies(self, request: Request) -> Json:
        overview = self._runtime.overview
        return {"policies": overview.policies(), "belts": overview.belts()}

    def claims(self, request: Request) -> Json:
        return {"claims": self._runtime.overview.claims()}

    def capabilities(self, request: Request) -> Json:
        capabilities = self._parts.bus.capabilities
        if capabilities is None:
            raise ControlError("no core is attached", code="no_core", status=503)
        body: Json = capabilities.to_json()
        return body

    def gate(self, request: Request) -> Json:
        """What the core's gate does now: in flight, waiting, breakers and their last changes."""
        if self._parts.gate is None:
            raise ControlError("this core has no gate", code="no_gate", status=503)
        try:
            body = self._parts.gate()
        except CoreError as error:
            raise ControlError(str(error), code="no_core", status=503) from error
        return {"now_ms": self._parts.clock.now_ms(), "gate": body}

    def ladder(self, request: Request) -> Json:
        """The rungs with their measured cost, who routes to them, and whether they are served."""
        core, parts = self._parts.bus.capabilities, self._parts
        served = None if core is None else core.models
        claims, rungs = self._runtime.overview.claims(), parts.engine.bundle.config.ladder
        engines = self._engines() if any(rung.kind == "engine" for rung in rungs) else None
        return {"ladder": views.ladder(rungs, claims, served, engines)}

    def _engines(self) -> Json:
        """Return by rung how its second engine is; None while the core does not say."""
        try:
            return None if self._parts.gate is None else self._parts.gate().get("engines")
        except CoreError:
            return None

    def udfs(self, request: Request) -> Json:
        quarantined = self._parts.udfs.quarantined()
        return {"udfs": views.udfs(self._parts.engine.bundle, quarantined)}

    def decisions(self, request: Request) -> Json:
        """`since_ms`, `policy` and `limit` choose; the newest ones, oldest first."""
        found = self._parts.journal.recent(
            "decision", limit=request.number("limit", 100, DECISIONS_MAX),
            since_ms=request.number("since_ms", 0, 2**62), policy=request.query.get("policy"),
        )
        mask = self._runtime.mask()
        return {"decisions": [mask.of(d) for d in found]}

    def decision(self, request: Request) -> Json:
        """One decision by its id, or by the beginning of it, with what the bus did."""
        found = self._parts.journal.recent("decision", limit=2, key_prefix=request.parts[0])
        if not found:
            raise ControlError(
                f"no decision `{request.parts[0]}`; `resilience get decisions` lists them",
                code="not_found", status=404,
            )
        if len(found) > 1:
            raise ControlError(
                f"`{request.parts[0]}` fits several decisions; write more of it", code="ambiguous"
            )
        executions = self._parts.journal.recent(
            "execution", limit=EXECUTIONS_MAX, key_prefix=f"{found[0]['id']}/"
        )
        bundle = self._parts.engine.bundle
        policy = next((p for p in bundle.policies if p.name == found[0]["policy"]), None)
        now = standing(
            found[0], bundle, self._runtime.overview.snapshot(), self._parts.clock.now_ms())
        slo = policy.slo.to_json() if policy is not None and policy.slo is not None else None
        mask = self._runtime.mask()
        told = [mask.of(e) for e in executions]
        return {
            "decision": mask.of(found[0]), "executions": told, "slo": slo, "now": mask.of(now),
            "breakers": [mask.of(e) for e in self._breakers(found[0])],
        }

    def _breakers(self, decision: Json) -> list[Json]:
        """Return what the breakers did that a decision armed, while it was the last word."""
        armed = breaker_events.armed_scopes(decision)
        if not armed:
            return []
        later, events = (
            self._parts.journal.recent(
                kind, limit=KEEP_ROWS[kind], since_ms=decision["t_ms"], policy=decision["policy"])
            for kind in ("decision", breaker_events.KIND)
        )
        return breaker_events.of_decision(
            decision, later, [e for e in events if e["scope"] in armed])[-BREAKERS_MAX:]

    def executions(self, request: Request) -> Json:
        limit = request.number("limit", 100, DECISIONS_MAX)
        mask = self._runtime.mask()
        found = self._parts.journal.recent("execution", limit=limit)
        return {"executions": [mask.of(e) for e in found]}

    def history(self, request: Request) -> Json:
        """Bundles, operator events and what breakers did, newest last, and the revisions that can
        be gone back to."""
        limit, mask = request.number("limit", 50, HISTORY_MAX), self._runtime.mask()
        found = [
            event for kind in ("bundle", "operator", breaker_events.KIND)
            for event in self._parts.journal.recent(kind, limit=limit)
        ]
        events = [mask.of(e) for e in sorted(found, key=lambda e: e["t_ms"])[-limit:]]
        return {"events": events, "kept": self._parts.bundles.revisions()}

    def bundle(self, request: Request) -> Json:
        bundle = self._parts.engine.bundle
        return {
            "revision": bundle.revision, "git_commit": bundle.git_commit,
            "documents": [list(d) for d in bundle.documents],
            "udfs": [list(u) for u in bundle.udfs],
        }

    def put_bundle(self, request: Request) -> Json:
        """Make a bundle the active one, or with `shadow` the candidate."""
        if request.flag("shadow"):
            if _revision(request) is not None:
                raise ControlError("a candidate takes no If-Match", code="bad_request")
            answer: Json = self._candidates.begin(
                Sources.from_json(request.json()), dry_run=request.flag("dry_run"),
                allow_missing=request.flag("allow_missing_metrics"),
            )
            return answer
        body: Json = self._operations.apply(
            Sources.from_json(request.json()), if_match=_revision(request),
            dry_run=request.flag("dry_run"), allow_missing=request.flag("allow_missing_metrics"),
        )
        return body

    def canary(self, request: Request) -> Json:
        return {"canary": self._candidates.view()}

    def promote(self, request: Request) -> Json:
        """`revision`, if given, must be the candidate's."""
        body = _object(request, {"revision"})
        answer: Json = self._candidates.promote(_text(body, "revision"))
        return answer

    def discard(self, request: Request) -> Json:
        body = _object(request, {"revision"})
        answer: Json = self._candidates.discard(_text(body, "revision"))
        return answer

    def rollback(self, request: Request) -> Json:
        """To `revision`, or to the one that was active before."""
        body = _object(request, {"revision"})
        sources = self._parts.bundles.load(_text(body, "revision") or self._previous())
        answer: Json = self._operations.apply(
            sources, if_match=_revision(request), allow_missing=True, action="rollback"
        )
        return answer

    def _previous(self) -> str:
        active = self._parts.engine.bundle.revision
        for row in reversed(self._parts.journal.recent("bundle", limit=HISTORY_MAX)):
            if row["revision"] != active:
                return str(row["revision"])
        raise ControlError("there is no earlier bundle to go back to", code="not_found", status=404)

    def pause(self, request: Request) -> Json:
        body = _object(request, {"for_ms", "reason"})
        for_ms = body.get("for_ms")
        if for_ms is not None and (isinstance(for_ms, bool) or not isinstance(for_ms, int)):
            raise ControlError("`for_ms` is a whole number", code="bad_request")
        return self._operations.pause(request.parts[0], for_ms, _reason(body))

    def resume(self, request: Request) -> Json:
        body = _object(request, {"reason"})
        return self._operations.resume(request.parts[0], _reason(body))

    def query(self, request: Request) -> Json:
        """Evaluate `expr` at `time_ms` (now) with the engine's own source."""
        from resilience.promql.failing import located_result
        from resilience.promql.parser import parse

        body = _object(request, {"expr", "time_ms", "enable_features"})
        expr, time_ms = body.get("expr"), body.get("time_ms")
        if not isinstance(expr, str) or not 0 < len(expr) <= EXPR_MAX:
            raise ControlError("`expr` is a PromQL expression", code="bad_request")
        if time_ms is None:
            time_ms = self._parts.clock.now_ms()
        if isinstance(time_ms, bool) or not isinstance(time_ms, int) or abs(time_ms) > TIME_MAX_MS:
            raise ControlError("`time_ms` is a time in epoch milliseconds", code="bad_request")
        features = body.get("enable_features") or self._parts.engine.bundle.config.enable_features
        if not isinstance(features, list | tuple):
            raise ControlError("`enable_features` is a list of names", code="bad_request")
        parse(expr, experimental=EXPERIMENTAL_FUNCTIONS in features)
        source = self._parts.source
        results = source.query([expr], time_ms, seq=source.seq(), deadline_ms=QUERY_DEADLINE_MS)
        return {"time_ms": time_ms, "result": _result(located_result(results[expr], expr))}

    def recordings(self, request: Request) -> Json:
        """`{action: start, path}` begins a recording, `{action: stop}` ends it."""
        body = _object(request, {"action", "path"})
        return self._operations.record(_text(body, "action"), body.get("path"))


def _revision(request: Request) -> str | None:
    value = request.headers.get("if-match")
    return None if value is None else value.strip().strip('"')


def _object(request: Request, keys: set[str]) -> dict[str, Json]:
    body = request.json()
    if not isinstance(body, dict) or not set(body) <= keys:
        names = ", ".join(f"`{k}`" for k in sorted(keys))
        raise ControlError(f"the body is an object of {names}", code="bad_request")
    return body


def _text(body: Mapping[str, Json], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ControlError(f"`{name}` is a text", code="bad_request")
    return value or ""


def _reason(body: Mapping[str, Json]) -> str:
    """Return what people are shown later, in tables and on terminals: one plain line."""
    reason = _text(body, "reason").strip()
    if len(reason) > REASON_MAX or not reason.isprintable():
        raise ControlError(
            f"`reason` is one line of at most {REASON_MAX} characters", code="bad_request")
    return reason


def _result(result: QueryResult) -> Json:
    return {
        "kind": result.kind, "error": result.error, "warnings": list(result.warnings),
        "text": result.text,
        "samples": [{"labels": dict(s.labels), "value": _number(s.value)} for s in result.samples],
        "ranges": [
            {"labels": dict(r.labels), "times_ms": list(r.times_ms),
             "values": [_number(v) for v in r.values]}
            for r in result.ranges
        ],
    }


def _number(value: float) -> Json:
    return value if math.isfinite(value) else format_float(value)
