"""The values and ports that every layer shares (contracts.md, version 1).

Everything here is frozen and free of I/O. Stored and sent times are integers in epoch
milliseconds and end in `_ms`. A mapping that must be hashable travels as `Labels`: a sorted tuple
of (name, value) pairs.
"""

# What `samples` holds is handed on.
# pyright: reportUnusedImport=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

from resilience.samples import (  # noqa: F401
    DURATION_MAX_MS,
    VERSION,
    Json,
    Labels,
    QueryResult,
    RangeSample,
    Sample,
    canonical_json,
    digest16,
    format_duration,
    format_float,
    labels_of,
    parse_duration,
    parse_float,
    plain,
    without_name,
)

KnobValue: TypeAlias = bool | int | float | str | Mapping[str, Any]


@lru_cache(maxsize=65_536)
def instance_id(labels: Labels) -> str:
    """Return the identity of one trigger series: a digest of its sorted labels."""
    return digest16([list(pair) for pair in labels_of(labels)])


# --- findings ----------------------------------------------------------------------------------

Severity: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about a document, at a place that an editor can open. Lines and columns from 1."""

    file: str
    line: int
    column: int
    severity: Severity
    code: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        hint = f"; {self.suggestion}" if self.suggestion else ""
        place = f"{plain(self.file)}:{self.line}:{self.column}"
        return f"{place}: {self.severity}: {self.message}{hint} [{self.code}]"


# --- truth -------------------------------------------------------------------------------------


class Truth(StrEnum):
    """What a trigger says of one instance. `unknown` is never read as `false`."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why an instance is where it is; a closed set."""

    BREACH = "breach"
    CLEAR = "clear"
    PENDING_FOR = "pending_for"
    KEEP_FIRING = "keep_firing"
    IDLE = "idle"
    BLIND_NO_SERIES = "blind_no_series"
    BLIND_STALE = "blind_stale"
    BLIND_SOURCE_ERROR = "blind_source_error"
    BLIND_PARTIAL = "blind_partial"
    UDF_ERROR = "udf_error"
    RELAPSE = "relapse"
    OPERATOR = "operator"
    REVISION = "revision"
    WARM_UP = "warm_up"
    PROBE = "probe"
    GUARD = "guard"
    VERIFY_FAILED = "verify_failed"
    QUARANTINE = "quarantine"
    SUPERSEDED = "superseded"
    SAFETY = "safety"


class State(StrEnum):
    """The state of one instance of a policy."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RECOVERING = "recovering"
    HELD = "held"
    SUSPENDED = "suspended"


# --- samples and query results -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesTruth:
    """The truth of one instance of a trigger; `labels` without the metric name."""

    labels: Labels
    truth: Truth
    reason: Reason
    value: float | None = None


@dataclass(frozen=True, slots=True)
class QueryInput:
    """One query as a decision used it, with the time of its newest sample (None: no sample)."""

    query: str
    value: Json
    sample_ms: int | None = None

    def to_json(self) -> Json:
        return {"query": self.query, "value": self.value, "sample_ms": self.sample_ms}


@dataclass(frozen=True, slots=True)
class TriggerObservation:
    """What one expression says at one tick: known instances, or why it is unknown as a whole.

    An instance that is in neither list but in the state is unknown with reason `missing`.
    """

    series: tuple[SeriesTruth, ...] = ()
    missing: Reason = Reason.BLIND_NO_SERIES
    detail: str | None = None
    inputs: tuple[QueryInput, ...] = ()

    def of(self, labels: Labels) -> SeriesTruth:
        """Return the truth for `labels`, unknown when this observation does not know them."""
        for series in self.series:
            if series.labels == labels:
                return series
        return SeriesTruth(labels, Truth.UNKNOWN, self.missing)


# --- actions, claims, impulses -----------------------------------------------------------------

OnCoreLoss: TypeAlias = Literal["baseline", "keep"]
OnError: TypeAlias = Literal["skip", "escalate", "hold"]
OnFailure: TypeAlias = Literal["rollback", "escalate"]
LEASE_DEFAULT_MS = 30_000


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A claim that an action asks for; strings may hold templates until it is fired."""

    knob: str
    value: Json
    scope: Labels = ()


