"""Call a Label Studio server: lists in pages, tasks with filters, uploads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coresift.labelling.labellers.label_studio.fields import AnswerError, UnavailableError, field
from coresift.labelling.labellers.label_studio.transport import Transport
from coresift.types import InputError


class LabelStudio(Transport):
    """A Label Studio server; see `Transport` for the parameters."""

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


def task_filter(column: str, operator: str, type: str, value: str) -> dict[str, str]:
    """A condition on tasks, as their list on the server takes it; see `LabelStudio.tasks`."""
    return {"filter": f"filter:tasks:{column}", "operator": operator, "type": type, "value": value}
