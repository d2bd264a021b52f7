"""What the schema refuses is said at its place, in the words of the person who wrote it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resilience.policy.check import CheckResult

Run = Callable[..., CheckResult]
Policy = Callable[..., str]


def said(result: CheckResult) -> list[str]:
    return [f"{f.line}:{f.column} {f.message}; {f.suggestion}" for f in result.findings]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ("[{type: throttle}]", "6:13 action `throttle` needs one of `max_concurrency`"),
        ("[{max_concurrency: 1}]", "6:13 spec.actions[0].type is required"),
        ("[{type: 3, max_concurrency: 1}]", "6:20 spec.actions[0].type must be a string"),
        ("[{throttle: {max_concurrency: 1}}]", "write the type as a value: `type: throttle`"),
        ("[3]", "6:13 spec.actions[0] must be a mapping, got integer 3"),
        ("[{type: trottle, max_concurrency: 1}]", "did you mean `throttle`?"),
        ("[{type: throttle, max_concurrency: '8'}]", "must be an integer, got string `8`; remove"),
        ("[{type: throttle, max_concurrency: 8.0}]", ""),
        ("[{type: throttle, max_concurrency: 1, with: {}}]", "unknown parameter `with` of action"),
        ("[{type: throttle, max_concurrency: 1, lease: 30}]", "`30s` for seconds"),
        ("[{type: throttle, max_concurrency: 1, lease: 0}]", "must be at least `1s`"),
        ("[{type: throttle, max_concurrency: 1, lease: 2h}]", "at most `1h`, got `2h`"),
        ("[{type: throttle, max_concurrency: 1, tier: gold}]", "6:56 spec.actions[0].tier: tier"),
        ("[{type: throttle, max_concurrency: 1, tier: bestefort}]", "did you mean `best-effort`?"),
        ("[{type: throttle, max_concurrency: 1, tier: '{{ $labels.tier }}'}]", ""),
        ("[{type: throttle, max_concurrency: 1, tier: '{{ .Tier }}'}]", "a template other than"),
        ("[{type: throttle, max_concurrency: 1, on_core_loss: kept}]", "did you mean `keep`?"),
        ("[{type: throttle, max_concurrency: 1, message: 'at {{ $value }}'}]", ""),
        ("[{type: fallback_model, to: s, share: 0}]", "must be > 0 (got 0)"),
        ("[{type: fallback_model, to: s, share: 50%}]", ""),
        ("[{type: fallback_model, to: s, share: 150%}]", "is not a share"),
        ("[{type: fallback_model, model: s}]", "did you mean `to`?"),
        ("[{type: cache_degrade}]", "needs one of `prefix_enabled`, `max_running`"),
        ("[{type: reset_prefix_cache, lease: 30s}]", "unknown parameter `lease`"),
        ("[{type: metric_emit, name: 'a b'}]", "`a b` is not a valid metric name"),
        ("[{type: metric_emit, name: resilience_x}]", "belong to the engine itself"),
        ("[{type: udf_call, function: fallback_to_cache, timeout: 3000}]", "`3000ms` for milli"),
        ("[{type: udf_call, function: fallback_to_cash}]", "did you mean `fallback_to_cache`?"),
        ("[{type: udf_call, function: nobody}]", "write `def nobody(ctx):` in a file of the UDF"),
        ("[{type: udf_call, function: ../x}]", "is not a valid function"),
        ("[{type: udf_call, function: fallback_to_cache, metrics: {a: 'sum(x['}}]", "6:78"),
        ("[{type: udf_call, function: fallback_to_cache, metrics: {a: 'up[5m]'}}]", ""),
        ("[{type: udf_call, function: fallback_to_cache, metrics: {a-b: up}}]", "a-b"),
        (
            "[{type: udf_call, function: fallback_to_cache,"
            " metrics: {a: 'up{b=\"{{ $value }}\"}'}}]",
            "expressions hold no templates",
        ),
        (
            "[{type: udf_call, function: fallback_to_cache, params: {a: ['{{ $labels.b }}']}}]",
            "constants hold no templates",
        ),
        ("throttle: {max_concurrency: 1}", "mapping values"),
    ],
)
def test_actions(run: Run, policy: Policy, actions: str, expected: str) -> None:
    result = run(policy(actions=actions))
    if not expected:
        assert not result.errors
        return
    if expected == "mapping values":
        assert [f.code for f in result.errors] == ["yaml-syntax"]
        return
    assert result.bundle is None
    assert any(expected in line for line in said(result)), said(result)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  interval: 10\n", "7:13 spec.interval is the bare number 10; write the unit: `10s`"),
        ("  interval: 0\n", "must be at least `100ms`"),
        ("  interval: 1d\n", "at most `1h`"),
        ("  mode: dry\n", "7:9 spec.mode is `dry`, not one of `enforce`, `shadow` and `off`"),
        ("  mode: false\n", 'spec.mode must be a string, got boolean false; write `"off"`'),
        ("  priority: high\n", "spec.priority must be an integer, got string `high`"),
        ("  recovery: {steps: [50%], every: 1m}\n", "must grow and end at 100%"),
        ("  recovery: {steps: [80%, 60%, 100%], every: 1m}\n", "must grow and end at 100%"),
        ("  recovery: {steps: [], every: 1m}\n", "spec.recovery.steps must not be empty"),
        ("  recovery: {steps: [0.5, 1]}\n", "7:3 spec.recovery.every is required"),
        ("  limits: {rate: [{max: 0, per: 1h}]}\n", "must be >= 1 (got 0)"),
        ("  escalation: [{after: 1m}]\n", "spec.escalation[0].actions is required"),
        ("  escalation: [{after: 0, actions: [{type: reset_prefix_cache}]}]\n", "at least `1ms`"),
        (
            "  escalation:\n  - {after: 2m, actions: [{type: reset_prefix_cache}]}\n"
            "  - {after: 1m, actions: [{type: reset_prefix_cache}]}\n",
            "9:13 spec.escalation[1].after must be later than the stage before it",
        ),
        (
            "  escalation: [{after: 1m, actions: [{type: nope}]}]\n",
            "unknown action type `nope`",
        ),
        ("  slo: {}\n", "unknown field `slo` in spec"),
        ("\u00a0 mode: shadow\n", "field `\\xa0 mode`; a blank that is none: write plain blanks"),
        ("  mod\u200be: shadow\n", "field `mod\\u200be` in spec; did you mean `mode`?"),
        ("  \u3000mode: shadow\n", "field `\\u3000mode` in spec; a blank that is none"),
        ("  max_age: 5s\n", "it belongs into `trigger`: did the indentation slip?"),
    ],
)
def test_spec(run: Run, policy: Policy, spec: str, expected: str) -> None:
    result = run(policy(spec=spec))
    assert any(expected in line for line in said(result)), said(result)
    assert result.bundle is None


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ("{expr: up == 0}", "5:3 spec.trigger.on_no_data is required; write `on_no_data:` with one "
         "of `hold`, `resolve` and `fire`"),
        ("{expr: up == 0, on_no_data: ignore}", "not one of `hold`, `resolve` and `fire`"),
        ("{expr: up == 0, on_no_data: hold, for: 5 m}", "write it without blanks: `5m`"),
        ("{expr: up == 0, on_no_data: hold, for: 90}", "`90s` for seconds"),
        ("{expr: up == 0, on_no_data: hold, max_age: 10ms}", "must be at least `1s`"),
        ("{expr: up == 0, on_no_data: hold, resolve: {for: 1m}}", "spec.trigger.resolve.expr is"),
        ("{expr: up == 0, on_no_data: hold, resolve: {expr: 'up ='}}", "spec.trigger.resolve.expr"),
        ("{expr: 3 > bool 2, on_no_data: hold}", ""),
        ("{expr: '\"text\"', on_no_data: hold}", "is a string"),
    ],
)
def test_trigger(run: Run, trigger: str, expected: str) -> None:
    text = (
        "apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: p}\nspec:\n"
        f"  trigger: {trigger}\n  actions: [{{type: throttle, max_concurrency: 1}}]\n"
    )
    result = run(text)
    if not expected:
        assert not result.errors
        return
    assert any(expected in line for line in said(result)), said(result)


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        ("kind: Policy\nmetadata: {name: p}\nspec: {}", "apiVersion is required"),
        ("apiVersion: resilience/v2\nkind: Policy", "apiVersion `resilience/v2` is not known"),
        ("apiVersion: resilience/v1\nkind: policy", "did you mean `Policy`?"),
        ("apiVersion: resilience/v1\nkind: 3", "unsupported kind integer 3"),
        ("apiVersion: v1\nkind: ConfigMap", "apiVersion `v1` (kind `ConfigMap`) is not"),
        ("hello", "document is string `hello`, need a mapping"),
        ("3", "document is integer 3"),
        ("a: 1", "no document of resilience: it lacks `apiVersion`, `kind`, `metadata` and `spec`"),
        ("policies: [{name: a}]", "1:1 this is no document of resilience"),
        ("action: []\na: 1", "unknown field `action`"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "`git lfs pull`"),
    ],
)
def test_envelope(run: Run, envelope: str, expected: str) -> None:
    assert any(expected in line for line in said(run(envelope))), said(run(envelope))


def test_all_errors_of_a_file_come_at_once(run: Run, policy: Policy) -> None:
    both = "[{type: nope}, {type: fallback_model}]"
    result = run(policy(expr="sum(", actions=both, spec="  x: 1\n"))
    assert {f.code for f in result.findings} == {
        "promql-syntax", "unknown-action", "required", "unknown-field"
    }


def test_one_bad_policy_leaves_the_others(run: Run, policy: Policy) -> None:
    result = run({"a.yaml": policy(name="a", actions="[]"), "b.yaml": policy(name="b")})
    assert result.bundle is None
    assert [p.name for p in result.policies] == ["b"]


def test_messages_are_one_line_without_control_characters(run: Run, policy: Policy) -> None:
    nasty = '"a\\nb' + "x" * 500 + '"'
    texts = (
        policy(name=nasty), policy(actions=f"[{{type: {nasty}}}]"), policy(spec=f"  {nasty}: 1\n")
    )
    for text in texts:
        for finding in run(text).findings:
            assert str(finding).isprintable()
            assert len(str(finding)) < 400


@pytest.mark.parametrize(
    ("document", "said_of_it"),
    [
        ("Policy|  for: 30s\n", "unknown field `for` in spec; it belongs into `trigger`"),
        ("Policy|  expr: up == 0\n", "unknown field `expr` in spec; it belongs into `trigger`"),
        ("Policy|  max_concurrency: 3\n", "it is a parameter of action `throttle`: did the"),
        ("Policy|  actions: [{type: throttle, params: {max_concurrency: 8}}]\n",
         "write the parameters beside `type`, without `params`"),
        ("Engine|  tenants: [{name: a, api_key: sk-1}]\n", "did you mean `key_sha256`?"),
        ("Engine|  ladder: [{name: a, kind: url, url: 'http://example.org/v1'}]\n",
         "leave out the path: write `http://HOST:PORT` alone"),
        ("Engine|  ladder: [{name: a, kind: url, url: example.org}]\n", "begin with `http://`"),
    ],
)
def test_what_stands_in_the_wrong_place(run: Run, document: str, said_of_it: str) -> None:
    kind, _, text = document.partition("|")
    head = f"apiVersion: resilience/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n{text}"
    assert any(said_of_it in line for line in said(run(head))), said(run(head))


def test_a_field_of_the_policy_among_its_metadata(run: Run) -> None:
    text = "apiVersion: resilience/v1\nkind: Policy\nmetadata: {name: a, mode: shadow}\nspec: {}\n"
    assert any("`mode` in metadata; it belongs into `spec`" in line for line in said(run(text)))