@dataclass(frozen=True, slots=True)
class ImpulseSpec:
    """An impulse that an action asks for, with JSON arguments."""

    impulse: str
    args: Json = None


@dataclass(frozen=True, slots=True)
class UdfSpec:
    """A call of a UDF that an action asks for. `metrics` are named queries, prefetched."""

    function: str
    timeout_ms: int
    metrics: tuple[tuple[str, str], ...] = ()
    params: Json = None
    on_error: OnError = "skip"


@dataclass(frozen=True, slots=True)
class Verify:
    """What must come true while the policy fires, or its work is taken back or escalated.

    `improves` None: `expr` is a condition. `down` or `up`: `expr` is a value that must move that
    way by the share `by` of what it was at the start.
    """

    expr: str
    within_ms: int
    for_ms: int = 0
    improves: Literal["down", "up"] | None = None
    by: float = 0.1
    on_failure: OnFailure = "rollback"
    quarantine_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class Guard:
    """What must not be: true undoes at once and keeps the lever shut for `quarantine_ms`."""

    expr: str
    quarantine_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class Action:
    """One checked action. `key` is its place in the policy: `0`, `1`; `e0.1` in an escalation;
    `1.0` for the first action that the UDF of action 1 proposed. `message` (may hold templates)
    says why, for people; empty: the policy's summary."""

    key: str
    type: str
    claims: tuple[ClaimSpec, ...] = ()
    impulses: tuple[ImpulseSpec, ...] = ()
    udf: UdfSpec | None = None
    lease_ms: int = LEASE_DEFAULT_MS
    on_core_loss: OnCoreLoss = "baseline"
    message: str = ""
    verify: Verify | None = None
    guard: Guard | None = None
    disruptive: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A live claim on a knob, held by one action of one firing instance."""

    policy: str
    instance: str
    action: str
    knob: str
    scope: Labels
    value: Json
    ttl_ms: int
    keep: bool
    priority: int
    revision: str
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, Labels]:
        return (self.policy, self.instance, self.action, self.knob, self.scope)

    def to_json(self) -> Json:
        return {
            "policy": self.policy,
            "instance": self.instance,
            "action": self.action,
            "knob": self.knob,
            "scope": dict(self.scope),
            "value": self.value,
            "ttl_ms": self.ttl_ms,
            "keep": self.keep,
            "priority": self.priority,
            "revision": self.revision,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, body: Json) -> Claim:
        fields: dict[str, Any] = {**body, "scope": labels_of(body["scope"])}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Impulse:
    """Something that is done at most once. `firing` numbers the firings of the instance."""

    policy: str
    instance: str
    firing: int
    action: str
    impulse: str
    args: Json = None

    @property
    def key(self) -> str:
        return digest16([self.policy, self.instance, self.firing, self.action, self.impulse])

    def to_json(self) -> Json:
        return {
            "key": self.key,
            "policy": self.policy,
            "instance": self.instance,
            "firing": self.firing,
            "action": self.action,
            "impulse": self.impulse,
            "args": self.args,
        }


# --- UDF calls and outcomes --------------------------------------------------------------------

UDF_OUTCOMES = (
    "ok",
    "COMPILE_DENIED",
    "RUNTIME_DENIED",
    "STEP_LIMIT",
    "TIMEOUT",
    "MEMORY",
    "OUTPUT_LIMIT",
    "BAD_RESULT",
    "CRASH",
    "SECCOMP_KILL",
    "QUARANTINED",
)


@dataclass(frozen=True, slots=True)
class UdfCall:
    """One call that this tick's decisions need. `context` is JSON and all that the UDF sees."""

    policy: str
    instance: str
    action: str
    function: str
    timeout_ms: int
    context: Json

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.policy, self.instance, self.action)


@dataclass(frozen=True, slots=True)
class UdfOutcome:
    """What came of one call. `actions` are the proposed ones after the same checks as YAML's."""

    policy: str
    instance: str
    action: str
    function: str
    outcome: str
    result: Json = None
    detail: str | None = None
    log: str = ""
    duration_ms: float = 0.0
    actions: tuple[Action, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.policy, self.instance, self.action)


