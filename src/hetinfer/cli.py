"""The command line: each command is one call into the package."""

import sys

import typer

from hetinfer.errors import InputError

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


def main() -> None:
    """Run one command; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"hetinfer: {error}", err=True)
        sys.exit(2)
