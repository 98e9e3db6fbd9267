"""The command line: each command is one call into the package."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from hetinfer import paths
from hetinfer.errors import InputError
from hetinfer.notebooks import NotebookError

if TYPE_CHECKING:
    from hetinfer.fleet.demand_file import DemandFile

USAGE_ERROR = 2
TERMINATED = 143

app = typer.Typer(
    name="hetinfer",
    help="Reproduce, extend and question a study of RTX 4090 clusters against the H100.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _root() -> None:
    """Every number carries its evidence: printed, recorded, measured, simulated or reference."""


@app.command()
def claims(
    id: Annotated[str, typer.Option(help="One claim, such as S06, with its cells.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="As CSV, every column.")] = False,
) -> None:
    """Judge every printed claim by the data: verdict, number, condition."""
    from hetinfer import claims as judged_claims

    fleets = judged_claims.load_fleets(paths.default_build_dir())
    judged = judged_claims.judge_claims(judged_claims.load_study(fleets=fleets))
    if id:
        typer.echo(judged_claims.as_text(judged_claims.find_judgement(judged, id)))
        return
    table = judged_claims.claim_table(judged)
    typer.echo(table.to_csv(index=False) if csv else judged_claims.table_text(table))


@app.command(hidden=True)
def run(
    notebook: Path,
    build_dir: Annotated[Path, typer.Option(help="Where its output goes.")],
    size: Annotated[str, typer.Option(help="default, kick or full.")] = "default",
) -> None:
    """Run one notebook (what make calls for each chapter), and say how long it took."""
    from hetinfer.notebooks import notebook_parameters, run_notebook

    started = time.monotonic()
    parameters = {**notebook_parameters(notebook, size), "build_dir": str(build_dir)}
    run_notebook(notebook, build_dir / "notebooks" / notebook.name, parameters)
    typer.echo(f"  {notebook.stem:<28}{time.monotonic() - started:5.1f} s")


@app.command("merge-values", hidden=True)
def merge_values(build_dir: Path) -> None:
    """Merge the chapters' quoted numbers into values.json (what make calls)."""
    from hetinfer import values

    sources = sorted((build_dir / "results").glob("*.values.json"))
    count = values.merge_values(sources, build_dir / "values.json")
    typer.echo(f"  {build_dir / 'values.json'}: {count} numbers of {len(sources)} chapters")


@app.command()
def verify(
    build_dir: Annotated[Path, typer.Option(help="The build to compare.")] = Path("build"),
    write: Annotated[bool, typer.Option("--write", help="Make it the expected one.")] = False,
) -> None:
    """Compare a build with data/expected: exit 1 if a value, table or claim differs."""
    from hetinfer import verification

    build_dir = paths.root_dir() / build_dir
    if write:
        typer.echo(verification.write_expected(build_dir))
        return
    report = verification.verify(build_dir)
    typer.echo(verification.report_text(report))
    raise typer.Exit(0 if report.agrees else 1)


@app.command(hidden=True)
def checksums() -> None:
    """Write data/SHA256SUMS anew (what make checksums calls)."""
    from hetinfer import verification

    typer.echo(verification.write_checksums())


@app.command("import")
def import_results(  # noqa: PLR0913 - one argument an option
    files: Annotated[list[Path], typer.Argument(help="Result files of vLLM, or folders of them.")],
    campaign: Annotated[str, typer.Option(help="Add the runs to data/measured/NAME.")] = "",
    output: Annotated[Path | None, typer.Option(help="Write the runs to this .csv file.")] = None,
    gpu: Annotated[str, typer.Option(help="The GPU, where the files do not name it.")] = "",
    gpu_count: Annotated[int | None, typer.Option(min=1, help="How many served the model.")] = None,
    dataset: Annotated[str, typer.Option(help="The data set that the prompts came from.")] = "",
    engine_version: Annotated[str, typer.Option(help="The version of vLLM that served.")] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over bad files.")] = False,
) -> None:
    """Read result files of vLLM, check that they agree with themselves, and add or write the runs.

    With neither --campaign nor --output, the files are only checked.
    """
    from hetinfer import runs, vllm_results

    target = runs.target_path(campaign, output)
    stated = vllm_results.Stated(gpu, gpu_count, dataset, engine_version)
    result = vllm_results.load_results(files, stated, skip_bad=skip_bad)
    for error in result.skipped:
        typer.echo(f"skipped: {error}", err=True)
    if campaign:
        runs.add_measured(result.runs, campaign)
    elif target is not None:
        runs.save_runs(runs.frame(result.runs), target)
    typer.echo(vllm_results.describe(result))
    nothing = "checked only: nothing is written without --campaign or --output"
    typer.echo(nothing if target is None else f"written: {target}")


