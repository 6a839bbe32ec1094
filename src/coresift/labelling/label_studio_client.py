"""The client of a Label Studio server: its address, the token, and requests that are answered in JSON.

Only a server that the user trusts is contacted: redirects are not followed, and a token goes out in the
clear only to this machine itself, or where the user allows it. What comes back is limited in size, depth and
time, its fields are checked before they are used, and nothing in it can steer a terminal.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from coresift.types import InputError

if TYPE_CHECKING:
    import httpx

TOKEN = "LABEL_STUDIO_API_KEY"  # the environment variable, as Label Studio's own library names it
PAGE = 100
PAUSES = (0.5, 1.0, 2.0, 4.0)
AWAY = frozenset({429, 500, 502, 503, 504})
# Limits on answers, far beyond what Label Studio sends: a page of tasks has some 100 kB and a depth of 10.
MOST_BYTES = 64 * 2**20
MOST_LEVELS = 100
MOST_PAGES = 10_000
# Seconds that one request may take with its repetitions, and all pages of a list.
REQUEST_TIME, LIST_TIME = 600.0, 3600.0
MOST_SHOWN = 300
# What moves a cursor, changes colours or reorders a line (C0, C1, line ends, bidirectional overrides), and
# halves of characters, which cannot be printed at all.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
T = TypeVar("T")


class UnavailableError(InputError):
    """The server could not be reached or was too busy; to ask again later may help."""


class AnswerError(InputError):
    """The server's answer is not one of Label Studio's, or exceeds a limit."""


def field(row: Any, name: str, kind: type[T]) -> T:
    """Read a field of a JSON object in an answer, where it has to be and of this type.

    >>> field({"total": 3}, "total", int)
    3
    >>> field({"total": None}, "total", int)
    Traceback (most recent call last):
    coresift.labelling.label_studio_client.AnswerError: the server sent null as 'total', expected an integer
    """
    if not isinstance(row, dict):
        raise AnswerError(f"the server sent {_NAMES[type(row)]}, expected an object with {name!r}")
    if name not in row:
        raise AnswerError(f"the server sent an object without {name!r}, expected {_NAMES[kind]}")
    value = row[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        # The value itself is not shown: it may be anything.
        raise AnswerError(f"the server sent {_NAMES[type(value)]} as {name!r}, expected {_NAMES[kind]}")
    return value


def on_one_line(text: str) -> str:
    r"""Make a text from the server fit to be seen: one line, not too long, without control characters.

    >>> on_one_line("red: \x1b[31m, and\na new line")
    'red: ?[31m, and a new line'
    """
    plain = CONTROL.sub("?", " ".join(text.split()))
    return plain if len(plain) <= MOST_SHOWN else f"{plain[:MOST_SHOWN]}..."


def read_token(path: Path | None = None) -> str:
    """The token, from a file that only its owner may read or else from the environment."""
    if path is None:
        if found := os.environ.get(TOKEN, "").strip():
            return found
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
    """Whether the user has trusted a server with a token before; ``url`` as `checked_url` gives it."""
    path = servers_file()
    try:
        with path.open(encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if os.name == "posix" and (found.st_uid != os.getuid() or found.st_mode & 0o022):
                raise InputError(f"others may write to {path}, which says whom you trust; remove it")
            return url in file.read().splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} could not be read: {error}") from None


def trust(url: str) -> None:
    """Remember that the user trusts a server with a token; ``url`` as `checked_url` gives it."""
    if is_trusted(url):
        return
    path = servers_file()
    with suppress(OSError):  # where nothing can be written, the user is asked each time
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(private, "w", encoding="utf-8") as file:
            file.write(f"{url}\n")


class LabelStudio:
    """A Label Studio server.

    Parameters
    ----------
    url : such as ``https://labels.example.org``.
    token : a legacy token, or a personal access token, which buys one access token after another.
    transport : what carries the requests, for tests.
    allow_http : send the token in the clear to other machines too.
    """

    def __init__(
        self, url: str, token: str, transport: httpx.BaseTransport | None = None, allow_http: bool = False
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise InputError(
                'Label Studio needs httpx: pip install ".[labelstudio]" in the folder of the clone'
            ) from None
        self.url, loopback = checked_url(url, allow_http)
        self.allow_http = allow_http
        # An error about a malformed header would show the token.
        if not re.fullmatch(r"[!-~]+", token):
            raise InputError("the token is empty or has characters that no token has; copy it again")
        self._token, self._access, self._lost = token, "", httpx.RequestError
        # A proxy that the environment names is for other machines.
        patience = httpx.Timeout(60.0, connect=10.0)
        self._client = httpx.Client(transport=transport, timeout=patience, trust_env=not loopback)
        self._stream: Any = None

    def __repr__(self) -> str:
        return f"LabelStudio({self.url!r})"

    def __enter__(self) -> LabelStudio:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def request(self, method: str, path: str, **content: Any) -> Any:
        """What the server answers, from JSON; what may safely be repeated is tried several times."""
        response, body = self._send(method, path, self._authorization(), content)
        if response.status_code == 401 and self._access:
            self._access = ""  # It ran out.
            response, body = self._send(method, path, self._authorization(), content)
        return self._read(response, body)

    def pages(self, path: str, rows: str, total: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The rows of a long answer; ``rows`` and ``total`` say what it calls them and their number."""
        seen, end = 0, time.monotonic() + LIST_TIME
        for page in range(1, MOST_PAGES + 1):
            answer = self.request("GET", path, params={**parameters, "page": page, "page_size": PAGE})
            found = field(answer, rows, list)
            for row in found:
                yield field({rows: row}, rows, dict)
            seen += len(found)
            if not found or seen >= field(answer, total, int):
                return
            if time.monotonic() > end:
                raise UnavailableError(f"{self.url} took longer than {LIST_TIME:g} s to list {rows}")
        raise AnswerError(f"{self.url} sent {MOST_PAGES:,} pages of {rows} without an end")

    def tasks(self, project_id: int, *filters: Mapping[str, str], **parameters: Any) -> Iterator[Any]:
        """The tasks of a project that pass all filters, by their ids."""
        query = json.dumps({"filters": {"conjunction": "and", "items": filters}, "ordering": ["tasks:id"]})
        return self.pages("/api/tasks", "tasks", "total", project=project_id, query=query, **parameters)

    def upload(self, project_id: int, path: Path) -> str:
        """Store a file with a project; its path on the server."""
        try:
            file = {"file": (path.name, path.read_bytes())}
        except OSError as error:
            raise InputError(f"{path} could not be read: {error.strerror}") from None
        # Not as a task: that follows, with its id and its place in the batch.
        where = {"commit_to_project": "false"}
        stored = self.request("POST", f"/api/projects/{project_id}/import", params=where, files=file)
        ids = field(stored, "file_upload_ids", list)
        number = field({"file_upload_ids": ids[0] if ids else None}, "file_upload_ids", int)
        found = self.request("GET", f"/api/import/file-upload/{number}")
        return f"/data/{field(found, 'file', str)}"

    def _authorization(self) -> str | None:
        if self._token.count(".") != 2:
            return f"Token {self._token}"
        if not self._access:
            asked = {"json": {"refresh": self._token}}
            answer = self._read(*self._send("POST", "/api/token/refresh", None, asked, repeat=True))
            access = field(answer, "access", str)
            if not re.fullmatch(r"[!-~]+", access):
                raise AnswerError(f"{self.url} sent an access token with characters that no token has")
            self._access = access
        return f"Bearer {self._access}"

    def _send(
        self, method: str, path: str, authorization: str | None, content: Any, repeat: bool = False
    ) -> tuple[httpx.Response, bytes]:
        # Nothing compressed: what is small on the way may be huge when it is unpacked.
        headers = {"Accept-Encoding": "identity"}
        if authorization:
            headers["Authorization"] = authorization
        end = time.monotonic() + REQUEST_TIME
        for pause in (*PAUSES, None) if repeat or method in ("GET", "PATCH") else (None,):
            # A timeout of the client is for one read: a byte now and then would keep it off for ever.
            timer = threading.Timer(max(0.0, end - time.monotonic()), self._hang_up)
            timer.daemon = True
            timer.start()
            try:
                with self._client.stream(
                    method, self.url + path, headers=headers, extensions={"trace": self._follow}, **content
                ) as response:
                    problem = f"answered {response.status_code}"
                    if response.status_code not in AWAY:
                        body = self._body(response)
                        if time.monotonic() < end:
                            return response, body
            except self._lost as error:
                problem = f"could not be reached ({str(error) or type(error).__name__})"
            finally:
                timer.cancel()
            if time.monotonic() >= end:
                problem = f"took longer than {REQUEST_TIME:g} s"
                break
            if pause:
                time.sleep(pause)
        raise UnavailableError(self._shown(f"{self.url} {problem}; try again later"))

    def _follow(self, event: str, facts: Mapping[str, Any]) -> None:
        """Keep the connection in use, of which there is one at a time, for `_hang_up`."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = facts["return_value"]

    def _hang_up(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # it may have been closed
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _body(self, response: httpx.Response) -> bytes:
        if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
            self._refuse(f"sent a body in the encoding {packed}, which was not asked for")
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                self._refuse(f"sent more than {MOST_BYTES // 2**20} MiB at once")
        return bytes(body)

    def _read(self, response: httpx.Response, body: bytes) -> Any:
        request = f"{response.request.method} {response.request.url.path}"
        if response.status_code == 401:
            raise InputError(f"{self.url} does not accept the token; make a new one there")
        if response.has_redirect_location:
            # Without the query, where others put what they were sent.
            where = re.split(r"[?#]", response.headers["Location"])[0]
            raise InputError(self._shown(f"{self.url} points to {where}; use that server's url"))
        try:
            answer = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            self._refuse(f"did not answer {request} in JSON; is it Label Studio?")
        self._check_levels(answer, request)
        if response.is_error:
            if isinstance(answer, dict):
                answer = answer.get("validation_errors") or answer.get("detail")
            raise InputError(
                self._shown(f"{self.url} answered {response.status_code} to {request}: {answer}")
            )
        return answer

    def _check_levels(self, answer: Any, request: str) -> None:
        """Look at an answer level by level: it must not be too deep, nor send the token back."""
        level = [answer]
        for _ in range(MOST_LEVELS):
            nested: list[Any] = []
            for value in level:
                if isinstance(value, dict):
                    nested += value
                    nested += value.values()
                elif isinstance(value, list):
                    nested += value
                elif isinstance(value, str) and any(secret in value for secret in self._secrets()):
                    self._refuse(f"sent the token back in its answer to {request}; do not trust it")
            if not nested:
                return
            level = nested
        self._refuse(f"answered {request} with JSON of more than {MOST_LEVELS} levels")

    def _refuse(self, problem: str) -> NoReturn:
        raise AnswerError(self._shown(f"{self.url} {problem}"))

    def _secrets(self) -> list[str]:
        return [self._token, self._access] if self._access else [self._token]

    def _shown(self, message: str) -> str:
        """A message on one line, without the tokens."""
        for secret in self._secrets():
            message = re.sub(re.escape(secret), "...", message, flags=re.IGNORECASE)
        return on_one_line(message)


def task_filter(column: str, operator: str, type: str, value: str) -> dict[str, str]:
    """A condition on tasks, as their list on the server has it; see `LabelStudio.tasks`."""
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": type, "value": value}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def checked_url(url: str, allow_http: bool) -> tuple[str, bool]:
    """The url as it is used, and whether it is of this machine."""
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        # Letters of other scripts may look like these; a host that has some is written as xn--...
        plain = re.fullmatch(r"[!-~]+", parts.geturl())
    except ValueError:
        good = False
    if not good or not plain or parts.query or parts.fragment or "@" in parts.netloc:
        raise InputError("expected a server's url, such as https://labels.example.org, without user or query")
    try:
        loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        loopback = parts.hostname == "localhost"
    if parts.scheme == "http" and not loopback and not allow_http:
        raise InputError(
            f"{parts.geturl()} would show the token to anyone on the way; use https, or allow http"
        )
    return parts.geturl().rstrip("/"), loopback
