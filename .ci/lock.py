"""Write the hashes of pinned packages: ``lock.py constraints.txt hashes.txt hashes-cpu.txt``.

The first result is for ``pip install --no-deps --require-hashes -r hashes.txt``, on any platform with wheels
for Python 3.11 or later. A release without such a wheel gets the hash of its source. A pin may have a marker,
after a semicolon, for the platforms where it is installed. The second result is for local versions that pip
takes here: torch without CUDA, ``2.13.0+cpu`` for the pin ``2.13.0``. They are apart since of all files with
a hash that is allowed, pip takes one from its index.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version
from pip._internal.models.index import PyPI

PIP = [sys.executable, "-m", "pip"]


def index_url() -> str:
    """Return the address of pip's index."""
    found = subprocess.run([*PIP, "config", "get", "global.index-url"], capture_output=True, text=True)
    return os.environ.get("PIP_INDEX_URL") or found.stdout.strip() or PyPI.simple_url


def is_used(tag: Tag) -> bool:
    """Return whether CPython 3.11 or later may install a wheel with this tag."""
    python = re.fullmatch(r"(py|cp)3(\d*)", tag.interpreter)
    if python is None:
        return False
    return python[1] == "py" or tag.abi == "abi3" or int(python[2] or 0) >= 11


def name_and_version(pin: str) -> tuple[str, str]:
    """Split a pin, and leave out its marker.

    >>> name_and_version('triton==3.7.1; sys_platform == "linux"')
    ('triton', '3.7.1')
    """
    name, _, version = pin.partition(";")[0].partition("==")
    return name.strip(), version.strip()


def published(pin: str, index: str) -> set[str]:
    """Return the SHA-256 of each file of a release that may be installed."""
    name, version = name_and_version(pin)
    with urlopen(f"{index.rstrip('/')}/{canonicalize_name(name)}/", timeout=120) as answer:
        links = re.findall(r'([^/"]+)#sha256=([0-9a-f]{64})', answer.read().decode())
    wheels, sources = set(), set()
    for file, digest in links:
        if version not in file:  # old files may have names that no parser takes
            continue
        if file.endswith(".whl"):
            _, found, _, tags = parse_wheel_filename(file)
            if found == Version(version) and any(map(is_used, tags)):
                wheels.add(digest)
        elif file.endswith(".tar.gz") and parse_sdist_filename(file)[1] == Version(version):
            sources.add(digest)
    return wheels or sources


def taken_here(pins: str) -> dict[str, tuple[str, str]]:
    """Return the version and the SHA-256 of the file that pip installs here, by the name of the package."""
    words = ["--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", "-r", pins]
    done = subprocess.run([*PIP, "install", *words], check=True, capture_output=True, text=True)
    found = {}
    for item in json.loads(done.stdout)["install"]:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        found[canonicalize_name(item["metadata"]["name"])] = (item["metadata"]["version"], digest)
    return found


def line(pin: str, hashes: set[str]) -> str:
    """Return a requirement that only files with these hashes meet."""
    return " \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"


def main(pins: str, out: str, out_local: str) -> None:
    """Read pins from one file, and write them with hashes to the others."""
    lines, index, here = Path(pins).read_text().splitlines(), index_url(), taken_here(pins)
    with ThreadPoolExecutor(8) as pool:
        everywhere = dict(zip(lines, pool.map(lambda pin: published(pin, index), lines), strict=True))
    local = []
    for pin, hashes in everywhere.items():
        name = name_and_version(pin)[0]
        if canonicalize_name(name) not in here:  # its marker is for other platforms
            continue
        version, digest = here[canonicalize_name(name)]
        if "+" in version:
            local.append(line(f"{name}=={version}", {digest}))
        else:
            hashes.add(digest)
    Path(out).write_text("".join(line(*entry) for entry in everywhere.items()))
    Path(out_local).write_text("".join(local))


if __name__ == "__main__":
    main(*sys.argv[1:])
