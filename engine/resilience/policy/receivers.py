"""`receivers` of `kind: Engine` -> model.Receiver, with the checks that a schema cannot express."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience.model import LOG_RECEIVER, Json, Receiver, labels_of, parse_duration
from resilience.policy.addresses import check_address
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.shape import locate
from resilience.policy.words import quoted

_URLS = ("url", "url_file", "url_env")
_TOKENS = ("bearer_token_file", "bearer_token_env")
_PASSWORDS = ("password_file", "password_env")


def build_receivers(raw: Sequence[Mapping[str, Json]]) -> tuple[Receiver, ...]:
    """Return the receivers of a list that `check_receivers` had nothing against."""
    return tuple(_receiver(item) for item in raw)


def _receiver(raw: Mapping[str, Json]) -> Receiver:
    plain = {k: v for k, v in raw.items() if k not in ("auth", "timeout", "labels")}
    return Receiver(
        **plain, **raw.get("auth", {}), labels=labels_of(raw.get("labels", {})),
        timeout_ms=parse_duration(raw.get("timeout", "5s")),
    )


def check_receivers(
    document: Document, raw: Sequence[Mapping[str, Json]], context: Context
) -> None:
    """Report names used twice, and addresses and secrets that are missing, double or in view."""
    names: set[str] = {LOG_RECEIVER}
    for index, item in enumerate(raw):
        name = item["name"]
        if name in names:
            _add(document, context, (index, "name"), "duplicate-receiver",
                 f"receiver {quoted(name)} is defined twice" if name != LOG_RECEIVER
                 else f"receiver {quoted(name)} is built in", "choose another name")
        names.add(name)
        _check_url(document, context, index, item)
        _check_auth(document, context, index, item.get("auth", {}))


def _check_url(
    document: Document, context: Context, index: int, item: Mapping[str, Json]
) -> None:
    given = [key for key in _URLS if key in item]
    if len(given) != 1:
        _add(document, context, (index,), "receiver",
             f"receiver {quoted(item['name'])} needs one of `url`, `url_file` and `url_env`",
             "keep one of them")
    for key in [key for key in ("url", "proxy_url") if key in item]:
        whole = key == "url" and item["type"] != "alertmanager"
        check_address(document, context, ("spec", "receivers", index, key), item[key], query=whole,
                      instead="use `auth`, or `url_file` for a URL that is a secret")


def _check_auth(
    document: Document, context: Context, index: int, auth: Mapping[str, Json]
) -> None:
    tokens = [key for key in _TOKENS if key in auth]
    passwords = [key for key in _PASSWORDS if key in auth]
    if tokens and (passwords or "username" in auth) or len(tokens) > 1:
        _add(document, context, (index, "auth"), "auth",
             "the receiver has several ways to authenticate",
             "keep one token, or user and password")
    elif ("username" in auth) != (len(passwords) == 1):
        _add(document, context, (index, "auth"), "auth",
             "basic authentication needs `username` and one of `password_file`, `password_env`",
             "give both")


def _add(
    document: Document, context: Context, path: tuple[str | int, ...], code: str, message: str,
    suggestion: str,
) -> None:
    place = locate(document, ("spec", "receivers", *path))[1]
    context.add(document, place, "error", code, message, suggestion)
