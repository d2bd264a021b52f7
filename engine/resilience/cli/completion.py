"""`resilience completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import shutil

import click
from click.shell_completion import get_completion_class

from resilience.errors import UsageError

VARIABLE = "_RESILIENCE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash   eval "$(resilience completion bash)"     in ~/.bashrc
    zsh    eval "$(resilience completion zsh)"      in ~/.zshrc, after compinit
    fish   resilience completion fish > ~/.config/fish/completions/resilience.fish
    """
    if shell == "bash" and shutil.which("bash") is None:
        raise UsageError("`bash` is not on the PATH: its version decides how completion works")
    made = get_completion_class(shell)
    if made is None:
        raise UsageError(f"no completion for `{shell}`")
    group = context.find_root().command
    click.echo(made(group, {}, "resilience", VARIABLE).source())
