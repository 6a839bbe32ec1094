from __future__ import annotations

import re
from pathlib import Path

import pytest

from coresift import STRATEGIES

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "quickstart",
            "symbols",
            "choosing",
            "extending",
            "scaling",
            "data",
            "experiments",
            "cluster",
        )
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_code_runs_as_it_stands(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page == "docs/cluster.md":
        request.getfixturevalue("cluster")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    assert blocks
    for block in blocks:
        # Empty lines in front, so that a traceback names the line of the page.
        lines = text[: block.start(1)].count("\n")
        code = compile("\n" * lines + block[1], str(ROOT / page), "exec", dont_inherit=True)
        exec(code, namespace)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_readme_lists_every_strategy() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Strategies")[1]
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|$", text, flags=re.MULTILINE)
    assert rows == [(name, strategy.about) for name, strategy in STRATEGIES.items()]