# --- policies ----------------------------------------------------------------------------------

Mode: TypeAlias = Literal["enforce", "shadow", "off"]
OnNoData: TypeAlias = Literal["hold", "resolve", "fire"]


@dataclass(frozen=True, slots=True)
class Resolve:
    """Positive evidence that ends a firing."""

    expr: str
    for_ms: int = 0


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a policy fires. `max_age_ms` None means three scrape intervals of the source.

    `warm_up`: good samples that it takes after blindness until the trigger is believed again.
    """

    expr: str
    on_no_data: OnNoData
    for_ms: int = 0
    keep_firing_for_ms: int = 0
    resolve: Resolve | None = None
    max_age_ms: int | None = None
    warm_up: int = 1


@dataclass(frozen=True, slots=True)
class Escalation:
    """More actions once the instance has fired for `after_ms`."""

    after_ms: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Claims move towards the knob's capacity in `steps` (fractions, the last is 1)."""

    steps: tuple[float, ...]
    every_ms: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Half-open: every `after_ms` of a firing, ease the claims by `share` for `for_ms` and look;
    at most `max` times in one firing."""

    after_ms: int
    share: float = 0.1
    for_ms: int = 30_000
    max: int = 5


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `max` firings in any window of `per_ms`."""

    max: int
    per_ms: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a policy may fire. `cooldown_ms` counts from the end of a firing.

    `min_samples`: samples that must show the breach; `max_active`: instances that may fire at once
    (None: all).
    """

    cooldown_ms: int = 0
    rate: tuple[RateLimit, ...] = ()
    min_samples: int = 1
    max_active: int | None = None


@dataclass(frozen=True, slots=True)
class SloOrigin:
    """The SLO that a policy was made of. `objective` as written; `burn`: how many times faster
    than allowed the error budget burns when it fires, over both windows."""

    name: str
    objective: str
    window_ms: int
    severity: str
    burn: float
    long_ms: int
    short_ms: int

    def to_json(self) -> Json:
        return {
            "name": self.name, "objective": self.objective, "window_ms": self.window_ms,
            "severity": self.severity, "burn": self.burn, "long_ms": self.long_ms,
            "short_ms": self.short_ms,
        }


@dataclass(frozen=True, slots=True)
class Policy:
    """One checked policy. `spec_hash` covers what decides, not annotations or position."""

    name: str
    trigger: Trigger
    actions: tuple[Action, ...]
    mode: Mode = "enforce"
    interval_ms: int = 15_000
    escalation: tuple[Escalation, ...] = ()
    recovery: Recovery | None = None
    probe: Probe | None = None
    verify: Verify | None = None
    guard: Guard | None = None
    limits: Limits = Limits()
    priority: int = 50
    group: str | None = None
    labels: Labels = ()
    annotations: Labels = ()
    on_missing_metric: Literal["error", "warn"] = "error"
    spec_hash: str = ""
    file: str = ""
    line: int = 0
    slo: SloOrigin | None = None
    is_checked: bool = field(init=False, repr=False, compare=False, default=False)
    is_watched: bool = field(init=False, repr=False, compare=False, default=False)
    calls_udfs: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        """Note what the decision core asks for each instance of each tick.

        `is_watched`: something counts, looks or waits besides trigger and resolve.
        """
        own = self.verify is not None or self.guard is not None
        every = tuple(self.every_action())
        checked = own or any(a.verify is not None or a.guard is not None for a in every)
        object.__setattr__(self, "is_checked", checked)
        object.__setattr__(
            self, "is_watched", self.probe is not None or self.group is not None
            or self.limits.min_samples > 1 or self.trigger.warm_up > 1,
        )
        object.__setattr__(self, "calls_udfs", any(a.udf is not None for a in every))

    def every_action(self) -> Iterator[Action]:
        """Yield the actions, then those of each stage."""
        yield from self.actions
        for stage in self.escalation:
            yield from stage.actions

    def checks(self) -> Iterator[tuple[str, Verify | Guard]]:
        """Yield each `verify` and `guard` with the key of its action, empty for the policy's."""
        for key, pair in (("", (self.verify, self.guard)),
                          *((a.key, (a.verify, a.guard)) for a in self.every_action())):
            yield from ((key, check) for check in pair if check is not None)

    def expressions(self) -> Iterator[str]:
        """Yield every PromQL expression of the policy, those of its UDF calls too."""
        yield self.trigger.expr
        if self.trigger.resolve is not None:
            yield self.trigger.resolve.expr
        yield from (check.expr for _, check in self.checks())
        for action in self.every_action():
            if action.udf is not None:
                yield from (expr for _, expr in action.udf.metrics)


