"""The JSON Schema of policy tests, `NAME.test.yaml`."""

from __future__ import annotations

from resilience.model import UDF_OUTCOMES, Json, Reason, State
from resilience.policy import fragments as f
from resilience.policy.fragments import said
from resilience.policy.schema import DAY_MS, titled

TESTS_MAX = 1_000
SERIES_MAX = 1_000
EXPECTATIONS_MAX = 1_000
NOTATION_MAX = 60_000
TEXT_MAX = f.TEXT_MAX
KNOB_PATTERN = r"^[a-z]+\.[a-zA-Z_:][a-zA-Z0-9_:]*$"
ACTION_PATTERN = r"^(?:[a-z][a-z0-9_-]*|(?:e[0-9]+\.)?[0-9]+)$"


def cases_schema() -> Json:
    """Return the schema of a whole file of tests."""
    return titled("test", "resilience policy tests", _body())


def _body() -> Json:
    return f.record(
        {
            "policy_files": said(
                f.listing(f.string(longest=1_000), 1, 50),
                "Policy files, relative to this one. Default: NAME.yaml beside NAME.test.yaml.",
            ),
            "interval": said(_interval(), "Time between two samples, where a test says nothing.",
                             "15s"),
            "tests": said(f.listing(_test(), 1, TESTS_MAX), "The tests, each from its own start."),
        },
        ("tests",),
        "Unit tests of policies: series in, states, claims and actions out, at given times.",
    )


def _interval() -> Json:
    return f.duration(1, DAY_MS)


def _test() -> Json:
    return f.record(
        {
            "name": said(f.string(longest=200), "What is shown, in one sentence."),
            "interval": said(_interval(), "Time between two samples. Default: the file's."),
            "input_series": said(
                f.listing(_series(), 0, SERIES_MAX),
                "The samples, at 0, one interval, two intervals… None: nothing is scraped.",
            ),
            "udf_results": said(
                f.listing(_udf_result(), 1, 100),
                "What UDFs return in this test; a function that is not listed runs in the sandbox.",
            ),
            "operator": said(
                f.listing(_operator(), 1, 100), "Break-glass: what an operator does, and when."
            ),
            "capacities": said(
                f.mapping(f.number(0), KNOB_PATTERN),
                "Finite values that recovery aims at. Default: the simulated core's.",
            ),
            "expect": said(
                f.listing(_expectation(), 1, EXPECTATIONS_MAX),
                "What must be so after the newest tick up to `at`.",
            ),
        },
        ("name", "expect"),
    )


def _series() -> Json:
    return f.record(
        {
            "series": said(
                f.string(kind="series", longest=TEXT_MAX), '`metric{label="value"}`.'
            ),
            "values": said(
                f.string(kind="values", longest=NOTATION_MAX),
                "promtool's notation: `1 2`, `1x4`, `0+10x4`, `5-1x4`, `_`, `_x3`, `stale`.",
            ),
        },
        ("series", "values"),
    )



def _udf_result() -> Json:
    return f.record(
        {
            "function": said(f.string(f.FUNCTION_PATTERN, "function", 100), "Name of the UDF."),
            "from": said(f.duration(), "From when on; a later entry replaces an earlier one.",
                         "0s"),
            "outcome": said(f.choice(*UDF_OUTCOMES), "How the call ends.", "ok"),
            "result": said({"type": "object"}, "What it returns; its `actions` are checked."),
        },
        ("function",),
    )


def _operator() -> Json:
    name = f.string(r"^(?:\*|[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?)$", "name", 200)
    return f.record(
        {
            "at": said(f.duration(), "When it counts from: the first tick at or after it."),
            "pause": said(name, "Policy to suspend, `*` for all."),
            "resume": said(name, "Policy to resume, `*` for all."),
            "for": said(f.duration(1), "How long the pause lasts. Default: until resumed."),
        },
        ("at",),
    )


def _expectation() -> Json:
    words = f.string(ACTION_PATTERN, "action", 100)
    return f.record(
        {
            "at": said(f.duration(), "Time since the start of the test."),
            "policy": said(
                f.string(f.NAME_PATTERN, "name", 200),
                "Which policy; not needed where the file tests only one.",
            ),
            "labels": said(
                f.mapping(f.string(longest=1_000), f.LABEL_PATTERN),
                "Which instance: those that have these labels. Default: all of the policy.",
            ),
            "state": said(f.choice(*(str(s) for s in State)), "State of every such instance."),
            "reason": said(f.choice(*(str(r) for r in Reason)), "Why it is there."),
            "value": said(f.number(), "Value of the trigger."),
            "claims": said(
                f.listing(_claim(), 0, 256), "All claims that the policy holds; `[]` for none."
            ),
            "actions": said(
                f.listing(words, 0, 100),
                "Types (or keys, as `e0.1`) of all actions in force; `[]` for none.",
            ),
            "impulses": said(
                f.listing(_impulse(), 0, 100),
                "All impulses that the policy has given since the start, oldest first.",
            ),
            "udf": said(
                f.listing(_udf_wanted(), 0, 50), "The UDF calls of the newest tick, all of them."
            ),
            "undone": said(
                f.boolean(), "Whether the policy fired before and has let go of everything."
            ),
            "effective": said(
                f.listing(_effective(), 1, 100),
                "Values in force once the claims of all policies are folded.",
            ),
        },
        ("at",),
    )


def _claim() -> Json:
    return f.record(
        {
            "knob": said(f.string(KNOB_PATTERN, "knob", 200), "Name of the knob."),
            "scope": said(
                f.mapping(f.string(longest=200), f.LABEL_PATTERN),
                "Where it is claimed, as `{tier: core}`. Default: everywhere.",
            ),
            "value": said({}, "The value; a mapping for `route.model`."),
        },
        ("knob", "value"),
    )


def _effective() -> Json:
    made = _claim()
    made["properties"]["value"] = said({}, "The value in force; `none` when nobody claims it.")
    return made


def _impulse() -> Json:
    return f.record(
        {
            "impulse": said(f.string(longest=100), "Name of the impulse."),
            "args": said({"type": "object"}, "Its arguments. Default: any."),
        },
        ("impulse",),
    )


def _udf_wanted() -> Json:
    return f.record(
        {
            "function": said(f.string(f.FUNCTION_PATTERN, "function", 100), "Name of the UDF."),
            "outcome": said(f.choice(*UDF_OUTCOMES), "How the call ended.", "ok"),
            "result": said(
                {"type": "object"}, "Keys of the result that must be so; others are not looked at."
            ),
        },
        ("function",),
    )
