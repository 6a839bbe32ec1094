"""Count the source files that one call of `select` passes through, and the switches between them.

    python benchmarks/files_on_the_way.py

A switch is a call from a function in one file of coresift to a function in another, or the return from it. A
reader makes each switch once, the interpreter again in every step. The script counts both for one call with
class probabilities of 100 points.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import coresift


class Trail:
    """Follows the calls within the package."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the file that runs after a call or a return of Python code."""
        if event == "call":
            self._note(frame)
        elif event == "return" and frame.f_back is not None:
            self._note(frame.f_back)

    def _note(self, frame: FrameType) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(self.package):
            name = str(path.relative_to(self.package))
            if not self.files or self.files[-1] != name:
                self.files.append(name)


def main() -> None:
    """Print the number of files and of switches, and the files in the order in which they are met."""
    probs = torch.softmax(torch.randn(20, 100, 3, generator=torch.Generator().manual_seed(0)), -1)
    select = coresift.select
    select(probs=probs, budget=5)  # so that nothing is imported below
    trail = Trail(Path(coresift.__file__).parent)
    sys.setprofile(trail)
    try:
        select(probs=probs, budget=5)
    finally:
        sys.setprofile(None)
    order = list(dict.fromkeys(trail.files))
    switches = list(zip(trail.files, trail.files[1:], strict=False))
    print(f"{len(order)} files, {len(set(switches))} different switches, {len(switches)} in all")
    print(" -> ".join(order))


if __name__ == "__main__":
    main()
