"""The commands of experiments: parse, call, print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from coresift.cli.common import split_names
from coresift.errors import InputError

# Imports are inside the commands: the others should not wait for them.

commands = typer.Typer(
    no_args_is_help=True, help="Compare strategies on tables whose labels are known, over many seeds."
)

Config = Annotated[Path, Argument(help="A TOML file, such as experiments/table1.toml.")]
Named = Annotated[
    str, Argument(help="A TOML file, such as experiments/table1.toml, or suite:quick, tables, large, text or oracle.")
]
Tables = Annotated[Path | None, Option(help="The folder of data files; CORESIFT_DATA or data by default.")]
Device = Annotated[str, Option(help="Where to train: cpu or cuda.")]


@commands.command()
def run(
    config: Named,
    out: Annotated[Path | None, Option(help="The folder for results; results/CONFIG by default.")] = None,
    data: Annotated[str, Option(help="Only these data sets, separated by commas.")] = "",
    methods: Annotated[str, Option(help="Only these methods, separated by commas.")] = "",
    seeds: Annotated[int | None, Option(help="The number of seeds; that of the file by default.")] = None,
    seed: Annotated[int | None, Option(help="Only this seed, if models are trained one by one.")] = None,
    folder: Tables = None,
    device: Device = "cpu",
    workers: Annotated[
        int, Option(help="Processes that evaluate and choose, or for a suite run data sets.")
    ] = 1,
    together: Annotated[bool, Option("--together", help="Train all methods together, on a GPU.")] = False,
) -> None:
    """Run an experiment or a suite. Finished runs are not repeated; a run that was stopped continues."""
    from coresift.bench.config import Experiment
    from coresift.bench.runner import resources_used, run_experiment
    from coresift.bench.suites import Suite, is_suite, run_suite

    where = out or Path("results") / Path(config.removeprefix("suite:")).stem
    chosen = split_names(data), split_names(methods)
    try:
        if is_suite(config):
            if together or seed is not None:
                raise InputError("a suite is shared out by data sets: leave out --together and --seed")
            suite = Suite.load(config).only(*chosen)
            suite = suite if seeds is None else suite.with_seeds(seeds)
            run_suite(suite, where, folder=folder, device=device, workers=workers)
        else:
            experiment = Experiment.load(Path(config)).only(*chosen)
            experiment = experiment if seeds is None else replace(experiment, seeds=seeds)
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
        typer.echo("stopped; the same command continues after the last finished round", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"took {resources_used()}")
    typer.echo(f"results are in {where}; read them with: coresift experiment report {where}")


@commands.command()
def report(
    folder: Annotated[Path, Argument(help="A folder of results.")],
    out: Annotated[Path | None, Option(help="The folder to write to; FOLDER by default.")] = None,
    ceiling: Annotated[Path | None, Option(help="Results with all labels, to be drawn as a line.")] = None,
) -> None:
    """Write tables, learning curves and paired tests as a page, Markdown and figures."""
    from coresift.bench.report import write_report
    from coresift.bench.suite_report import of_suite, write_suite_report

    if of_suite(folder):
        typer.echo(f"written to {write_suite_report(folder, out)}")
    else:
        typer.echo(f"written to {write_report(folder, out, ceiling=ceiling)}")


@commands.command()
def figure(
    name: Annotated[str, Argument(help="probit-batches or linear-norms.")],
    out: Annotated[Path | None, Option(help="The file to write; NAME.png by default.")] = None,
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


@commands.command(name="map")
def batch_map(
    config: Config,
    methods: Annotated[str, Option(help="Only these methods, separated by commas; see above.")] = "",
    budget: Annotated[int, Option(help="Points in each batch.")] = 200,
    folder: Tables = None,
    device: Device = "cpu",
    out: Annotated[Path | None, Option(help="The figure; batches-DATA.png by default.")] = None,
) -> None:
    """Draw where batches lie among the features of a model trained on the first labels.

    Methods are by default maxent, bald and acs-fw-j10, as far as the file has them, or else all. The data of
    a figure go to an .npz file next to it.
    """
    from coresift.bench.batch_map import BatchMap
    from coresift.bench.config import Experiment
    from coresift.report.figures import save

    experiment = Experiment.load(config)
    usual = [name for name in ("maxent", "bald", "acs-fw-j10") if name in experiment.methods]
    experiment = experiment.only((), split_names(methods) or usual)
    if out is not None and len(experiment.data) > 1:
        raise typer.BadParameter(f"one file cannot hold the maps of {', '.join(experiment.data)}")
    for data in experiment.data:
        path = out or Path(f"batches-{data}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        simulation = experiment.simulation(data, folder, device, workers=1)
        simulation.model.set_params(progress=True)  # the runner, which has a bar of its own, is not there
        batches = BatchMap.of(simulation, experiment.methods, budget)
        batches.save(path.with_suffix(".npz"))
        save(batches.picture(), path)
        for name, value in batches.spread.items():
            typer.echo(f"{data} {name}: nearest-neighbour distance {value:.3f} times that of random batches")
        typer.echo(f"written to {path}")