@dataclass(frozen=True, slots=True)
class Tier:
    """One SLO tier. Objectives: `p99_ms` None means no bound; `success` is a share 0..1.

    `priority` (lower goes first) None: by the tier's place in the list. A request waits in the
    gate's queue for at most `queue_timeout_ms`. `deadline_ms` None: the budget's own.
    """

    name: str
    success: float = 0.95
    p99_ms: int | None = None
    max_concurrency: int | None = None
    priority: int | None = None
    queue_timeout_ms: int = 5_000
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TierSource:
    """How a request gets its tier and tenant: headers, believed only from these peers (CIDRs)."""

    header: str = "x-slo-tier"
    trusted_peers: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    default: str = "best-effort"
    tenant_header: str = "x-tenant"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant: the SHA-256 of its API keys (hex), its tier, its weight, its own caps."""

    name: str
    tier: str | None = None
    key_sha256: tuple[str, ...] = ()
    share: float = 1.0
    max_concurrency: int | None = None
    max_outstanding_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The gate's queue. `max_waiting` 0: nobody waits. `ageing_ms` of waiting make up for one step
    of priority; None: strict priorities."""

    max_waiting: int = 0
    ageing_ms: int | None = 5_000


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What one request may spend: time, attempts, and how long its result is kept for duplicates.

    The first back-off is up to `backoff_ms`, each later one up to twice the last. `attempt_ms`
    None: an attempt may take what is left. `keep_ms` 0: no result is kept.
    """

    deadline_ms: int = 8_000
    attempts: int = 3
    backoff_ms: int = 100
    attempt_ms: int | None = None
    request_id_header: str = "x-request-id"
    keep_ms: int = 30_000
    keep_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LimiterSettings:
    """The adaptive limit on requests in flight: its targets (None: not looked at) and bounds.

    `headroom` is the share of the server's seats that only the first tier may take."""

    queue_time_ms: int | None = 500
    time_per_token_ms: int | None = None
    kv_usage: float | None = 0.95
    increase: float = 0.15
    decrease: float = 0.1
    minimum: int = 1
    maximum: int = 1_000
    headroom: float | None = None


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """Where and how to ask a Prometheus-compatible server. Secrets come from files, never here."""

    url: str
    headers: Labels = ()
    username: str | None = None
    password_file: str | None = None
    bearer_token_file: str | None = None
    ca_file: str | None = None
    timeout_ms: int = 5_000
    scrape_interval_ms: int = 15_000