@app.command("verify-sources")
def verify_sources(
    folder: Annotated[Path, typer.Argument(help="A download of the study's result files.")],
) -> None:
    """Compare the study's files with the recorded hashes and runs; exit 1 if any differs."""
    from hetinfer import sources

    check = sources.check_sources(folder)
    typer.echo(sources.report_text(check))
    raise typer.Exit(0 if check.agrees else 1)


@app.command()
def measure(  # noqa: PLR0913 - one argument an option
    campaign: Annotated[str, typer.Argument(help="A name in data/campaigns, or a .toml file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it takes.")] = False,
    base_url: Annotated[str, typer.Option(help="Measure an endpoint that runs already.")] = "",
    ray: Annotated[str, typer.Option(help="Spread the cells over the Ray cluster there.")] = "",
    python: Annotated[Path | None, typer.Option(help="The Python that has vLLM.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The server's; 0: any.")] = 0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Failed cells too.")] = False,
) -> None:
    """Run a campaign of measurements, or go on with it; exit 1 if a cell failed.

    The key of an endpoint is read from OPENAI_API_KEY.
    """
    from hetinfer.hardware import load_prices
    from hetinfer.measurement import campaign as campaigns
    from hetinfer.measurement import cluster, plan, runner, series

    asked = campaigns.load_campaign(campaign)
    if dry_run:
        typer.echo(plan.plan_text(asked, plan.plan_campaign(asked, load_prices())))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    setup = series.default_setup(python, base_url, port)
    source = cluster.ray_source(asked, ray, python) if ray else None
    found = runner.measure_campaign(
        asked, setup, say=typer.echo, retry_failed=retry_failed, source=source
    )
    typer.echo(runner.outcome_text(asked, found))
    raise typer.Exit(1 if found.failed else 0)


@app.command()
def roofline(
    python: Annotated[Path | None, typer.Option(help="The Python that has torch.")] = None,
    ranks: Annotated[int, typer.Option(min=0, help="All-reduce over so many; 0: all GPUs.")] = 0,
) -> None:
    """Measure what this host reaches, in about two minutes, and print it as JSON."""
    from hetinfer.measurement import roofline as rooflines
    from hetinfer.measurement import series

    interpreter = series.default_setup(python).interpreter
    typer.echo(rooflines.roofline_text(rooflines.measure_roofline(interpreter, ranks)))


@app.command()
def footprint(
    model: Annotated[str, typer.Option(help="The model, such as phi-4.")],
    gpu: Annotated[str, typer.Option(help="The card: rtx-4090, h100-pcie.")],
    gpus: Annotated[int, typer.Option(help="How many of them.")],
    rate: Annotated[float, typer.Option(help="Offered requests per second.")],
    region: Annotated[str, typer.Option(help="The grid: FR, EU27, World.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the intervals' samples.")] = 0,
) -> None:
    """Energy and carbon per token of one configuration, with intervals and evidence."""
    import numpy as np

    from hetinfer import runs
    from hetinfer.footprint import summary

    service = summary.Service(model, gpu, gpus, rate, region)
    found = summary.summarise(runs.load_recorded(), service, np.random.default_rng(seed))
    typer.echo(summary.summary_text(found, service))


Model = Annotated[str, typer.Option("--model", help="A model with recorded runs.")]
Rate = Annotated[float, typer.Option("--rate", help="Offered rate in requests per second.")]
Cards = Annotated[int, typer.Option("--gpus", help="Number of cards.")]


@app.command()
def share(model: Model, rate: Rate, gpus: Cards) -> None:
    """Throughput of 4090s as a fraction of one H100's: estimates, intervals, evidence."""
    from hetinfer import estimates, hardware, runs

    full = hardware.find_model(model).model
    table = estimates.share_estimates(
        runs.load_recorded(), full, gpu_count=gpus, rate_requests_per_s=rate
    )
    typer.echo(estimates.estimates_text(table, decimals=3, unit="of one H100"))


