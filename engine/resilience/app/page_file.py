"""Writes a report's page: its style and script lie beside `report/page.py`."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from resilience.app.replaceable import check_place
from resilience.errors import UsageError
from resilience.report.page import page
from resilience.report.summary import Report

BEGINS = b"<!doctype html"


def check_page(path: Path) -> None:
    """Raise UsageError where a page cannot be written: better before a long run than after it."""
    check_place(path, lambda head: head.lower().startswith(BEGINS), "HTML page", "--html")


def write_page(path: Path, report: Report) -> int:
    """Write the page to `path` as a whole or not at all; returns its size in bytes.

    Raises UsageError if it cannot be written.
    """
    folder = files("resilience") / "report"
    css = (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    body = page(report, css, script).encode("utf-8", errors="replace")
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_bytes(body)
        os.replace(fresh, path)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise UsageError(f"the page `{path}` cannot be written: {reason}") from error
    return len(body)
