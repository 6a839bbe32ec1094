"""Call a Label Studio server: requests and answers in JSON, lists in pages, uploads.

Only a server that the user trusts is contacted: redirects are not followed, and a token goes out unencrypted
only to this machine, or where the user allows it. Answers are limited in size, depth and time, and nothing in
them can steer a terminal.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from coresift import limits
from coresift.errors import InputError
from coresift.labelling.labellers.label_studio.tokens import check_url, is_plain

if TYPE_CHECKING:
    import httpx

# A server that answers one of these is busy, or away for a moment.
_BUSY = frozenset({429, 500, 502, 503, 504})
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
    """The server could not be reached or was too busy; asking again later may help."""


class AnswerError(InputError):
    """The server's answer is not one of Label Studio's, or exceeds a limit."""


@dataclass(frozen=True)
class Patience:
    """Limits on answers, far beyond what Label Studio sends, and on time."""

    num_bytes: int = limits.ANSWER_BYTES  # of one answer
    depth: int = limits.ANSWER_DEPTH
    request_seconds: float = limits.REQUEST_SECONDS  # for a request with its repetitions
    pauses: tuple[float, ...] = limits.PAUSES  # seconds before each repetition
    page_size: int = limits.LIST_PAGE
    pages: int = limits.LIST_PAGES
    list_seconds: float = limits.LIST_SECONDS  # for all pages


class LabelStudio:
    """A Label Studio server, to which requests go with the token.

    Parameters
    ----------
    url : such as ``https://labels.example.org``.
    token : a legacy token, or a personal access token, which is exchanged for one access token after another.
    transport : what carries the requests, for tests.
    allow_http : send the token unencrypted to other machines too.
    patience : limits on answers.
    """

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.BaseTransport | None = None,
        allow_http: bool = False,
        patience: Patience = Patience(),  # noqa: B008, a frozen value
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise InputError(
                'Label Studio needs httpx: pip install ".[labelstudio]" in the folder of the clone'
            ) from None
        self.url, loopback = check_url(url, allow_http)
        self.allow_http = allow_http
        # An error about a malformed header would show the token.
        if not is_plain(token):
            raise InputError("the token is empty or has characters that no token has; copy it again")
        self._token, self._access, self._lost = token, "", httpx.RequestError
        self._patience = patience
        timeout = httpx.Timeout(limits.READ_SECONDS, connect=limits.CONNECT_SECONDS)
        # A proxy that the environment names is for other machines.
        self._client = httpx.Client(transport=transport, timeout=timeout, trust_env=not loopback)
        self._stream: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def tasks(self, project_id: int, *filters: Mapping[str, str], **parameters: Any) -> Iterator[Any]:
        """List the tasks of a project that pass all filters, by their ids."""
        query = json.dumps({"filters": {"conjunction": "and", "items": filters}, "ordering": ["tasks:id"]})
        return self.pages("/api/tasks", "tasks", "total", project=project_id, query=query, **parameters)

    def upload(self, project_id: int, path: Path) -> str:
        """Store a file with a project; return its path on the server."""
        try:
            file = {"file": (path.name, path.read_bytes())}
        except OSError as error:
            raise InputError(f"{path} could not be read: {error.strerror}") from None
        # Not as a task: that follows, with its id and its place in the queue.
        options = {"commit_to_project": "false"}
        stored = self.request("POST", f"/api/projects/{project_id}/import", params=options, files=file)
        ids = field(stored, "file_upload_ids", list)
        number = field({"file_upload_ids": ids[0] if ids else None}, "file_upload_ids", int)
        described = self.request("GET", f"/api/import/file-upload/{number}")
        return f"/data/{field(described, 'file', str)}"

    def pages(self, path: str, rows: str, total: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """List the rows of a long answer; ``rows`` and ``total`` are its names for them and their number."""
        patience = self._patience
        seen, end = 0, time.monotonic() + patience.list_seconds
        for page in range(1, patience.pages + 1):
            query = {**parameters, "page": page, "page_size": patience.page_size}
            answer = self.request("GET", path, params=query)
            listed = field(answer, rows, list)
            for row in listed:
                yield field({rows: row}, rows, dict)
            seen += len(listed)
            if not listed or seen >= field(answer, total, int):
                return
            if time.monotonic() > end:
                raise UnavailableError(
                    f"{self.url} took longer than {patience.list_seconds:g} s to list {rows}"
                )
        raise AnswerError(f"{self.url} sent {patience.pages:,} pages of {rows} without an end")

    def request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request and parse the answer; what may safely be repeated is tried several times."""
        response, body = self._send(method, path, self._authorization(), content)
        if response.status_code == 401 and self._access:
            self._access = ""  # it expired
            response, body = self._send(method, path, self._authorization(), content)
        return self._parsed(response, body)

    def _authorization(self) -> str:
        if self._token.count(".") != 2:
            return f"Token {self._token}"
        if not self._access:
            refresh = {"json": {"refresh": self._token}}
            answer = self._parsed(*self._send("POST", "/api/token/refresh", None, refresh, repeat=True))
            access = field(answer, "access", str)
            if not is_plain(access):
                raise AnswerError(f"{self.url} sent an access token with characters that no token has")
            self._access = access
        return f"Bearer {self._access}"

    def _send(
        self, method: str, path: str, authorization: str | None, content: Any, repeat: bool = False
    ) -> tuple[httpx.Response, bytes]:
        """Send a request, again and again where it may be repeated and the server is away."""
        # Nothing compressed: a small answer may be huge when it is unpacked.
        headers = {"Accept-Encoding": "identity"}
        if authorization:
            headers["Authorization"] = authorization
        end = time.monotonic() + self._patience.request_seconds
        pauses = self._patience.pauses if repeat or method in ("GET", "PATCH") else ()
        for pause in (*pauses, None):
            answer = self._try(method, path, headers, content, end)
            if time.monotonic() >= end:
                answer = f"took longer than {self._patience.request_seconds:g} s"
                break
            if not isinstance(answer, str):
                return answer
            if pause:
                time.sleep(pause)
        raise UnavailableError(self._redacted(f"{self.url} {answer}; try again later"))

    def _try(
        self, method: str, path: str, headers: Mapping[str, str], content: Any, end: float
    ) -> tuple[httpx.Response, bytes] | str:
        """Send a request once; return the answer and its body, or say why there is none."""
        # A timeout of the client is for one read: a byte now and then would postpone it forever.
        timer = threading.Timer(max(0.0, end - time.monotonic()), self._hang_up)
        timer.daemon = True
        timer.start()
        options = {"headers": headers, "extensions": {"trace": self._follow}, **content}
        try:
            with self._client.stream(method, self.url + path, **options) as response:
                if response.status_code in _BUSY:
                    return f"answered {response.status_code}"
                return response, self._body(response)
        except self._lost as error:
            return f"could not be reached ({str(error) or type(error).__name__})"
        finally:
            timer.cancel()

    def _follow(self, event: str, facts: Mapping[str, Any]) -> None:
        """Keep the connection in use for `_hang_up`; there is one at a time."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = facts["return_value"]

    def _hang_up(self) -> None:
        if self._stream is not None:
            with suppress(OSError):  # it may have been closed
                self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _body(self, response: httpx.Response) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            self._refuse(f"sent a body in the encoding {encoding}, which was not asked for")
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > self._patience.num_bytes:
                self._refuse(f"sent more than {self._patience.num_bytes // 2**20} MiB at once")
        return bytes(body)

    def _parsed(self, response: httpx.Response, body: bytes) -> Any:
        request = f"{response.request.method} {response.request.url.path}"
        if response.status_code == 401:
            raise InputError(f"{self.url} does not accept the token; make a new one there")
        if response.has_redirect_location:
            # Without the query, where others put what they were sent.
            where = re.split(r"[?#]", response.headers["Location"])[0]
            raise InputError(self._redacted(f"{self.url} points to {where}; use that server's url"))
        try:
            answer = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            self._refuse(f"did not answer {request} in JSON; is it Label Studio?")
        self._check_levels(answer, request)
        if response.is_error:
            if isinstance(answer, dict):
                answer = answer.get("validation_errors") or answer.get("detail")
            problem = f"{self.url} answered {response.status_code} to {request}: {answer}"
            raise InputError(self._redacted(problem))
        return answer

    def _check_levels(self, answer: Any, request: str) -> None:
        """Look at an answer level by level: it must not be too deep, nor send the token back."""
        level, secrets = [answer], self._secrets
        for _ in range(self._patience.depth):
            if any(secrets.search(value) for value in level if isinstance(value, str)):
                self._refuse(f"sent the token back in its answer to {request}; do not trust it")
            level = list(chain.from_iterable(map(_children, level)))
            if not level:
                return
        self._refuse(f"answered {request} with JSON of more than {self._patience.depth} levels")

    def _refuse(self, problem: str) -> NoReturn:
        raise AnswerError(self._redacted(f"{self.url} {problem}"))

    @property
    def _secrets(self) -> re.Pattern[str]:
        secrets = filter(None, (self._token, self._access))
        return re.compile("|".join(map(re.escape, secrets)), re.IGNORECASE)

    def _redacted(self, message: str) -> str:
        """A message on one line, without the tokens."""
        return on_one_line(self._secrets.sub("...", message))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def field(row: Any, name: str, kind: type[T]) -> T:
    """Read a field of a JSON object in an answer, which has to be there and of this type.

    >>> field({"total": 3}, "total", int)
    3
    >>> field({"n": None}, "n", list)
    Traceback (most recent call last):
    coresift.labelling.labellers.label_studio.server.AnswerError: the server sent null as 'n', expected a list
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


def time_of(row: Any) -> datetime:
    """Read when a task or an annotation was changed last."""
    text = field(row, "updated_at", str)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None or time.year < 2000 or CONTROL.search(text):
            raise ValueError
        return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise AnswerError("the server sent an 'updated_at' that is no time with a zone") from None


def on_one_line(text: str) -> str:
    r"""Make a text from the server fit to be shown: one line, not too long, without control characters.

    >>> on_one_line("red: \x1b[31m, and\na new line")
    'red: ?[31m, and a new line'
    """
    plain = CONTROL.sub("?", " ".join(text.split()))
    return plain if len(plain) <= limits.SHOWN_CHARACTERS else f"{plain[: limits.SHOWN_CHARACTERS]}..."
