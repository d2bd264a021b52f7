"""Every code of a finding: how severe it is, what it means, and a line that earns it.

Codes are stable: tools filter by them, comments silence them (suppress.py), and the reference page
is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilience.model import Severity


@dataclass(frozen=True, slots=True)
class Code:
    """What one code means. `example` is YAML or PromQL that gives it."""

    severity: Severity
    meaning: str
    example: str


def _e(meaning: str, example: str) -> Code:
    return Code("error", meaning, example)


def _w(meaning: str, example: str) -> Code:
    return Code("warning", meaning, example)


CODES: dict[str, Code] = {
    # the file
    "encoding": _e("The file is not UTF-8.", "a Latin-1 or UTF-16 file"),
    "unreadable": _e("A file or folder that cannot be read.", "a link that points nowhere"),
    "control-character": _e("A control character in the file or in a value.", 'name: "a\\x1b[31m"'),
    "file-too-large": _e("A file has more than 10 MiB.", "a 20 MiB file"),
    "too-many-documents": _e("More than 20,000 documents in a file.", "---"),
    "too-deep": _e("More than 64 levels of nesting.", "[[[[…]]]]"),
    "too-large": _e("Too many values, or too long a text.", "a list of 20,001 items"),
    "empty-file": _w("A file without a document.", "# only a comment"),
    "no-policy": _e("The files hold no policy.", "a file with comments only"),
    "git-conflict": _e("A merge conflict was not resolved.", "<<<<<<< HEAD"),
    # YAML
    "yaml-syntax": _e("The text is not YAML.", "for: 30s: now"),
    "yaml-duplicate-key": _e("A key stands twice in one mapping.", "{for: 1m, for: 2m}"),
    "yaml-key": _e("A key is null, a list, a mapping or an alias.", "? [a, b]"),
    "yaml-merge": _e("Merge keys are not supported.", "<<: *defaults"),
    "yaml-alias": _e("An alias without an anchor, or inside its own value.", "a: &a [*a]"),
    "yaml-tag": _e("An explicit tag other than `!!str`.", "max_concurrency: !ENV MAX"),
    "yaml-template": _e("A Helm or Go template that was not rendered.", "name: {{ .Values.name }}"),
    "yaml-ambiguous": _e(
        "YAML 1.1 and 1.2 read the value differently: booleans such as `no`, octal, hexadecimal "
        "and base-60 numbers, `1_000`, `1e3`, dates.", "to: no"),
    "number-not-finite": _e("NaN or an infinity where a number stands.", "value: .nan"),
    "number-too-large": _e("A number beyond 2^53.", "value: 99999999999999999999"),
    # shape
    "not-a-policy": _e("A document of another system.", "groups: [{name: a, rules: []}]"),
    "unknown-kind": _e("A kind that does not exist or is not supported yet.", "kind: List"),
    "unknown-field": _e("A field or parameter that does not exist.", "max_concurency: 8"),
    "required": _e("A field is missing.", "trigger: {expr: up == 0}"),
    "null": _e("A field has no value.", "expr:"),
    "type": _e("A value has the wrong type.", "max_concurrency: many"),
    "choice": _e("A word is not one of those allowed.", "mode: dry"),
    "range": _e("A number is too small or too large.", "max_concurrency: 0"),
    "empty": _e("A list or text is empty.", "actions: []"),
    "duration": _e("Not a Prometheus duration, or out of range.", "for: 5min"),
    "share": _e("Not a share above 0 and up to 1.", "share: 150%"),
    "name": _e("Not a valid name.", "name: KV pressure"),
    "format": _e("Not a valid value of its kind.", "function: ../x"),
    "schema": _e("Does not fit the schema in some other way.",
                 "a value that the schema refuses and that no other code is for"),
    # meaning
    "duplicate-name": _e("Two policies have one name.", "name: a … name: a"),
    "duplicate-engine": _e("Two documents of `kind: Engine`.", "kind: Engine"),
    "unknown-receiver": _e("A receiver that nobody defined.", "{type: notify, to: pager}"),
    "duplicate-receiver": _e("Two receivers have one name.", "receivers: [{name: log, …}]"),
    "receiver": _e("A receiver has no address, or several.", "{name: a, type: webhook}"),
    "duplicate-tier": _e("Two tiers have one name.", "tiers: [{name: a}, {name: a}]"),
    "duplicate-tenant": _e("Two tenants have one name or one key.",
                           "tenants: [{name: a}, {name: a}]"),
    "unknown-tenant": _e("A tenant that `kind: Engine` does not list.", "tenant: acme"),
    "budget": _e("A deadline or time-out of an attempt that cannot hold.",
                 "budget: {deadline: 2s, attempt_timeout: 5s}"),
    "limiter": _e("Bounds of the adaptive limiter that cannot hold.", "limiter: {min: 9, max: 3}"),
    "unknown-action": _e("A type of action that nobody provides.", "type: scale-up"),
    "unknown-tier": _e("A tier that `kind: Engine` does not define.", "tier: gold"),
    "action": _e("An action asks for what cannot be.", "{type: cache_degrade}"),
    "template": _e("A template other than `{{ $labels.NAME }}` and `{{ $value }}`.",
                   'to: "{{ .Model }}"'),
    "recovery": _e("Steps do not grow to 100%.", "steps: [80%, 60%]"),
    "escalation": _e("A stage is not later than the one before it.", "after: 1m … after: 30s"),
    "udf-missing": _e("No UDF file defines the function.", "function: nobody"),
    "udf-twice": _e("Two UDF files of one folder define the function.", "def f(ctx): …"),
    "udf-hides": Code("info", "A function hides a shipped one.", "def fallback_to_cache(ctx): …"),
    "network": _e("Not an address or CIDR.", "trusted_peers: [localhost]"),
    "secret": _e("A secret stands in the document.", "headers: {Authorization: …}"),
    "auth": _e("Authentication is incomplete or double.", "auth: {username: me}"),
    "knob-missing": _e("The core lacks the knob or impulse.", "{type: cache_degrade, …}"),
    "knob-no-progress": _e("The limit would stop all progress on this server.", "kv_blocks: 1"),
    "knob-no-memory": _w("There is no memory now for what the limit leaves.", "kv_blocks: 4096"),
    "knob-no-effect": _w("The limit is beyond what the server starts with.", "max_running: 4096"),
    "model-missing": _e("The core serves no such model.", "to: small"),
    "conflicting-claims": _w("Two actions claim one knob with one trigger.",
                             "max_concurrency: 8 … max_concurrency: 64"),
    "priority-tie": _w("Policies of the same priority want different values for one knob.",
                       "{type: fallback_model, to: a} … {type: fallback_model, to: b}"),
    "group-tie": _w("Members of a group with the same priority.",
                    "group: cache, priority: 50 … group: cache, priority: 50"),
    "group-alone": Code("info", "A group with one member.", "group: cahce"),
    "contradiction": _e("A policy that undoes or disproves itself.",
                        "guard: {expr: up == 0} of a policy that fires on up == 0"),
    "escalate-nowhere": _e("Escalation where the policy has no stage.",
                           "verify: {on_failure: escalate, …}"),
    "too-short": _w("A time in which the policy is not evaluated even once.",
                    "probe: {for: 5s, …} with interval: 15s"),
    "safety-clip": _w("A claim that the safety belts will not let through.",
                      "max_concurrency: 1"),
    "safety-off": _w("The safety belts are off.", "safety: {enabled: false}"),
    "no-effect": Code("info", "A field does nothing here.", "keep_firing_for beside resolve"),
    "escalation-no-effect": _w("A stage claims no more than what is claimed already.",
                               "max_concurrency: 4 … after 1m: max_concurrency: 8"),
    "no-runbook": _w("A disruptive action without `runbook_url`.", "{type: fallback_model, to: s}"),
    "no-resolve": _w("A disruptive action without `resolve`.", "{type: reset_prefix_cache}"),
    "no-data-fires": _w("A disruptive action that missing data sets off.", "on_no_data: fire"),
    "no-lease": _w("A disruptive action that leaves its lease to the default.",
                   "{type: fallback_model, to: s}"),
    "no-data-resolves": _w("Missing data ends a fallback, and sends requests to a server that does "
                           "not answer.", "on_no_data: resolve with fallback_model"),
    "resolve-overlaps": _w("The policy resolves while its trigger is still true.",
                           "x > 5, resolve at x < 10"),
    "condition-cannot-match": _w(
        "A `resolve`, `verify` or `guard` whose series have labels that the instances of the "
        "trigger lack, so that it speaks of none of them.",
        "expr: max by (model_name) (x) > 5, resolve: {expr: x < 3}"),
    "escalation-missing": _w("An `on_error: escalate` without an escalation.",
                             "{type: udf_call, function: f, on_error: escalate}"),
    "fallback-to-itself": _w("A fallback to the model that is in trouble.",
                             'vllm:num_requests_waiting{model_name="a"} > 5 with to: a'),
    "duplicate-rung": _e("Two rungs of one name, two of kind `cached`, or one named `ladder`.",
                         "ladder: [{name: ladder, kind: template, text: later}]"),
    "rung-fields": _e("A rung lacks what its kind needs, or has what its kind does not take.",
                      "ladder: [{name: small, kind: model}]"),
    "rung-context": _e("A rung promises more context than the core takes.", "context: 1000000"),
    "no-ladder": _e("An action goes down a ladder that is not there.",
                    "{type: fallback_model, to: ladder}"),
    "ladder-no-tools": Code("info", "Requests with tools fit no rung and stay on their model.",
                            "ladder: [{name: sorry, kind: template, text: later}]"),
    "ladder-gap": _w("Requests with much context fit no rung and stay on their model; a remark "
                     "where nobody has said how much the server takes.",
                     "ladder: [{name: small, kind: model, model: s, context: 512}]"),
    "ladder-order": _w("A rung that answers everything stands before others. Stored answers before "
                       "rungs that compute are a remark.",
                       "ladder: [{name: sorry, kind: template, text: later}, {name: small, …}]"),
    "ladder-repeats": _w("Two rungs that are the same model.",
                         "ladder: [{name: a, kind: model, model: s}, "
                         "{name: b, kind: lora, model: s}]"),
    "ladder-latency": _w("At worst a rung answers later than its tier promises.",
                         "tiers: [{name: core, p99: 1s}] … ladder: [{…, p99: 3s}]"),
    "fallback-circle": _w("Policies that fall back to each other.", "a falls back to b, b to a"),
    "short-max-age": _w("A `max_age` shorter than two scrapes.", "max_age: 1s"),
    "template-label": _w("A template names a label that the trigger's result lacks.",
                         "sum by (job) (x) > 1 with {{ $labels.pod }}"),
    # objectives
    "slo-objective": _e("An objective of 0, of 100 % or beyond, or too near to it.",
                        "objective: 100%"),
    "slo-no-window": _e("An objective without a time over which it is meant.", "objective: 99.9%"),
    "slo-no-load": _e("A latency without the load at which it is promised.",
                      "latency: {histogram: …, threshold: 200ms} without load"),
    "slo-no-exclusions": _e("An availability that does not say whether starts and reloads count.",
                            "ratio: {bad: …, total: …} without exclusions"),
    "slo-exclusion": _e("An exclusion that lacks its expression, or has one that it cannot use.",
                        "exclusions: [{type: when}]"),
    "slo-measure": _e("A metric that does not measure what is promised.",
                      "measures: end_to_end with process_cpu_seconds"),
    "slo-bucket": _e("An objective finer than the histogram's buckets.", "threshold: 1200ms"),
    "slo-no-tier": _e("A metric that does not tell tiers apart.",
                      "tier: core with vllm:e2e_request_latency_seconds"),
    "slo-indicator": _e("An indicator that is none: neither or both kinds, no plain counter.",
                        "indicator: {}"),
    "slo-alert": _e("An alert without a pace, or with an impossible one.", "alerts: {page: {…}}"),
    "slo-burn": _e("A burn rate that cannot be reached.", "objective: 90% with burn 14.4"),
    "slo-early": _w("An alert that fires while the objective is kept.",
                    "slow: {budget: 3%} in a tenth of the window"),
    "slo-window": _e("A window shorter than the scrape allows.", "window: 10m"),
    "slo-retention": _w("A window longer than the engine keeps samples.", "slow: {…} of 30d"),
    "slo-policy": Code("info", "The policy that an alert has become.", "alerts: {fast: {…}}"),
    # PromQL
    "promql-syntax": _e("The expression cannot be parsed.", "sum(up"),
    "promql-type": _e("The expression has the wrong type.", "up[5m]"),
    "promql-unsupported": _e("A feature that the evaluator lacks.", "limitk(1, up) == 0"),
    "promql-limit": _e("The expression is too long or nested too deep.", "((((…))))"),
    "promql-constant": _e("A constant with which it can never be evaluated.",
                          'label_replace(up, "a", "", "b", "(")'),
    "promql-character": _e("An invisible or deceptive character.", "a no-break space"),
    "expr-cut": _w("A comment ended the expression: ` #` of YAML, or `#` of PromQL where the lines "
                   "of the text are folded into one.", "expr: rate(x[5m]) # > 1"),
    "no-comparison": _w("True whenever a series exists.", "vllm:num_requests_waiting"),
    "constant-expr": _w("No series is read, so it is the same at all times.", "vector(1)"),
    "never-true": _w("A comparison, or comparisons together, that are never true.",
                     "x > 5 and x < 3"),
    "always-true": _w("A comparison, or comparisons together, that are always true.",
                      "x > 5 or x <= 5"),
    "bool-comparison": _w("A comparison with `bool` keeps every series, and 0 is as true as 1. "
                          "Alone it is a remark: here 0 is false, in Prometheus it fires.",
                          "vllm:num_requests_waiting > bool 5 and up == 1"),
    "argument-range": _w("A number that the function makes nothing of, such as a quantile of 95.",
                         "quantile(95, vllm:num_requests_waiting) > 5"),
    "unit-mismatch": _w("Percent against fraction, or seconds against milliseconds.",
                        "vllm:kv_cache_usage_perc > 90"),
    "sum-of-fractions": _w("A sum of shares is no share.", "sum(vllm:kv_cache_usage_perc) > 0.9"),
    "no-bucket": _w("A quantile over something else than buckets.",
                    "histogram_quantile(0.9, vllm:e2e_request_latency_seconds) > 5"),
    "lost-le": _w("An aggregation dropped `le`, or adds all buckets, which hold each other.",
                  "histogram_quantile(0.9, sum by (job) (rate(x_bucket[1m]))) > 5"),
    "quantile-of-avg": _w("A quantile over averages.",
                          "histogram_quantile(0.9, avg by (le) (rate(x_bucket[1m]))) > 5"),
    "avg-of-quantile": _w("An average or sum of quantiles.",
                          "avg(histogram_quantile(0.9, rate(x_bucket[1m]))) > 5"),
    "rate-of-sum": _w("A rate of a sum of counters, which takes each restart for a reset of all.",
                      "rate(sum(vllm:prompt_tokens_total)[5m:1m]) > 5"),
    "counter-without-rate": _w("A counter is compared as it is.", "vllm:num_preemptions_total > 5"),
    "delta-of-counter": _w("A function of gauges over a counter: a restart looks like a fall.",
                           "delta(vllm:num_preemptions_total[1m]) > 5"),
    "rate-of-gauge": _w("A rate of a gauge, or of a rate.",
                        "rate(vllm:num_requests_waiting[1m]) > 1"),
    "short-window": _w("A window of fewer than four scrapes.", "rate(x[2s]) > 1"),
    "beyond-retention": _w("The expression reads further back than the engine keeps samples, or "
                           "ahead of its time.",
                           "avg_over_time(vllm:num_requests_waiting[2w]) > 5"),
    "join-cannot-match": _w("A join by a label that one side has lost or never had, or in which "
                            "several series match one.",
                            "sum by (job) (up) > on (instance) up"),
    "histogram-base": _w("A histogram's base name, which no server exports.",
                         "rate(http_request_duration_seconds[5m]) > 2"),
    "metric-unknown": _w("A metric that is not in the catalogue.", "vllm_num_requests_waiting > 1"),
    "metric-renamed": _w("A metric has another name today.", "vllm:gpu_cache_usage_perc > 0.9"),
    "metric-removed": _w("A metric that is gone.", "vllm:num_requests_swapped > 0"),
    "metric-too-new": _w("A metric that the server's version does not have yet.",
                         "vllm:kv_cache_usage_perc > 0.9 with --target vllm@0.8"),
    "metric-foreign": _w("A metric of another serving stack than the target.",
                         "sglang:token_usage > 0.9 with --target vllm"),
    "metric-optional": _w(
        "A metric that is exported only with an option of the server or exporter; a remark unless "
        "most installations lack it.", "DCGM_FI_DEV_FB_TOTAL > 1"),
    "label-unknown": _w("A label that the metric does not have.",
                        'vllm:num_requests_waiting{finished_reason="stop"} > 1'),
    "label-value": _w("A label value that no series has: a pattern after `=`, a glob after `=~`, "
                      "a dashboard's variable, a bound that no bucket has.",
                      'vllm:num_requests_waiting{model_name="llama.*"} > 1'),
    "metric-missing": _w("The target does not export the metric; an error when it is applied to a "
                         "live server, unless `on_missing_metric: warn`.", "my_metric > 1"),
    # UDFs: what the sandbox's language layer refuses
    "udf-syntax": _e("The file is not Python.", "def f(ctx) return {}"),
    "udf-import": _e("An import of something that a UDF does not have.", "import os"),
    "udf-name": _e("A name that a UDF does not have.", "open('/etc/passwd')"),
    "udf-attribute": _e("An attribute that a UDF may not read or write.", "ctx.__class__"),
    "udf-language": _e("A part of Python that a UDF does not have.", "class A: pass"),
    "udf-literal": _e("A literal that is too large.", "10 ** 100000"),
    "udf-arguments": _e("A function that is called takes other arguments than one.",
                        "def f(ctx, more): …"),
    "udf-module-level": _e("A statement outside a function that does something.",
                           "total = 0 … total += 1"),
    "udf-duplicate": _e("A name is defined twice in one file.", "def f(ctx): … def f(ctx): …"),
    "udf-source-size": _e("A UDF file is too large.", "a 2 MiB file"),
    "udf-source-depth": _e("A UDF file is nested too deep.", "((((…))))"),
    "udf-source-character": _e("An invisible or deceptive character in a UDF file.",
                               "a right-to-left mark"),
    # policy tests
    "test-file": _e("A test file without tests, or with a second document.", "tests: []"),
    "test-series": _e("A series of a test is not in the notation, stands twice, or is read by no "
                      "expression.", "values: 1,2,3"),
    "test-name": _e("A test names a policy, knob, action, function, impulse or tier that is not "
                    "there.", "policy: kv-presure"),
    "test-case": _e("A test that can say nothing: no expectation, an impossible one, a name twice.",
                    "expect: [{at: 1m}]"),
    # comments
    "ignore-malformed": _w("A comment that should silence a warning cannot be read.",
                           "# resilience: ignore no-comparison"),
    "ignore-unused": _w("A comment that silences nothing.",
                        "# resilience: ignore no-bucket until 2030-12-31: seen"),
    "ignore-expired": _w("A comment whose end has passed.",
                         "# resilience: ignore no-bucket until 2020-01-01: seen"),
}

# Where a chapter begins, for the reference page.
CHAPTERS: dict[str, str] = {
    "encoding": "The file", "yaml-syntax": "YAML", "not-a-policy": "Shape",
    "duplicate-name": "Meaning", "promql-syntax": "PromQL and metrics", "udf-syntax": "UDFs",
    "test-file": "Policy tests", "ignore-malformed": "Comments",
}
