"""Paths on the command line."""

from __future__ import annotations

from typing import Any

import click


class FilePath(click.Path):
    """A path that is named: an empty text, as an unset variable of a pipeline gives it, would be
    the current folder."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if value == "":
            self.fail("an empty text names no file or folder", param, ctx)
        return super().convert(value, param, ctx)
