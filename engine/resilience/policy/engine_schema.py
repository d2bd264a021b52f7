"""The JSON Schema of `kind: Engine`."""

from __future__ import annotations

from resilience.model import FEATURES, MASKED_FIELDS, Json
from resilience.policy import fragments as f
from resilience.policy.fragments import said
from resilience.policy.ladder_schema import rung
from resilience.policy.schema import DAY_MS, envelope, titled


def engine_schema() -> Json:
    """Return the complete schema of `kind: Engine`."""
    spec = f.record(_of_requests() | _of_engine(), doc="What the engine keeps to.")
    return titled(
        "engine", "resilience engine configuration",
        envelope("Engine", spec, "Configuration of the engine; at most one in a folder."),
    )


def _of_requests() -> dict[str, Json]:
    """What the gate does with each request."""
    return {
        "tiers": said(
            f.listing(_tier(), 1, 20),
            "SLO tiers, most important first. Default: core, elastic, best-effort.",
        ),
        "tier_source": said(_tier_source(), "How a request gets its tier and its tenant."),
        "tenants": said(
            f.listing(_tenant(), 0, 1_000), "Who shares the server. Requests of nobody listed "
            "here count together, as tenant `other`.",
        ),
        "queue": said(_queue(), "Where requests wait that may not run yet."),
        "limiter": said(
            _limiter(), "A limit on requests in flight that finds its own value. Default: none."
        ),
        "budget": said(
            _budget(), "What one request may spend: time, attempts, and one result for all its "
            "duplicates. Default: no deadline, one attempt, nothing kept.",
        ),
        "ladder": said(
            f.listing(rung(), 0, 20), "What may answer instead of the model that is asked for, "
            "best first: the rungs that `fallback_model` names, or goes down with `to: ladder`."
        ),
    }


def _of_engine() -> dict[str, Json]:
    """How the engine sees, acts and bounds itself."""
    return {
        "scrape": said(_scrape(), "How the co-located server's metrics are read."),
        "prometheus": said(
            _prometheus(), "Ask this server instead of the embedded evaluator."
        ),
        "enable_features": said(
            f.listing(f.choice(*FEATURES), 0, len(FEATURES)),
            "What is off by default, by the names that Prometheus has for it. "
            "`promql-experimental-functions`: expressions may use functions such as "
            "`double_exponential_smoothing`; a server named under `prometheus` needs it, too.",
        ),
        "sandbox": said(_sandbox(), "What confines UDFs."),
        "receivers": said(
            f.listing(_receiver(), 0, 20), "Where the action `notify` sends. Built in: `log`."
        ),
        "records": said(_records(), "Decision records and other lines in the state folder."),
        "core": said(_core(), "How the serving core is driven."),
        "safety": said(
            _safety(), "Belts that hold whatever policies say; all are on by default."
        ),
        "limits": said(_engine_limits(), "Bounds on what the engine keeps and claims."),
    }


def _tier() -> Json:
    return f.record(
        {
            "name": said(f.string(f.NAME_PATTERN, "name", 200), "Name of the tier."),
            "success": said(f.share(), "Objective: share of requests that succeed.", "95%"),
            "p99": said(
                f.duration(1, 3_600_000), "Objective: 99th percentile of the time to the first "
                "token. Default: no bound.",
            ),
            "max_concurrency": said(
                f.integer(minimum=1), "Requests in flight without any policy. Default: no limit."
            ),
            "priority": said(
                f.integer(-1_000, 1_000), "Who goes first, in the gate's queue and in the server's "
                "scheduler: lower numbers. Default: 0, 10, 20… by the place in this list.",
            ),
            "queue_timeout": said(
                f.duration(0, 600_000), "How long a request waits in the gate's queue at most; 0 "
                "refuses it at once.", "5s",
            ),
            "deadline": said(
                f.duration(10, 3_600_000), "Deadline of its requests. Default: the one of `budget`."
            ),
        },
        ("name",),
    )


def _tenant() -> Json:
    return f.record(
        {
            "name": said(f.string(f.NAME_PATTERN, "name", 200), "Name of the tenant."),
            "tier": said(
                f.string(f.NAME_PATTERN, "name", 200),
                "Tier of its requests, unless a trusted peer names another. Default: the default "
                "tier.",
            ),
            "key_sha256": said(
                f.listing(f.string(r"^[0-9a-f]{64}$", "SHA-256 digest", 64), 0, 20),
                "SHA-256 of its API keys, in hex: `printf %s KEY | sha256sum`. Keys themselves are "
                "never written here.",
            ),
            "share": said(
                f.number(0.001, 1_000), "Weight against other tenants of its tier in the queue.",
                1.0,
            ),
            "max_concurrency": said(
                f.integer(minimum=1), "Its requests in flight. Default: no limit."
            ),
            "max_outstanding_tokens": said(
                f.integer(minimum=1), "Prompt and output tokens of its requests in flight. "
                "Default: no limit.",
            ),
        },
        ("name",),
    )