LOG_RECEIVER = "log"
# Fields of a decision record that can be masked as a whole; the others say what was decided.
MASKED_FIELDS = ("inputs", "labels", "note", "udf", "value")
MASKED = "***"


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where `notify` sends. Secrets come from files or the environment, never from here.

    Exactly one of `url`, `url_file` and `url_env` is set, but for `type` log, which has none.
    """

    name: str
    type: Literal["alertmanager", "webhook", "log"]
    url: str | None = None
    url_file: str | None = None
    url_env: str | None = None
    bearer_token_file: str | None = None
    bearer_token_env: str | None = None
    username: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    ca_file: str | None = None
    proxy_url: str | None = None
    timeout_ms: int = 5_000
    send_resolved: bool = True
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Safety:
    """The belts that hold whatever policies say. Shares are of a knob's capacity.

    `capacity_removed`: how much all claims on one knob may take together; `core_floor`: what the
    first tier's concurrency keeps at least; `disruptive_per_hour`: disruptive actions begun in any
    hour, by all policies together.
    """

    enabled: bool = True
    capacity_removed: float = 0.95
    core_floor: float = 0.1
    disruptive_per_hour: int = 30


RungKind = Literal["model", "lora", "engine", "url", "cached", "template"]
LADDER = "ladder"                       # `to: ladder` of `fallback_model`: the whole of it


@dataclass(frozen=True, slots=True)
class SecondEngineSettings:
    """How the server runs a second engine of its own for a rung.

    `start` `ahead`: with the server; `on_demand`: when a claim first leads there, until
    `stop_after_ms` after the last one. `kv_mebibytes` is vLLM's pool, `memory_mebibytes` what must
    be free before it starts (None: estimated).
    """

    core: Literal["vllm", "torch"] = "vllm"
    start: Literal["ahead", "on_demand"] = "on_demand"
    seats: int = 4
    dtype: str = "auto"
    kv_mebibytes: int = 512
    memory_mebibytes: int | None = None
    start_timeout_ms: int = 300_000
    stop_after_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of the fallback ladder: what answers instead, and what that was measured to cost.

    `model` is what it serves (model, lora; engine: the folder or name that is loaded; url: None
    leaves the request's own), `context` the most tokens of prompt and output together (None: not
    known). `timeout_ms` is the time to the first byte, of another server to the end of an answer
    that is no stream. `throughput` in output tokens/s, `p99_ms`
    to the first token, `quality` a share 0..1.
    """

    name: str
    kind: RungKind
    model: str | None = None
    url: str | None = None
    text: str | None = None
    context: int | None = None
    tools: bool = False
    timeout_ms: int | None = None
    max_age_ms: int = 300_000
    max_bytes: int = 16 * 1024 * 1024
    throughput: float | None = None
    p99_ms: int | None = None
    quality: float | None = None
    engine: SecondEngineSettings | None = None

    @property
    def served_name(self) -> str | None:
        """Return the model that its requests ask for; None leaves the request's own."""
        return self.name if self.kind == "engine" else self.model


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When the core calls itself unwell. One block is allocated `every_ms`; `times` in a row above
    `slow_ms` mean the conservative path. `stuck_ms` without a token while requests run, `blind_ms`
    without an answer of the engine process."""

    every_ms: int = 30_000
    slow_ms: int = 85
    times: int = 2
    stuck_ms: int = 15_000
    blind_ms: int = 5_000


# Characters of the reason that an operator gives for an intervention.
REASON_MAX = 500

# What an Engine document or the command line may switch on; Prometheus' own names.
EXPERIMENTAL_FUNCTIONS = "promql-experimental-functions"
FEATURES = (EXPERIMENTAL_FUNCTIONS,)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`kind: Engine`: everything that is not a policy."""

    tiers: tuple[Tier, ...] = (
        Tier("core", 0.999, 100),
        Tier("elastic", 0.99, 500),
        Tier("best-effort", 0.95, None),
    )
    tier_source: TierSource = TierSource()
    tenants: tuple[Tenant, ...] = ()
    queue: QueueSettings = QueueSettings()
    limiter: LimiterSettings | None = None
    budget: BudgetSettings | None = None
    ladder: tuple[Rung, ...] = ()
    scrape_interval_ms: int = 1_000
    retention_ms: int = 3_600_000
    job: str = "vllm"
    prometheus: PrometheusAccess | None = None
    sandbox_require: tuple[str, ...] = ("seccomp", "no_new_privs", "rlimits")
    sandbox_allow_weak: bool = False
    udf_quarantine_after: int = 3
    max_series: int = 20_000
    max_claims: int = 256
    max_instances: int = 1_000
    on_drift: Literal["correct", "leave"] = "correct"
    health: HealthSettings = HealthSettings()
    receivers: tuple[Receiver, ...] = ()
    mask_labels: tuple[str, ...] = ()
    mask_fields: tuple[str, ...] = ()
    record_max_bytes: int = 32 * 1024 * 1024
    record_files: int = 3
    safety: Safety = Safety()
    enable_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """A whole checked revision: policies, configuration and UDF sources, swapped atomically."""

    revision: str
    policies: tuple[Policy, ...]
    config: EngineConfig = EngineConfig()
    documents: tuple[tuple[str, str], ...] = ()
    udfs: tuple[tuple[str, str], ...] = ()
    git_commit: str | None = None


