"""``python -m coresift``, the same as the command ``coresift``."""

from coresift.cli import app

app(prog_name="coresift")