@app.command()
def cost(
    model: Model,
    rate: Rate,
    gpus: Cards,
    gpu: Annotated[str, typer.Option("--gpu", help="The card: rtx-4090 or h100-pcie.")],
    scenario: Annotated[str, typer.Option(help="A price list of prices.csv.")] = "study-2025",
    price: Annotated[list[str] | None, typer.Option(help="gpu=USD per hour, repeatable.")] = None,
) -> None:
    """Cost per million tokens of a configuration: estimates, intervals, evidence."""
    from hetinfer import cost as costs
    from hetinfer import estimates, hardware, runs

    table = estimates.cost_estimates(
        runs.load_recorded(),
        hardware.find_model(model).model,
        costs.price_list(scenario, price or []),
        gpu=hardware.find_gpu(gpu).gpu,
        gpu_count=gpus,
        rate_requests_per_s=rate,
    )
    typer.echo(estimates.estimates_text(table, decimals=4, unit="USD per million tokens"))


@app.command()
def plan(
    demand: Annotated[Path, typer.Argument(help="A demand, such as notebooks/demand.toml.")],
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Without simulation.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulations.")] = 0,
) -> None:
    """Plan the fleet for a demand: how many of each configuration, checked by simulation."""
    from hetinfer.fleet import display

    file = _load_demand(demand)
    typer.echo(display.plan_text(file, seed, checked=not unchecked))


@app.command()
def fleet(  # noqa: PLR0913 - one argument an option
    demand: Annotated[Path, typer.Argument(help="A demand, such as notebooks/demand.toml.")],
    copies: Annotated[list[str], typer.Option(help="GPU:GPUS=COPIES, repeatable.")],
    policy: Annotated[str, typer.Option(help="How requests are routed.")] = "slo-aware",
    hour: Annotated[int, typer.Option(help="The hour of the day.")] = 14,
    duration_s: Annotated[float, typer.Option(help="How long, in seconds.")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="Requests from a trace instead.")] = None,
) -> None:
    """Simulate a fleet of your choice behind a router: who is served in time, and at what cost."""
    from hetinfer.fleet import display

    file = _load_demand(demand)
    typer.echo(
        display.fleet_text(
            file,
            copies,
            policy=policy,
            hour=hour,
            duration_s=duration_s,
            seed=seed,
            trace=trace,
        )
    )


@app.command()
def gateway(
    demand: Annotated[Path, typer.Argument(help="A demand, such as notebooks/demand.toml.")],
    output: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("build/gateway"),
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Without simulation.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulations.")] = 0,
) -> None:
    """Plan the fleet for a demand, and write the routers' configuration: LiteLLM, vllm-router.

    The plan is checked under what these routers do, whatever policy the demand names.
    """
    from hetinfer.fleet import display
    from hetinfer.fleet import gateway as gateways

    file = replace(_load_demand(demand), policy=gateways.POLICY)
    plan, capacities = display.planned(file, seed, checked=not unchecked)
    found = gateways.gateway_of(plan, capacities, file.model)
    config, script = gateways.save_gateway(found, output)
    typer.echo("\n".join(display.plan_lines(file, plan)))
    typer.echo(gateways.gateway_text(found))
    typer.echo(f"written: {config}, {script}; start the routers with: bash {script}")


@app.command("gateway-demo", hidden=True)
def gateway_demo(
    python: Annotated[Path | None, typer.Option(help="The Python that has vLLM.")] = None,
    routers: Annotated[Path, typer.Option(help="Where the routers are.")] = Path(
        ".venv-gateway/bin"
    ),
) -> None:
    """Show a plan's routing on two real servers (what make gateway-demo calls)."""
    from hetinfer.measurement import gateway_demo as demos
    from hetinfer.measurement import series

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    interpreter = series.default_setup(python).interpreter
    folder = paths.default_build_dir() / "gateway-demo"
    demo = demos.run_demo(interpreter, paths.root_dir() / routers, folder, say=typer.echo)
    typer.echo(demos.demo_text(demo))
    typer.echo(f"written: {demos.save_demo(demo, folder)}")


