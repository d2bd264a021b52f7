"""Which of a few words somebody meant who knows those of another system: by meaning, not letters.

`ignore` is spelled a little like `fire` and means the opposite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from resilience.policy.words import nearest

# Nearer than for names: of three short words, one is always somewhat near.
_CUTOFF = 0.75


def _meaning(option: str, words: str) -> list[tuple[str, str]]:
    return [(word, option) for word in words.split()]


_MEANT: dict[str, list[str]] = {}
for _word, _option in (
    # what is done when something fails; first, because others have no `skip`
    *_meaning("skip", "ignore continue pass next warn"),
    # without data: Grafana's words, Alertmanager's, and what people say
    *_meaning("hold", "ignore keep keep_last keeplast keep_state keep_last_state last last_state "
              "no_data nodata none unknown pending nothing null pause wait skip stay error "
              "unchanged freeze"),
    *_meaning("resolve", "ok normal clear resolved inactive healthy good release reset"),
    *_meaning("fire", "alerting alert firing fires fired trigger triggered"),
    # modes: Kyverno's, Gatekeeper's, Istio's
    *_meaning("shadow", "dry dry_run dryrun audit warn warning observe observing monitor test "
              "testing log logging report preview simulate simulation passive canary"),
    *_meaning("enforce", "on active enabled enable enforced enforcing live true deny block act "
              "apply production"),
    *_meaning("off", "disabled disable false inactive none paused suspended stopped"),
    # when something fails or ends
    *_meaning("escalate", "fail page raise next_stage"),
    *_meaning("baseline", "drop reset release restore revert default none clear undo"),
    *_meaning("keep", "hold stay retain leave"),
    *_meaning("rollback", "undo revert roll_back back reset"),
    *_meaning("warn", "ignore skip warning allow"),
    *_meaning("error", "fail deny refuse strict"),
    *_meaning("down", "decrease decreases lower less falls fall drop"),
    *_meaning("up", "increase increases higher more rises rise raise"),
    *_meaning("on_demand", "lazy demand later standby cold"),
    *_meaning("ahead", "eager early always start boot hot warm"),
    *_meaning("float32", "fp32 float single f32"), *_meaning("bfloat16", "bf16"),
    *_meaning("float16", "fp16 half f16"),
):
    _MEANT.setdefault(_word, []).append(_option)


def meant(word: str, options: Sequence[str]) -> str | None:
    """Return the option that `word` stands for, or that is spelled nearly like it."""
    folded = word.strip().lower().replace("-", "_").replace(" ", "_")
    by_meaning = next((o for o in _MEANT.get(folded, ()) if o in options), None)
    return by_meaning or nearest(word, options, _CUTOFF)


def advice(word: str, options: Iterable[str]) -> str | None:
    """Return a suggestion line, or None when nothing is near."""
    guess = meant(word, list(options))
    return f"did you mean `{guess}`?" if guess else None
