"""URLs in documents: what the pattern of their schema lets through and no client can use."""

from __future__ import annotations

from resilience.addresses import holds_credentials, problem_of
from resilience.policy.context import Context
from resilience.policy.document import Document
from resilience.policy.shape import field_name, locate


def check_address(
    document: Document, context: Context, path: tuple[str | int, ...], url: str, *,
    query: bool = False, instead: str = "use `auth`",
) -> None:
    """Report an address that nobody can connect to, without its text: it may hold a secret; and
    one that does hold a user or password, with what to do `instead`.

    `query`: it is used as it is; to others a path is appended, so a query would end up inside.
    """
    problem = problem_of(url)
    if problem is None and not query and ("?" in url or "#" in url):
        problem = "holds a query or a fragment"
    if problem is not None:
        context.add(document, locate(document, path)[1], "error", "format",
                    f"{field_name('', path)}: the address {problem}", "write http://HOST:PORT")
    if holds_credentials(url):
        context.add(document, locate(document, path)[1], "error", "secret",
                    "the URL holds a user or password", instead)
