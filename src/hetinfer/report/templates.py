"""The report's templates: pages and fragments in `templates/`, text escaped unless marked safe."""

import re
from functools import cache
from pathlib import Path

import jinja2

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: object) -> str:
    """A template of `templates/`, filled; a name that it uses and `context` lacks is an error."""
    return _environment().get_template(template).render(**context)


def in_words(name: str) -> str:
    """A file's name as a reader says it: `01-recorded-study` is `Recorded study`."""
    words = re.sub(r"^\d\d-", "", name).replace("_", " ").replace("-", " ")
    words = re.sub(r"\b(ttft|tpot|itl)\b", lambda match: match[0].upper(), words)
    return words[:1].upper() + words[1:]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
