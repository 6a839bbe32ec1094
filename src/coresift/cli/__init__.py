"""The command line: parse, call, print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from coresift import InputError, __version__
from coresift.cli.labelling import add_commands
from coresift.errors import cannot_write, is_full


class _Commands(TyperGroup):
    """Turns an InputError of any command, or a full disk, into one line and the exit code that it has."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            found = error
        except OSError as error:
            if not is_full(error):
                raise
            found = cannot_write(error.filename or "a file", error)
        typer.echo(f"coresift: {found}", err=True)
        raise typer.Exit(found.exit_code)


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


experiments = typer.Typer(
    no_args_is_help=True, help="Compare strategies on tables whose labels are known, over many seeds."
)
app.add_typer(experiments, name="experiment")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@experiments.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as experiments/table1.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder for results; results/CONFIG by default.")
    ] = None,
    data: Annotated[str, typer.Option(help="Only these data sets, with commas between.")] = "",
    methods: Annotated[str, typer.Option(help="Only these methods, with commas between.")] = "",
    seeds: Annotated[int | None, typer.Option(help="How many seeds, if not what the file says.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Only this one of the seeds, from 0 on, where models are trained alone."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where tables lie; CORESIFT_DATA or data by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that evaluate and choose.")] = 1,
    together: Annotated[
        bool, typer.Option("--together", help="Train all methods side by side: for a GPU.")
    ] = False,
) -> None:
    """Run an experiment; what is already there is not repeated, a run that was stopped goes on."""
    from coresift.bench.config import Experiment
    from coresift.bench.runner import resources_used, run_experiment

    experiment = Experiment.load(config).only(_names(data), _names(methods))
    if seeds is not None:
        experiment = replace(experiment, seeds=seeds)
    where = out or Path("results") / config.stem
    try:
        run_experiment(
            experiment,
            where,
            folder=folder,
            device=device,
            workers=workers,
            together=together,
            only_seed=seed,
        )
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from the last finished round", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"took {resources_used()}")
    typer.echo(f"results are in {where}; read them with: coresift experiment report {where}")


@experiments.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of results.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; the same folder by default.")] = None,
    ceiling: Annotated[
        Path | None, typer.Option(help="Another folder of results, with all labels, to compare with.")
    ] = None,
) -> None:
    """Write tables, learning curves and paired tests as a page, Markdown and figures."""
    from coresift.bench.report import write_report

    typer.echo(f"written to {write_report(folder, out, ceiling=ceiling)}")


@experiments.command()
def figure(
    name: Annotated[str, typer.Argument(help="probit-batches or linear-norms.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; NAME.png by default.")] = None,
) -> None:
    """Draw one of the paper's toy figures."""
    from coresift.bench.plane import FIGURES
    from coresift.report.figures import save

    if name not in FIGURES:
        raise InputError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}")
    path = out or Path(f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(FIGURES[name](), path)
    typer.echo(f"written to {path}")


@experiments.command(name="map")
def batch_map(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as experiments/cifar10.toml.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, with commas between; by default those of maxent, bald and acs-fw-j10 "
            "that the file has, or else all that it has."
        ),
    ] = None,
    budget: Annotated[int, typer.Option(help="Points in each batch.")] = 200,
    folder: Annotated[
        Path | None, typer.Option(help="Where images lie; CORESIFT_DATA or data by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="The file to write, beside one of data; batches-DATA.png by default.")
    ] = None,
) -> None:
    """Draw where batches lie among the features of a model trained on the first labels."""
    from coresift.bench.batch_map import BatchMap
    from coresift.bench.config import Experiment
    from coresift.report.figures import save

    experiment = Experiment.load(config)
    usual = [name for name in ("maxent", "bald", "acs-fw-j10") if name in experiment.methods]
    experiment = experiment.only((), _names(methods or "") or usual)
    if out is not None and len(experiment.data) > 1:
        raise typer.BadParameter(f"one file cannot hold the maps of {', '.join(experiment.data)}")
    for data in experiment.data:
        path = out or Path(f"batches-{data}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        simulation = experiment.simulation(data, folder, device, workers=1)
        simulation.model.set_params(progress=True)  # no bar of the runner's is there to stand for it
        found = BatchMap.of(simulation, experiment.methods, budget)
        found.save(path.with_suffix(".npz"))
        save(found.picture(), path)
        for name, value in found.spread.items():
            typer.echo(f"{data} {name}: nearest other point of the batch at {value:.3f} of random's distance")
        typer.echo(f"written to {path}")


add_commands(app)


@app.command()
def strategies() -> None:
    """List the strategies."""
    from coresift.strategies import STRATEGIES

    table = Table("strategy", "what it does")
    for name, strategy in STRATEGIES.items():
        table.add_row(name, strategy.about)
    Console().print(table)
