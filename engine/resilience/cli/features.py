"""`--enable-feature`: what is off unless it is asked for, by Prometheus' own names."""

from __future__ import annotations

import click

from resilience.model import FEATURES

features_option = click.option(
    "--enable-feature", "features", multiple=True, type=click.Choice(FEATURES),
    help="Switch on what is off by default, by the name that Prometheus has for it; may be "
    "repeated. The `enable_features` of a `kind: Engine` document do the same.",
)
