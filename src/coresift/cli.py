"""The command line: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from coresift import STRATEGIES, InputError, __version__


class _Commands(TyperGroup):
    """Turns an InputError of any command into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"coresift: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    help="Choose which points of a large unlabelled pool to label next, as a batch.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"coresift {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("coresift-demo"),
    seeds: Annotated[int, typer.Option(help="How many random splits to average over.")] = 10,
) -> None:
    """Compare random, maxent and acs-fw on a real table; writes figures and a page."""
    # Here, not above: the other commands need no plotting.
    from coresift.demo import run

    run(out, num_seeds=seeds)


@app.command()
def strategies() -> None:
    """List the strategies."""
    table = Table("strategy", "what it does")
    for name, strategy in STRATEGIES.items():
        table.add_row(name, strategy.about)
    Console().print(table)