def _queue() -> Json:
    return f.record(
        {
            "max_waiting": said(
                f.integer(0, 100_000), "Requests that may wait; 0 refuses at once instead.",
                0,
            ),
            "ageing": said(
                f.duration(0, 3_600_000), "Waiting time that makes up for one step of priority; 0 "
                "is strict priority.", "5s",
            ),
        }
    )


def _budget() -> Json:
    return f.record(
        {
            "deadline": said(
                f.duration(10, 3_600_000), "Time from a request's arrival to its whole answer; of "
                "a stream, to its first byte and between any two later ones.", "8s",
            ),
            "attempts": said(
                f.integer(1, 3), "How often a request may be given to the server in all.", 3
            ),
            "backoff": said(
                f.duration(1, 60_000), "Most that the first retry waits; each later one, up to "
                "twice as long. The wait is drawn between 0 and that.", "100ms",
            ),
            "attempt_timeout": said(
                f.duration(10, 3_600_000), "Most that one attempt takes to its first byte. "
                "Default: what is left of the deadline.",
            ),
            "request_id_header": said(
                f.string(r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$", "header name", 100),
                "Request header by which duplicates are known.", "x-request-id",
            ),
            "keep_results": said(
                f.duration(0, 600_000), "How long a good result is kept for duplicates; 0: "
                "duplicates are requests like others.", "30s",
            ),
            "results_mebibytes": said(
                f.integer(1, 4_096), "Memory for results; the oldest leave first.", 64
            ),
        }
    )


def _limiter() -> Json:
    return f.record(limiter_fields())


def limiter_fields() -> dict[str, Json]:
    """Return the fields of the adaptive limiter, of the document and of the action alike."""
    return {
        "queue_time": said(
            f.duration(1, 600_000), "Mean wait inside the server above which the limit shrinks.",
            "500ms",
        ),
        "time_per_token": said(
            f.duration(1, 600_000), "Mean gap between output tokens above which it shrinks. "
            "Default: not looked at.",
        ),
        "kv_usage": said(f.share(), "Share of the KV cache in use above which it shrinks.", "95%"),
        "increase": said(f.share(), "How much it grows in an interval of a second.", "15%"),
        "decrease": said(f.share(), "How much it shrinks in such an interval.", "10%"),
        "min": said(f.integer(1, 1_000_000), "The least that it lets run.", 1),
        "max": said(f.integer(1, 1_000_000), "The most that it lets run.", 1_000),
        "headroom": said(
            f.share(), "Share of what may run that only the first tier takes, up to 90%. "
            "Default: none.",
        ),
    }


def _tier_source() -> Json:
    return f.record(
        {
            "header": said(
                f.string(r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$", "header name", 100),
                "Request header that names the tier.", "x-slo-tier",
            ),
            "trusted_peers": said(
                f.listing(f.string(kind="network", longest=60), 0, 50),
                "Networks (CIDR) whose header is believed. Default: loopback.",
            ),
            "default": said(
                f.string(f.NAME_PATTERN, "name", 200), "Tier of every other request.", "best-effort"
            ),
            "tenant_header": said(
                f.string(r"^[A-Za-z0-9!#$%&'*+.^_|~-]+$", "header name", 100),
                "Request header that names the tenant, believed like `header`.", "x-tenant",
            ),
        }
    )


def _scrape() -> Json:
    return f.record(
        {
            "interval": said(f.duration(100, 300_000), "Time between two scrapes.", "1s"),
            "retention": said(
                f.duration(60_000, 7 * DAY_MS), "How far back samples are kept in memory.", "1h"
            ),
            "job": said(f.string(longest=200), "Value of the label `job`.", "vllm"),
        }
    )


def _prometheus() -> Json:
    path = f.string(longest=1_000)
    auth = f.record(
        {
            "username": said(f.string(longest=200), "User of basic authentication."),
            "password_file": said(path, "File that holds the password."),
            "bearer_token_file": said(path, "File that holds the token."),
        }
    )
    return f.record(
        {
            "url": said(f.string(r"^https?://[^\s/]", "URL", 1_000), "Base URL of the API."),
            "headers": said(
                f.mapping(f.string(longest=1_000), r"^[A-Za-z0-9-]+$", 20),
                "More headers, such as X-Scope-OrgID. Secrets belong into `auth`.",
            ),
            "auth": said(auth, "Secrets are read from files, never written here."),
            "ca_file": said(path, "Certificate authority that signs the server's certificate."),
            "timeout": said(f.duration(100, 60_000), "Limit of one query.", "5s"),
            "scrape_interval": said(
                f.duration(1_000, 3_600_000), "The server's own scrape interval.", "15s"
            ),
        },
        ("url",),
    )


def _sandbox() -> Json:
    layer = f.choice("seccomp", "no_new_privs", "rlimits", "landlock", "namespaces", "uid")
    return f.record(
        {
            "require": said(
                f.listing(layer, 0, 6), "Layers without which UDFs are refused. Default: seccomp, "
                "no_new_privs, rlimits.",
            ),
            "allow_weak": said(
                f.boolean(), "Run UDFs even where a required layer is missing.", False
            ),
        }
    )


def _receiver() -> Json:
    path, variable = f.string(longest=1_000), f.string(r"^[A-Za-z_][A-Za-z0-9_]*$", "name", 200)
    auth = f.record(
        {
            "username": said(f.string(longest=200), "User of basic authentication."),
            "password_file": said(path, "File that holds the password."),
            "password_env": said(variable, "Environment variable that holds the password."),
            "bearer_token_file": said(path, "File that holds the token."),
            "bearer_token_env": said(variable, "Environment variable that holds the token."),
        }
    )
    url = f.string(r"^https?://[^\s/]", "URL", 1_000)
    return f.record(
        {
            "name": said(f.string(f.NAME_PATTERN, "name", 63), "Name of the receiver."),
            "type": said(
                f.choice("alertmanager", "webhook"),
                "`alertmanager`: its API v2; `webhook`: one POST in the format that Alertmanager "
                "sends to webhooks (version 4).",
            ),
            "url": said(
                url, "Base URL of Alertmanager, or the whole URL of the webhook. One that is "
                "itself a secret belongs into `url_file` or `url_env`.",
            ),
            "url_file": said(path, "File that holds the URL."),
            "url_env": said(variable, "Environment variable that holds the URL."),
            "auth": said(auth, "Secrets are read from files or the environment, never written "
                         "here."),
            "ca_file": said(path, "Certificate authority that signs the server's certificate."),
            "proxy_url": said(url, "HTTP proxy on the way."),
            "timeout": said(f.duration(100, 60_000), "Limit of one try.", "5s"),
            "send_resolved": said(f.boolean(), "Also tell when it is over.", True),
            "labels": said(
                f.mapping(f.string(longest=200), f.LABEL_PATTERN, 20),
                "Labels added to every alert, such as the cluster.",
            ),
        },
        ("name", "type"),
    )


def _records() -> Json:
    mask = f.record(
        {
            "labels": said(
                f.listing(f.string(f.LABEL_PATTERN, "label name", 200), 0, 50),
                "Labels whose value is replaced by `***` wherever it stands in a record.",
            ),
            "fields": said(
                f.listing(f.choice(*MASKED_FIELDS), 0, len(MASKED_FIELDS)),
                "Fields of a decision that are replaced by `***` as a whole.",
            ),
        }
    )
    return f.record(
        {
            "max_mebibytes": said(
                f.integer(1, 1_024), "Size at which a file is moved aside and a new one begun.", 32
            ),
            "files": said(f.integer(2, 100), "Files of one kind that are kept.", 3),
            "mask": said(mask, "What records do not show: files, `get`, `explain` and the output "
                         "of `serve` and of a dry run. The journal and recordings hold it."),
        }
    )


def _core() -> Json:
    return f.record(
        {
            "on_drift": said(
                f.choice("correct", "leave"),
                "When somebody changes the claims in the core by hand: `correct` restores what the "
                "policies claim, `leave` only reports it until the policies' claims change.",
                "correct",
            ),
            "health": said(
                _health(), "When the core calls itself unwell. The server that is started takes "
                "these; a change takes effect at its next start.",
            ),
        }
    )


def _health() -> Json:
    return f.record(
        {
            "allocation_every": said(
                f.duration(1_000, 3_600_000), "How often the allocation of one block is timed.",
                "30s",
            ),
            "allocation_slow": said(
                f.duration(1, 60_000), "An allocation that takes longer is slow.", "85ms"
            ),
            "allocation_times": said(
                f.integer(1, 100), "So many slow ones in a row: garbage is collected, and the "
                "core takes the conservative path until one is fast.", 2,
            ),
            "stuck_after": said(
                f.duration(1_000, 3_600_000), "Time without a token, while requests run, after "
                "which the core is stuck.", "15s",
            ),
            "blind_after": said(
                f.duration(1_000, 3_600_000), "Time without an answer of the engine process after "
                "which the core is blind.", "5s",
            ),
        }
    )


def _safety() -> Json:
    return f.record(
        {
            "enabled": said(f.boolean(), "Whether the belts hold at all.", True),
            "capacity_removed": said(
                f.share(), "Share of a knob's capacity that all policies together may take away.",
                "95%",
            ),
            "core_floor": said(
                f.share(), "Share of the capacity that the first tier always keeps: no limit on "
                "it, or on all requests, goes below.", "10%",
            ),
            "disruptive_per_hour": said(
                f.integer(0, 10_000),
                "Disruptive actions that may begin in any hour, of all policies together.", 30,
            ),
        }
    )


def _engine_limits() -> Json:
    return f.record(
        {
            "series": said(f.integer(100, 10_000_000), "Series in memory.", 20_000),
            "claims": said(f.integer(1, 256), "Live claims.", 256),
            "instances": said(f.integer(1, 100_000), "Instances of all policies.", 1_000),
            "udf_quarantine_after": said(
                f.integer(1, 1_000), "Failures in a row after which a UDF is not called again.", 3
            ),
        }
    )