@app.command(hidden=True)
def paper(
    build_dir: Annotated[Path, typer.Option(help="The build it quotes.")] = Path("build"),
) -> None:
    """Typeset the paper from a build's values, claims and figures (what make calls)."""
    from hetinfer.paper import compile_paper

    typer.echo(f"  {compile_paper(paths.root_dir() / build_dir)}")


@app.command(hidden=True)
def report(
    build_dir: Annotated[Path, typer.Option(help="The finished build.")] = Path("build"),
) -> None:
    """Write the HTML report of a finished build (what make calls)."""
    from hetinfer.report import build_report

    typer.echo(f"  {build_report(paths.root_dir() / build_dir)}")


@app.command()
def simulate(  # noqa: PLR0913 - one argument an option
    model: Annotated[str, typer.Option(help="The language model.")],
    gpu: Annotated[str, typer.Option(help="The GPU.")],
    rate: Annotated[float, typer.Option(help="Offered requests per second, Poisson.")],
    gpus: Annotated[int, typer.Option(min=1, help="How many serve the model together.")] = 1,
    requests: Annotated[int, typer.Option(help="How many requests arrive.")] = 5000,
    repeated: Annotated[
        bool, typer.Option("--repeated", help="Prompts repeat, so that the cache is warm.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Draws arrivals and lengths.")] = 42,
) -> None:
    """Simulate one engine at one rate, in steady state: throughput, latency, cache."""
    from hetinfer.simulation import report
    from hetinfer.simulation.capacity import Load

    served = report.find_served(model, gpu, gpus)
    typer.echo(report.simulate_text(served, Load(served.lengths, requests, repeated, seed), rate))


@app.command()
def capacity(  # noqa: PLR0913 - one argument an option
    model: Annotated[str, typer.Option(help="The language model.")],
    gpu: Annotated[str, typer.Option(help="The GPU.")],
    gpus: Annotated[int, typer.Option(min=1, help="How many serve the model together.")] = 1,
    ttft_p99_ms: Annotated[float, typer.Option(help="Target of P99 TTFT.")] = 500.0,
    tpot_p99_ms: Annotated[float, typer.Option(help="Target of P99 TPOT.")] = float("inf"),
    requests: Annotated[int, typer.Option(help="How many requests a simulated run has.")] = 5000,
    seeds: Annotated[int, typer.Option(min=1, help="How many times each rate is simulated.")] = 3,
) -> None:
    """Find the highest rate that one engine serves within latency targets, cold and warm."""
    from hetinfer.simulation import report
    from hetinfer.simulation.capacity import Load

    served = report.find_served(model, gpu, gpus)
    targets_s = (ttft_p99_ms / report.MS_PER_S, tpot_p99_ms / report.MS_PER_S)
    typer.echo(
        report.capacity_text(served, Load(served.lengths, requests), targets_s, range(seeds))
    )


@app.command(hidden=True)
def calibrate(
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Reconstruct the study's lengths and fit its engines anew (what make calibrate calls)."""
    from hetinfer.simulation import fitted

    folder = paths.data_dir("fitted")
    found = fitted.calibrate_all(jobs)
    fitted.save_calibrations(found, folder)
    typer.echo(f"{folder}: {len(found)} reconstructions, {len(found[0].fits)} engines each")


def main() -> None:
    """Run one command; a user's mistake is one line on stderr and exit code 2, Ctrl-C code 130."""
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="hetinfer", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _end(f"hetinfer: {' '.join(str(error).splitlines())}", USAGE_ERROR)
    except TyperException as error:
        message = " ".join(error.format_message().split())
        _end(f"hetinfer: {message} (see hetinfer --help)", USAGE_ERROR)
    except NotebookError as error:
        _end(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on
        sys.exit(1)
    except OSError as error:
        where = error.filename or "standard output"
        _end(f"hetinfer: {error.strerror or error}: {where}", USAGE_ERROR)
    sys.exit(code)


def _load_demand(path: Path) -> "DemandFile":
    """A demand file, with the engines that fit the study's runs best."""
    from hetinfer.fleet.demand_file import load_demand
    from hetinfer.simulation.fitted import load_calibrations

    return load_demand(path, load_calibrations()[0])


def _end(message: str, code: int) -> None:
    typer.echo(message, err=True)
    sys.exit(code)
