"""What a UDF proposes -> actions, by the same checks as what YAML says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from resilience.model import Action, Json
from resilience.policy.action_build import build_action, check_action, template_problems
from resilience.policy.context import Context
from resilience.policy.document import Document, Place
from resilience.policy.judges import shown
from resilience.policy.kinds import JUDGED, Actions
from resilience.policy.shape import Shaper

PROPOSED_MAX = 20


def proposed_actions(result: Json, action: Action, catalogue: Actions) -> tuple[Action, ...]:
    """Return the actions that a UDF's result proposes, checked like those written in YAML.

    They take the calling action's lease and on_core_loss unless they have their own. Raises
    ValueError with the reason when any of them cannot be.
    """
    if result is None:
        return ()
    if not isinstance(result, Mapping):
        raise ValueError(f"a UDF returns a mapping, got {shown(result)}")
    proposals = result.get("actions")
    if proposals is None:
        return ()
    if not isinstance(proposals, list | tuple):
        raise ValueError(f"`actions` must be a list, got {shown(proposals)}")
    if len(proposals) > PROPOSED_MAX:
        raise ValueError(f"{len(proposals)} actions, the limit is {PROPOSED_MAX}")
    return tuple(
        _proposed(item, index, action, catalogue) for index, item in enumerate(proposals)
    )


def _proposed(item: Json, index: int, action: Action, catalogue: Actions) -> Action:
    if not isinstance(item, dict):
        raise ValueError(f"actions[{index}] must be a mapping, got {shown(item)}")
    if item.get("type") == "udf_call":
        raise ValueError(f"actions[{index}]: a UDF cannot propose another `udf_call`")
    nowhere = Document("", 1, Place(1, 1), item, "")
    shaper = Shaper(nowhere, catalogue)
    if not check_action(item, ("actions", index), shaper, Context(catalogue)):
        first = shaper.findings[0] if shaper.findings else None
        reason = first.message if first else f"actions[{index}] needs `type`"
        hint = f"; {first.suggestion}" if first and first.suggestion else ""
        raise ValueError(reason + hint)
    kind = catalogue[item["type"]]
    for key in JUDGED:
        if key in item:
            raise ValueError(f"actions[{index}].{key}: only an action of the policy may have it")
    for key, why in template_problems(kind, item):
        raise ValueError(f"actions[{index}].{key}: {why}")
    try:
        made = build_action(
            kind, item, f"{action.key}.{index}", action.lease_ms, action.on_core_loss
        )
    except ValueError as error:
        raise ValueError(f"actions[{index}]: {error}") from None
    return made if made.message else replace(made, message=action.message)
