"""Results as lines of a file, one JSON object each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(out: Path, line: dict[str, Any]) -> None:
    """Add a line, and show it."""
    print(json.dumps(line), flush=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a file; none where there is no file."""
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