def revision_of(documents: Iterable[tuple[str, str]], udfs: Iterable[tuple[str, str]]) -> str:
    """Return `sha256:` + 12 hex digits over the sorted (path, content) of documents and UDFs."""
    body = [sorted(map(list, documents)), sorted(map(list, udfs))]
    import hashlib

    return "sha256:" + hashlib.sha256(canonical_json(body).encode()).hexdigest()[:12]


# --- decisions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of state or claims, or one impulse, with everything that explains it."""

    t_ms: int
    revision: str
    policy: str
    spec_hash: str
    instance: str
    labels: Labels
    value: float | None
    truth: Truth
    reason: Reason
    from_state: State
    to_state: State
    clocks: tuple[tuple[str, int | None], ...] = ()
    claims_before: tuple[Claim, ...] = ()
    claims_after: tuple[Claim, ...] = ()
    actions: tuple[str, ...] = ()
    impulses: tuple[Impulse, ...] = ()
    inputs: tuple[QueryInput, ...] = ()
    udf: tuple[Json, ...] = ()
    held_from: State | None = None
    mode: Mode = "enforce"
    note: str | None = None

    @property
    def id(self) -> str:
        return digest16([self.revision, self.policy, self.instance, self.t_ms, self.to_state.value])

    def to_json(self) -> Json:
        return {
            "id": self.id,
            "t_ms": self.t_ms,
            "revision": self.revision,
            "policy": self.policy,
            "spec_hash": self.spec_hash,
            "instance": self.instance,
            "labels": dict(self.labels),
            "value": self.value,
            "truth": self.truth.value,
            "reason": self.reason.value,
            "from": self.from_state.value,
            "to": self.to_state.value,
            "clocks": dict(self.clocks),
            "claims_before": [c.to_json() for c in self.claims_before],
            "claims_after": [c.to_json() for c in self.claims_after],
            "actions": list(self.actions),
            "impulses": [i.to_json() for i in self.impulses],
            "inputs": [i.to_json() for i in self.inputs],
            "udf": list(self.udf),
            "held_from": self.held_from.value if self.held_from else None,
            "mode": self.mode,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Execution:
    """What the bus did for the decisions of one tick; never part of "byte for byte"."""

    decision_id: str | None
    t_ms: int
    epoch: int
    generation: int
    attempt: int
    read_back: Json = None
    error: str | None = None
    duration_ms: float = 0.0
    trace_id: str | None = None

    def to_json(self) -> Json:
        return {
            "decision_id": self.decision_id,
            "t_ms": self.t_ms,
            "epoch": self.epoch,
            "generation": self.generation,
            "attempt": self.attempt,
            "read_back": self.read_back,
            "error": self.error,
            "duration_ms": self.duration_ms,
            "trace_id": self.trace_id,
        }


# --- observations of one tick ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """Break-glass: `pause` suspends a policy (None: all) until `until_ms`; `resume` ends it."""

    kind: Literal["pause", "resume"]
    policy: str | None
    until_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Observations:
    """All that `needs()` and `decide()` may see of the world at one tick.

    `checks` holds what `verify` and `guard` expressions say, by (policy, expression).
    """

    triggers: Mapping[str, TriggerObservation] = field(default_factory=dict)
    resolves: Mapping[str, TriggerObservation] = field(default_factory=dict)
    queries: Mapping[str, QueryResult] = field(default_factory=dict)
    udfs: Mapping[tuple[str, str, str], UdfOutcome] = field(default_factory=dict)
    capacities: Mapping[str, float] = field(default_factory=dict)
    operator: tuple[OperatorEvent, ...] = ()
    checks: Mapping[tuple[str, str], TriggerObservation] = field(default_factory=dict)


# --- the core's documents ----------------------------------------------------------------------

_Types: TypeAlias = Mapping[str, tuple[type, ...]]
_ANY = (object,)
_NUMBER = (int, float, type(None))
_ACTUAL: _Types = {
    "epoch": (int,), "generation": (int,), "effective": (Mapping,), "dropped": (list, tuple),
}
_EFFECTIVE: _Types = {
    "value": _ANY, "policy": (str, type(None)), "remaining_ms": (int, type(None)),
}
_KNOB: _Types = {
    "grade": (str,), "baseline": _ANY, "capacity": _NUMBER, "minimum": _NUMBER, "fits": _NUMBER,
}
_CAPABILITIES: _Types = {
    "version": (int,), "core": (str,), "core_version": (str,), "knobs": (Mapping,),
    "impulses": (list, tuple), "models": (list, tuple), "dropped": (list, tuple),
    "epoch": (int,), "generation": (int,),
}


def _fields(body: Json, types: _Types) -> Mapping[str, Any]:
    """Return `body` if it has exactly these fields; raises ValueError that names the wrong one."""
    fields = _map(body)
    for name in sorted(types.keys() ^ fields.keys()):
        raise ValueError(f"{'no' if name in types else 'unknown'} field `{name}`")
    for name, allowed in types.items():
        if not isinstance(fields[name], allowed):
            raise ValueError(f"field `{name}` is a {type(fields[name]).__name__}")
    return fields


def _map(body: Json) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise ValueError(f"a {type(body).__name__} instead of an object")
    return body


@dataclass(frozen=True, slots=True)
class Desired:
    """The whole list of live claims, as the engine sends it to the core."""

    epoch: int
    generation: int
    claims: tuple[Claim, ...] = ()
    version: int = VERSION

    def to_json(self) -> Json:
        return {
            "version": self.version,
            "epoch": self.epoch,
            "generation": self.generation,
            "claims": [
                {
                    "knob": c.knob,
                    "scope": dict(c.scope),
                    "value": c.value,
                    "ttl_ms": c.ttl_ms,
                    "keep": c.keep,
                    "policy": c.policy,
                    "reason": c.reason,
                    "priority": c.priority,
                }
                for c in self.claims
            ],
        }


@dataclass(frozen=True, slots=True)
class Effective:
    """The folded value of one knob in one scope. `policy` None: the baseline, nobody claims it."""

    value: Json
    policy: str | None = None
    remaining_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Actual:
    """What the core says is in force. `effective` maps knob -> scope text -> Effective.

    The text of a scope is `tier=core`, several joined by `,` in order of name; "" is everywhere.
    Only what is claimed is listed. `released` is {t_ms, reason} while an operator has released the
    core, so that it takes no claims; JSON has it only then.
    """

    epoch: int
    generation: int
    effective: Mapping[str, Mapping[str, Effective]] = field(default_factory=dict)
    dropped: tuple[Json, ...] = ()
    released: Json | None = None

    def to_json(self) -> Json:
        released = {} if self.released is None else {"released": dict(self.released)}
        return {
            **released,
            "epoch": self.epoch,
            "generation": self.generation,
            "effective": {
                knob: {
                    scope: {"value": e.value, "policy": e.policy, "remaining_ms": e.remaining_ms}
                    for scope, e in scopes.items()
                }
                for knob, scopes in self.effective.items()
            },
            "dropped": list(self.dropped),
        }

    @classmethod
    def from_json(cls, body: Json) -> Actual:
        """Raises ValueError for an unknown, missing or mistyped field."""
        released = _map(body).get("released")
        _fields({k: v for k, v in body.items() if k != "released"}, _ACTUAL)
        effective = {
            knob: {scope: Effective(**_fields(e, _EFFECTIVE)) for scope, e in _map(scopes).items()}
            for knob, scopes in body["effective"].items()
        }
        return cls(
            body["epoch"], body["generation"], effective, tuple(body["dropped"]),
            None if released is None else _map(released),
        )


@dataclass(frozen=True, slots=True)
class KnobCapability:
    """What this core can do with one knob. `grade`: gate | attribute | subclass | engine.

    `fits` is the most that its memory had room for when it was asked; None: nothing limits it.
    """

    grade: str
    baseline: Json = None
    capacity: float | None = None
    minimum: float | None = None
    fits: float | None = None


def _knob_capability(body: Json) -> KnobCapability:
    return KnobCapability(**_fields({"fits": None, **_map(body)}, _KNOB))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the core reports at start: levers, their grades, and why others were dropped."""

    core: str
    core_version: str
    knobs: Mapping[str, KnobCapability] = field(default_factory=dict)
    impulses: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    dropped: tuple[Json, ...] = ()
    epoch: int = 0
    generation: int = 0

    def to_json(self) -> Json:
        return {
            "version": VERSION,
            "core": self.core,
            "core_version": self.core_version,
            "knobs": {
                k: {
                    "grade": c.grade,
                    "baseline": c.baseline,
                    "capacity": c.capacity,
                    "minimum": c.minimum,
                    **({} if c.fits is None else {"fits": c.fits}),
                }
                for k, c in self.knobs.items()
            },
            "impulses": list(self.impulses),
            "models": list(self.models),
            "dropped": list(self.dropped),
            "epoch": self.epoch,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, body: Json) -> Capabilities:
        """Raises ValueError for another version, an unknown, missing or mistyped field."""
        _fields(body, _CAPABILITIES)
        if body["version"] != VERSION:
            raise ValueError(f"version `{body['version']}` is not known, only {VERSION} is")
        return cls(
            body["core"],
            body["core_version"],
            {k: _knob_capability(c) for k, c in body["knobs"].items()},
            tuple(body["impulses"]),
            tuple(body["models"]),
            tuple(body["dropped"]),
            body["epoch"],
            body["generation"],
        )


# --- ports: synchronous, with a deadline -------------------------------------------------------


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return wall-clock time, epoch ms."""
        ...

    def monotonic_ms(self) -> int:
        """Return a clock that never jumps, ms."""
        ...


class Source(Protocol):
    """Where series come from. An error of one query is in its result, never an exception."""

    @property
    def scrape_interval_ms(self) -> int:
        """The interval of the samples, for `max_age`'s default."""
        ...

    def seq(self) -> int:
        """Return the sequence number of the newest stored batch (0: none or not applicable)."""
        ...

    def query(
        self, exprs: Sequence[str], t_ms: int, *, seq: int, deadline_ms: int
    ) -> Mapping[str, QueryResult]:
        """Evaluate instant queries at `t_ms` over the batches up to `seq`; one result for each."""
        ...

    def metric_names(self, *, deadline_ms: int) -> frozenset[str]:
        """Return the metric names that the source knows now; raises SourceError."""
        ...


class Core(Protocol):
    """The serving core. Every call raises CoreError; none blocks past `deadline_ms`."""

    def capabilities(self, *, deadline_ms: int) -> Capabilities: ...

    def put_desired(self, desired: Desired, *, deadline_ms: int) -> Actual: ...

    def actual(self, *, deadline_ms: int) -> Actual: ...

    def impulse(self, key: str, impulse: str, args: Json, *, epoch: int, deadline_ms: int) -> Json:
        """Do it at most once for `key`; a repeat returns the stored result."""
        ...


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One row: `kind` (state, decision, intent, execution, impulse, bundle, operator), its key and
    JSON body. `body` None deletes the row of that (kind, key)."""

    kind: str
    key: str
    body: Json


class Journal(Protocol):
    """Durable intent. `append` returns only when the batch is on disk, all or nothing."""

    def append(self, batch: Sequence[JournalEntry]) -> None: ...

    def load(self, kind: str) -> Mapping[str, Json]:
        """Return the newest body of each key of `kind`, oldest first."""
        ...

    def compact(self, *, now_ms: int) -> None: ...


class UdfRunner(Protocol):
    """Runs UDFs in the sandbox. Never raises for a failing UDF: its outcome says so."""

    def run(self, calls: Sequence[UdfCall], *, deadline_ms: int) -> Sequence[UdfOutcome]: ...


class Files(Protocol):
    """What the engine writes beside the journal: streams of JSON lines, bounded and rotated."""

    def append_line(self, name: str, line: str) -> None: ...
