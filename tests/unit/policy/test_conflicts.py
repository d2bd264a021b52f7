"""Which policies meet on a knob, and who wins there."""

from __future__ import annotations

from resilience.model import Action, Bundle, ClaimSpec, Escalation, Json, Labels, Policy, Trigger
from resilience.policy.conflicts import Conflict, conflicts

TIER: Labels = (("tier", "best-effort"),)


def policy(name: str, value: Json, *, knob: str = "throttle.max_concurrency", scope: Labels = TIER,
           priority: int = 50, mode: str = "enforce", group: str | None = None,
           later: Json = None) -> Policy:
    stages = () if later is None else (
        Escalation(1_000, (Action("e0.0", "x", (ClaimSpec(knob, later, scope),)),)),)
    return Policy(
        name, Trigger("up == 0", "hold"), (Action("0", "x", (ClaimSpec(knob, value, scope),)),),
        mode=mode, priority=priority, group=group, escalation=stages,  # type: ignore[arg-type]
    )


def found(*policies: Policy) -> list[Conflict]:
    return list(conflicts(Bundle("r", policies)))


def test_the_smaller_wins() -> None:
    (one,) = found(policy("b", 8), policy("a", 4), policy("c", 16, priority=90))
    assert (one.policies, one.winner, one.rule) == (("a", "b", "c"), "a", "the smaller wins")
    assert str(one) == ("`throttle.max_concurrency` for `tier=best-effort`: `a` 4, `b` 8, `c` 16: "
                        "the smaller wins; that is `a`")
    assert one.to_json()["rivals"][0] == {
        "policy": "a", "action": "0", "value": 4, "priority": 50}


def test_an_escalation_counts_with_its_strongest_wish() -> None:
    (one,) = found(policy("a", 8, later=2), policy("b", 4))
    assert one.winner == "a" and one.rivals[0].action == "e0.0"


def test_no_conflict() -> None:
    assert not found(policy("a", 4), policy("b", 4))
    assert not found(policy("a", 4), policy("b", 8, scope=()))
    assert not found(policy("a", 4), policy("b", 8, mode="off"))
    assert not found(policy("a", {"severity": "page"}, knob="notify.ops", scope=()),
                     policy("b", {"severity": "info"}, knob="notify.ops", scope=()))
    assert not found(policy("a", 4, group="g"), policy("b", 8, group="g"))
    assert found(policy("a", 4, group="g"), policy("b", 8, group="h"))
    assert not found(policy("a", 4, later=2))


def test_a_policy_in_shadow_conflicts_as_it_would_in_enforce() -> None:
    (one,) = found(policy("a", 4), policy("b", 2, mode="shadow"))
    assert (one.policies, one.winner, one.shadow) == (("a", "b"), "b", ("b",))
    assert str(one).endswith("the smaller wins; that is `b`, were `b` in enforce")
    assert one.to_json()["shadow"] == ["b"]
    (both,) = found(policy("a", 4, mode="shadow"), policy("b", 2, mode="shadow"))
    assert str(both).endswith(", were `a` and `b` in enforce")
    assert not found(policy("a", 4, group="g"), policy("b", 8, group="g", mode="shadow"))


def test_what_is_now_stands_before_what_would_be() -> None:
    now, would = found(policy("a", 4), policy("b", 8), policy("c", 2, mode="shadow"))
    assert (now.policies, now.winner, now.shadow) == (("a", "b"), "a", ())
    assert (would.policies, would.winner, would.shadow) == (("a", "b", "c"), "c", ("c",))


def test_priorities_decide_a_route_and_names_where_they_are_equal() -> None:
    def route(name: str, to: str, priority: int) -> Policy:
        return policy(name, {"to": to, "share": 1.0}, knob="route.model", priority=priority)

    (one,) = found(route("a", "small", 50), route("b", "large", 60))
    assert (one.winner, one.tie) == ("b", False)
    (tie,) = found(route("a", "small", 60), route("b", "large", 60))
    assert (tie.winner, tie.tie) == (None, True) and "the name decides" in str(tie)


def test_a_template_is_known_when_it_fires() -> None:
    (one,) = found(
        policy("a", {"to": "{{ $labels.to }}", "share": 1.0}, knob="route.model", priority=60),
        policy("b", {"to": "x", "share": 1.0}, knob="route.model"),
    )
    assert one.winner is None and not one.tie
