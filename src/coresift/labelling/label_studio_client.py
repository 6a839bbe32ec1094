"""The client of a Label Studio server: its address, the token, and requests that are answered in JSON.

Only the server that the user names is contacted: redirects are not followed, and a token goes out in the
clear only to this machine itself, or where the user allows it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coresift.types import InputError

if TYPE_CHECKING:
    import httpx

TOKENS = ("CORESIFT_LABEL_STUDIO_TOKEN", "LABEL_STUDIO_API_KEY")
PAGE = 100
PAUSES = (0.5, 1.0, 2.0, 4.0)
AWAY = frozenset({429, 500, 502, 503, 504})


class UnavailableError(InputError):
    """The server could not be reached or was too busy; to ask again later may help."""


def read_token(path: Path | None = None) -> str:
    """The token, from a file that only its owner may read or else from the environment."""
    if path is None:
        for name in TOKENS:
            if found := os.environ.get(name, "").strip():
                return found
        raise InputError(f"there is no token: set {TOKENS[0]}, or name a file that holds it")
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise InputError(f"{path} has mode {mode:o}, others may read the token: chmod 600 {path}")
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"no token could be read from {path}: {error}") from None


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
        self.url, loopback = _checked(url, allow_http)
        self.allow_http = allow_http
        # An error about a malformed header would show the token.
        if not re.fullmatch(r"[!-~]+", token):
            raise InputError("the token is empty or has characters that no token has; copy it again")
        self._token, self._access, self._lost = token, "", httpx.RequestError
        # A proxy that the environment names is for other machines.
        patience = httpx.Timeout(60.0, connect=10.0)
        self._client = httpx.Client(transport=transport, timeout=patience, trust_env=not loopback)

    def __repr__(self) -> str:
        return f"LabelStudio({self.url!r})"

    def __enter__(self) -> LabelStudio:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def request(self, method: str, path: str, **content: Any) -> Any:
        """What the server answers, from JSON; what may safely be repeated is tried several times."""
        response = self._send(method, path, self._authorization(), content)
        if response.status_code == 401 and self._access:
            self._access = ""  # It ran out.
            response = self._send(method, path, self._authorization(), content)
        return self._read(response)

    def pages(self, path: str, rows: str, total: str, **parameters: Any) -> Iterator[Any]:
        """The rows of a long answer; ``rows`` and ``total`` say what it calls them and their number."""
        seen, page = 0, 1
        while True:
            answer = self.request("GET", path, params={**parameters, "page": page, "page_size": PAGE})
            yield from answer[rows]
            seen, page = seen + len(answer[rows]), page + 1
            if not answer[rows] or seen >= answer[total]:
                return

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
        found = self.request("GET", f"/api/import/file-upload/{stored['file_upload_ids'][0]}")
        return f"/data/{found['file']}"

    def _authorization(self) -> str | None:
        if self._token.count(".") != 2:
            return f"Token {self._token}"
        if not self._access:
            asked = {"json": {"refresh": self._token}}
            response = self._send("POST", "/api/token/refresh", None, asked, repeat=True)
            self._access = self._read(response)["access"]
        return f"Bearer {self._access}"

    def _send(
        self, method: str, path: str, authorization: str | None, content: Any, repeat: bool = False
    ) -> httpx.Response:
        headers = {"Authorization": authorization} if authorization else {}
        for pause in (*PAUSES, None) if repeat or method in ("GET", "PATCH") else (None,):
            try:
                response = self._client.request(method, self.url + path, headers=headers, **content)
                if response.status_code not in AWAY:
                    return response
                problem = f"answered {response.status_code}"
            except self._lost as error:
                problem = f"could not be reached ({str(error) or type(error).__name__})"
            if pause:
                time.sleep(pause)
        raise UnavailableError(self._hide(f"{self.url} {problem}; try again later"))

    def _read(self, response: httpx.Response) -> Any:
        request = f"{response.request.method} {response.request.url.path}"
        if response.status_code == 401:
            raise InputError(f"{self.url} does not accept the token; make a new one there")
        if response.is_redirect:
            raise InputError(f"{self.url} points to {response.headers['Location']}; use that server's url")
        try:
            answer = response.json()
        except ValueError:
            raise InputError(f"{self.url} did not answer {request} in JSON; is it Label Studio?") from None
        if response.is_error:
            if isinstance(answer, dict):
                answer = answer.get("validation_errors") or answer.get("detail")
            said = " ".join(str(answer).split())[:300]
            raise InputError(self._hide(f"{self.url} answered {response.status_code} to {request}: {said}"))
        return answer

    def _hide(self, message: str) -> str:
        return message.replace(self._token, "...").replace(self._access or self._token, "...")


def task_filter(column: str, operator: str, type: str, value: str) -> dict[str, str]:
    """A condition on tasks, as their list on the server has it; see `LabelStudio.tasks`."""
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": type, "value": value}


def _checked(url: str, allow_http: bool) -> tuple[str, bool]:
    """The url as it is used, and whether it is of this machine."""
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or "@" in parts.netloc:
        raise InputError("expected a server's url, such as https://labels.example.org, without user or query")
    try:
        loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        loopback = parts.hostname == "localhost"
    if parts.scheme == "http" and not loopback and not allow_http:
        raise InputError(f"{url} would show the token to anyone on the way; use https, or allow http")
    return parts.geturl().rstrip("/"), loopback
