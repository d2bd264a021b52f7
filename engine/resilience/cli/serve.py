"""`resilience serve`: the engine beside a server that it starts or takes over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resilience.cli import timeline
from resilience.cli.connect import duration_ms
from resilience.cli.output import emit_line, note, output_option
from resilience.cli.paths import FilePath
from resilience.model import VERSION, Json
from resilience.policy.words import counted

if TYPE_CHECKING:
    from resilience.app.prepare import Report

SERVER_ARGS = "resilience.server"


class _Serve(click.Command):
    """Keeps what follows `--` for the server: MODEL could otherwise not be told from RULES."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            end = args.index("--")
            ctx.meta[SERVER_ARGS] = tuple(args[end + 1:])
            args = args[:end]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- MODEL ARGS..."]


@click.command("serve", cls=_Serve)
@click.argument("rules", required=False, type=FilePath(path_type=Path))
@click.option("--udfs", "udf_dirs", multiple=True, type=FilePath(path_type=Path), metavar="DIR",
              help="Folder of UDFs; default: `udfs/` in or beside RULES, then the shipped ones.")
@click.option("--config", type=FilePath(path_type=Path), metavar="FILE",
              help="A `kind: Engine` document outside RULES.")
@click.option("--state", type=FilePath(path_type=Path), metavar="DIR",
              help="State folder. [env: RESILIENCE_STATE; default: ~/.local/state/resilience]")
@click.option("--socket", type=FilePath(path_type=Path), metavar="PATH",
              help="Control socket. [env: RESILIENCE_SOCKET; default: engine.sock in the state]")
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics, /-/healthy and /-/ready.")
@click.option("--prometheus", metavar="URL",
              help="Ask this server instead of scraping: Prometheus, Thanos, Mimir, "
              "VictoriaMetrics.")
@click.option("--record", type=FilePath(path_type=Path), metavar="FILE",
              help="Record samples and events into this file.")
@click.option("--attach", metavar="URL", help="Take over a running server instead.")
@click.option("--token-file", type=FilePath(path_type=Path), metavar="FILE",
              help="Token of the server; default: core.token in the state folder.")
@click.option("--keep-server", is_flag=True, help="Let the server run on when the engine stops.")
@click.option("--wait", metavar="DURATION",
              help="How long the server may take to answer. [default: 10m; 0 with --attach]")
@click.option("--allow-missing-metrics", is_flag=True,
              help="Accept policies whose metrics the server does not export.")
@click.option("--watch", is_flag=True, help="Apply every change of RULES, each as a whole.")
@click.option("--core", default="vllm", show_default=True, metavar="KIND",
              help="What to start: vllm, or torch on machines without vLLM.")
@output_option
@click.pass_context
def command(
    ctx: click.Context, rules: Path | None, udf_dirs: tuple[Path, ...], config: Path | None,
    state: Path | None, socket: Path | None, listen: str | None, prometheus: str | None,
    record: Path | None, attach: str | None, token_file: Path | None, keep_server: bool,
    wait: str | None, allow_missing_metrics: bool, watch: bool,
    core: str, output: str,
) -> int:
    """Start vLLM (or another core) with MODEL and ARGS, and drive it by RULES.

    Without RULES the bundle that was applied last is used. The server outlives a crash of the
    engine; `--attach` takes it over. With `-o json` each event is a line on stdout.
    """
    from resilience.app.prepare import Settings
    from resilience.app.serve import serve

    settings = Settings(
        rules, udf_dirs, config, state, socket, listen, prometheus, record, attach, token_file,
        ctx.meta.get(SERVER_ARGS, ()), keep_server,
        None if wait is None else duration_ms(wait, "`--wait`"), allow_missing_metrics, watch,
        core,
    )
    return serve(settings, _report(output))


def _report(output: str) -> Report:
    from resilience.app.prepare import Report

    if output == "json":
        return Report(
            lambda text: emit_line({"version": VERSION, "event": "log", "text": text}),
            lambda body: emit_line({"version": VERSION, **body}),
        )
    return Report(_say, _event)


def _say(text: str) -> None:
    note(f"{timeline.clock(time.time_ns() // 1_000_000)}  {text}")


def _event(body: Json) -> None:
    if body["event"] == "decision":
        note(timeline.decision(body["decision"]))
        return
    parts = [f"ready: {counted(body['policies'], 'policy')}, {body['revision']}, "
             f"server at {body['url']}"]
    if body["listen"]:
        parts.append(f"metrics at http://{body['listen']}/metrics")
    parts.append(f"control socket {body['socket']}")
    _say(", ".join(parts))
