"""The JSON Schema of `kind: SLO`."""

from __future__ import annotations

from collections.abc import Mapping

from resilience.model import Json
from resilience.policy import fragments as f
from resilience.policy.fragments import said
from resilience.policy.histograms import MEASURES
from resilience.policy.kinds import Actions
from resilience.policy.schema import DAY_MS, envelope, policy_spec, titled

WINDOW_MAX_MS = 366 * DAY_MS
ALERTS_MAX = 10
# Fields of a policy that the objective decides; an alert takes all others as a policy does.
DERIVED = frozenset({"trigger", "interval", "on_missing_metric"})


def slo_spec(action: Json) -> Json:
    """Return `spec` of an SLO, with the schema that each action follows."""
    policy: Mapping[str, Json] = policy_spec(action)["properties"]
    alerts = f.mapping(_alert(policy), f.NAME_PATTERN, ALERTS_MAX)
    return f.record(
        {
            **_promise(),
            "alerts": said(
                alerts, "What to do when the error budget burns too fast. `fast`, `medium` and "
                "`slow` have the pace of the Google SRE workbook; any other name needs `long` and "
                "`burn` or `budget`.",
            ),
            "mode": policy["mode"],
            "interval": said(
                f.duration(100, 3_600_000),
                "How often it is evaluated. Default: by the shortest window, 1s to 15s.",
            ),
            "on_no_data": said(
                f.choice("hold", "resolve", "fire"), "As in a trigger.", "hold"
            ),
            "on_missing_metric": policy["on_missing_metric"],
        },
        ("objective", "indicator", "alerts"), "An objective, and what to do before it is missed.",
    )


def _promise() -> dict[str, Json]:
    label = f.string(f.LABEL_PATTERN, "label", 100)
    return {
        "objective": said(
            {"type": ["number", "string"], "x-type": "objective"},
            "Share of requests that must be good: more than 0 and less than 100 %, as `99.9%`.",
        ),
        "window": said(
            f.duration(60_000, WINDOW_MAX_MS),
            "Time over which the objective is meant; the burn-rate windows are scaled to it.",
        ),
        "tier": said(f.string(f.NAME_PATTERN, "name", 200), "Only requests of this SLO tier."),
        "by": said(
            f.listing(label, 0, 10), "Labels by which the objective is judged apart. Default: "
            "instance, with `tier` also tier.",
        ),
        "indicator": said(_indicator(), "What is measured: one of `ratio` and `latency`."),
        "load": said(_load(), "When the objective is promised; compulsory for a latency."),
        "exclusions": said(
            f.listing(_exclusion(), 0, 10),
            "When it is not judged; compulsory for a ratio, `[]` says never.",
        ),
    }


def _indicator() -> Json:
    selector = f.string(kind="expr", longest=2_000)
    ratio = f.record(
        {
            "good": said(selector, "Selector of the counter of good events; or give `bad`."),
            "bad": said(selector, "Selector of the counter of bad events."),
            "total": said(selector, "Selector of the counter of all events that are judged."),
        },
        ("total",),
    )
    latency = f.record(
        {
            "histogram": said(
                f.string(f.METRIC_PATTERN, "metric name", 200),
                "Base name of a histogram in seconds, without `_bucket`.",
            ),
            "labels": said(
                f.mapping(f.string(longest=200), f.LABEL_PATTERN, 20), "Only these series."
            ),
            "measures": said(
                f.choice(*MEASURES), "Which part of a request's time the objective is about."
            ),
            "threshold": said(f.duration(1, DAY_MS), "A request within it is good."),
            "buckets": said(
                f.listing(f.number(0), 1, 200),
                "Upper bounds in seconds, for a histogram that is not in the catalogue or whose "
                "server was given others.",
            ),
        },
        ("histogram", "measures", "threshold"),
    )
    return f.record({
        "ratio": said(ratio, "Good or bad events of all."),
        "latency": said(latency, "Requests within a time."),
    })


def _load() -> Json:
    bounds = f.record({
        "min": said(f.number(0), "Below it nothing is judged: a few requests prove nothing."),
        "max": said(f.number(0), "Above it nothing is promised."),
    })
    size = f.record({"max": said(f.number(1), "Mean prompt tokens of a request.")}, ("max",))
    return f.record({
        "rate": said(bounds, "Requests a second."),
        "prompt_tokens": said(size, "Size of the input."),
    })


def _exclusion() -> Json:
    return f.record(
        {
            "type": said(
                f.choice("warm_start", "weight_reload", "when"),
                "After a start; while weights are reloaded; while `expr` has a series.",
            ),
            "for": said(f.duration(0, DAY_MS), "How long after it. Default: 2m; 0s for `when`."),
            "expr": said(f.expression(), "PromQL, for `when`: any series excludes."),
        },
        ("type",),
    )


def _alert(policy: Mapping[str, Json]) -> Json:
    pace: dict[str, Json] = {
        "budget": said(f.share(), "Share of the error budget that is gone after `long`."),
        "burn": said(
            f.number(0.001, 100_000),
            "How many times faster than allowed the budget burns; instead of `budget`.",
        ),
        "long": said(f.duration(1_000, WINDOW_MAX_MS), "The window that proves it matters."),
        "short": said(
            f.duration(1_000, WINDOW_MAX_MS),
            "The window that proves it still goes on. Default: a twelfth of `long`.",
        ),
    }
    taken = {name: field for name, field in policy.items() if name not in DERIVED}
    return f.record({**pace, **taken}, ("actions",))


def slo_schema(actions: Actions) -> Json:
    """Return the complete schema of `kind: SLO`."""
    kinds = sorted(actions.items())
    choice = {
        "type": "object", "required": ["type"],
        "properties": {"type": said({"enum": [name for name, _ in kinds]}, "What to do.")},
        "allOf": [
            {
                "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/action_{name}"},
            }
            for name, _ in kinds
        ],
    }
    doc = "An objective whose error budget is watched."
    body = envelope("SLO", slo_spec({"$ref": "#/$defs/action"}), doc)
    definitions = {f"action_{name}": kind.schema() for name, kind in kinds}
    return titled("slo", "resilience SLO", {**body, "$defs": {"action": choice, **definitions}})
