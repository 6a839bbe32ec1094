"""Read tokens, and remember which servers the user trusts with them."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from coresift.errors import InputError

TOKEN = "LABEL_STUDIO_API_KEY"  # the environment variable, as Label Studio's own library names it


def is_plain(text: str) -> bool:
    """Tell whether a text is printable ASCII without spaces, as tokens are: a header can carry it."""
    return re.fullmatch(r"[!-~]+", text) is not None


def check_url(url: str, allow_http: bool) -> tuple[str, bool]:
    """Check the url of a server; return it as it is used, and whether it is on this machine."""
    try:
        parts = urlsplit(url.strip())
        is_server = _is_server(parts)
    except ValueError:
        is_server = False
    if not is_server:
        raise InputError("expected a server's url, such as https://labels.example.org, without user or query")
    plain, loopback = parts.geturl(), _is_loopback(parts.hostname or "")
    if parts.scheme == "http" and not loopback and not allow_http:
        raise InputError(f"{plain} would show the token to anybody on the network; use https, or allow http")
    return plain.rstrip("/"), loopback


def _is_server(parts: SplitResult) -> bool:
    has_host = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    # Letters of other scripts may look like these; a host that has some is written as xn--...
    return (
        has_host and is_plain(parts.geturl()) and not (parts.query or parts.fragment or "@" in parts.netloc)
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: Path | None = None) -> str:
    """Read the token, from a file that only its owner may read or else from the environment."""
    if path is None:
        if token := os.environ.get(TOKEN, "").strip():
            return token
        raise InputError(
            f"there is no token: set the environment variable {TOKEN}, or name a file with --token-file"
        )
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise InputError(f"{path} has mode {mode:o}, others may read the token: chmod 600 {path}")
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"no token could be read from {path}: {error}") from None


def servers_file() -> Path:
    """The file in the user's configuration folder that lists the trusted servers, one in a line."""
    import typer

    return Path(typer.get_app_dir("coresift")) / "label-studio-servers.txt"


def is_trusted(url: str) -> bool:
    """Tell whether the user trusted a server with a token before; ``url`` as `check_url` returns it."""
    path = servers_file()
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
                raise InputError(f"others may write to {path}, which says whom you trust; remove it")
            return url in file.read().splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} could not be read: {error}") from None


def trust(url: str) -> None:
    """Remember that the user trusts a server with a token; ``url`` as `check_url` returns it."""
    if is_trusted(url):
        return
    path = servers_file()
    with suppress(OSError):  # where nothing can be written, the user is asked each time
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(private, "w", encoding="utf-8") as file:
            file.write(f"{url}\n")
