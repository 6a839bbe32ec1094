"""The command line: parse, call, print. One module for each group of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from coresift import InputError, __version__
from coresift.cli import experiments, label_studio, projects
from coresift.errors import cannot_write, is_full


class _Commands(TyperGroup):
    """Turns an InputError of any command, or a full disk, into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            problem = error
        except OSError as error:
            if not is_full(error):
                raise
            problem = cannot_write(error.filename or "a file", error)
        typer.echo(f"coresift: {problem}", err=True)
        raise typer.Exit(problem.exit_code)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # a token may be among them
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
    from coresift.bench.demo import run

    run(out, num_seeds=seeds)


app.add_typer(experiments.commands, name="experiment")
for command in projects.COMMANDS:
    app.command()(command)
app.add_typer(label_studio.commands, name="labelstudio")


@app.command()
def strategies() -> None:
    """List the strategies."""
    from coresift.strategies import STRATEGIES

    table = Table("strategy", "what it does")
    for name, strategy in STRATEGIES.items():
        table.add_row(name, strategy.about)
    Console().print(table)
