"""The page about a labelling project: what it tells, that hostile data stay text, how it acts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coresift.labelling.records import Chosen, CurvePoint, PlacedItem, ProjectReport, Round, State
from coresift.report.page import Markup, markdown, page
from coresift.report.project import project_page, write_project_report

SCRIPT, ONERROR = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
AWAY = "<b>elsewhere</b>"
HOSTILE = {
    "script": SCRIPT,
    "image tag": ONERROR,
    "end": "</script><!-- <script>",
    "formula": "=cmd()",
    "other scripts": "مرحبا بالعالم 🦊 \u202eabc\u2028\u2029",
    "endless": "x" * 100_000,
}
STATES: tuple[State, ...] = ("unlabelled",) * 16 + ("labelled", "labelled", "skipped", "excluded")
WORDS = ["the", "flat", "is", "bright", "and", "near", "a", "park", "but", "its", "kitchen", "dark"]


class Reader(HTMLParser):
    """Collects tags, attributes and the text outside scripts; a tag closed in the wrong order fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data = self.data or data
        elif self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.data)["items"]
        return found


def pool(count: int, batch: int = 12) -> list[PlacedItem]:
    """Three heaps; the first items are the batch, each standing for those nearest to it."""
    generator = np.random.default_rng(0)
    centres = np.array([[0, 0], [5, 2], [2, 5]])
    places = centres[generator.integers(3, size=count)] + generator.normal(size=(count, 2))
    items = []
    for number, place in enumerate(places):
        chosen = number < batch
        near = np.argsort(np.linalg.norm(places - place, axis=1))[1:5]
        text = " ".join(generator.choice(WORDS, 40 if chosen else 20))
        items.append(
            PlacedItem(
                f"flat-{number}",
                *place.tolist(),
                "pending" if chosen else STATES[number % len(STATES)],
                {"review": text, "rooms": str(number % 5)},
                number + 1 if chosen else None,
                float(1000 / (number + 3)) if chosen else None,
                tuple(f"flat-{each}" for each in near) if chosen else (),
                1 / (number + 10) if chosen else None,
                ("123.456", None) if chosen else None,
            )
        )
    return items


def turn(number: int) -> Round:
    batch = tuple(Chosen(each, f"flat-{each}", each + 1, 1.0) for each in range(12))
    at = f"2026-03-{number:02}T10:15:00+00:00"
    return Round(number, at, "acs-fw", 0, "linear", "f00d", {}, 12 * number, 3.25, {}, batch)


def sample(count: int = 600) -> ProjectReport:
    error = [(labels, 40 * labels**-0.5) for labels in range(12, 97, 12)]
    return ProjectReport(
        "flats",
        "regression",
        "price",
        {"labelled": 60, "pending": 12, "skipped": 9, "excluded": 4, "unlabelled": count},
        [turn(number) for number in (1, 2, 3, 4, 5)],
        {1: 12, 2: 12, 3: 12, 4: 11, 5: 3},
        [CurvePoint(labels, value * 1.02, value * 0.85, value * 1.2) for labels, value in error[:5]],
        [CurvePoint(labels, value, value * 0.93, value * 1.07) for labels, value in error],
        [CurvePoint(labels, value * 1.25, value * 1.1, value * 1.4) for labels, value in error[:5]],
        "RMSE of price",
        [
            "Another 12 labels are expected to lower the error by 8 %.",
            "Random labels would need 31 for that.",
        ],
        values=np.random.default_rng(1).gamma(4, 60, size=60).tolist(),
        map=pool(count),
        map_about="The pool in the plane of its two leading principal components.",
        settings={"pool": "flats.csv, 600 rows", "features": "review (TF-IDF), rooms", "coresift": "0.1.0"},
    )


def hostile() -> ProjectReport:
    items = [
        PlacedItem(
            text, float(number), 0.0, "pending", {**HOSTILE, text: "1"}, number + 1, 1.0, (SCRIPT, AWAY)
        )
        for number, text in enumerate(HOSTILE.values())
    ]
    return replace(
        sample(50),
        name=SCRIPT,
        task="classification",
        target=ONERROR,
        error_name=f"error of {ONERROR} 🦊 $\\frac$",
        classes={text: number for number, text in enumerate(HOSTILE.values())},
        map=items,
        map_about=SCRIPT,
        worth=[SCRIPT],
        settings={ONERROR: SCRIPT},
        rounds=[replace(turn(1), strategy=SCRIPT)],
    )


def photographs(folder: Path) -> list[PlacedItem]:
    items = pool(30, 6)
    for number, item in enumerate(items):
        path = folder / f"photo-{number}.png"
        Image.effect_mandelbrot((600, 400 + number), (-2, -1.5, 1, 1.5), 20 + number).save(path)
        items[number] = replace(item, description={"image": str(path)})
    return items


def test_all_is_told(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "report.html"
    write_project_report(sample(), path)
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    reader = Reader(path.read_text(encoding="utf-8"))
    text = " ".join(reader.texts)
    for words in (
        "60 of 685 items are labelled, 12 are pending and 9 were skipped",
        "With 60 labels, the RMSE of price is 5.27, between 4.39 and 6.2",
        "Random labels would need 31 for that.",
        "unlabelled 600",
        "2026-03-04 10:15 UTC",
        "TF-IDF",
    ):
        assert words in text
    assert [item["id"] for item in reader.items[:12]] == [f"flat-{number}" for number in range(12)]
    first = reader.items[0]
    why = "Number 1 of the batch, weight 333, represents 10.0% of the pool, predicted 123.5"
    assert first["why"] == why and reader.texts.count("123.5") == 12
    near = sample().map[0].stands_for
    assert tuple(reader.items[each]["id"] for each in first["near"]) == near


def answered(report: ProjectReport, count: int) -> ProjectReport:
    """The report once so many of the batch have labels."""
    counts = {**report.counts, "labelled": 60 + count, "pending": 12 - count}
    items = [
        replace(item, state="labelled") if number < count else item for number, item in enumerate(report.map)
    ]
    return replace(report, counts=counts, map=items)


def test_a_batch_that_is_answered_in_part() -> None:
    reader = Reader(project_page(answered(sample(), 5)))
    text = " ".join(reader.texts)
    assert "Label next: the batch of round 5, shown below (7 of 12 items left)." in text
    assert "What to label next, and why" in text and "5 of its 12 items are no longer pending" in text
    assert text.index("are from round 5, when there were 60 labels") < text.index("Another 12 labels")
    assert "flat-4" not in reader.texts and "flat-5" in reader.texts  # in the table
    marked = [item["id"] for item in reader.items if "why" in item]
    assert marked == [f"flat-{number}" for number in range(5, 12)]
    assert {item["id"] for item in reader.items} >= {f"flat-{number}" for number in range(12)}


def test_a_batch_that_is_answered() -> None:
    done = answered(sample(), 12)
    reader = Reader(project_page(done))
    text = " ".join(reader.texts)
    assert "Label next" not in text and "What to label next" not in text
    assert "No item is pending; coresift select chooses the next batch." in text
    # What was foreseen is told with the batch and its date, and not on top as if it were to come.
    places = [
        "The last batch",
        "are from round 5, when there were 60 labels",
        "Another 12 labels",
    ]
    assert [text.count(words) for words in places] == [1, 1, 1]
    assert sorted(map(text.index, places)) == [text.index(words) for words in places]
    assert "flat-0" in reader.texts and reader.items[0]["why"].startswith("Number 1 of the batch")
    # Of earlier rounds some may still be out.
    late = project_page(replace(done, counts={**done.counts, "pending": 3}))
    assert "3 items of earlier batches are still pending" in late and "No item is pending" not in late


def test_a_batch_that_everybody_skipped() -> None:
    """No label came in, and still nothing is to come."""
    report = sample()
    skipped = [replace(item, state="skipped") if item.rank else item for item in report.map]
    text = project_page(replace(report, map=skipped, counts={**report.counts, "pending": 0, "skipped": 21}))
    assert text.index("The last batch") < text.index("are from round 5") < text.index("Another 12")


def test_why_an_error_is_that_of_fewer_labels() -> None:
    tested = replace(sample(), curve=[CurvePoint(48, 5.0, 4.0, 6.0)])
    text = project_page(tested)
    assert "With 48 labels, the RMSE of price is 5, between 4 and 6; measured in round 5, by" in text
    assert "by training on 48 of its 60 labels and testing on others." in text
    assert "measured in round 5, when there were as many labels." in project_page(answered(sample(), 12))
    assert "measured in round" not in project_page(sample())


def test_nothing_is_loaded_and_the_page_stays_small() -> None:
    text = project_page(sample(3000))
    assert len(text.encode()) < 2_000_000
    assert not re.search("https?://", text)
    reader = Reader(text)
    links = [value for _, found in reader.tags for name, value in found.items() if name in ("src", "href")]
    assert len(links) == 1 and str(links[0]).startswith("data:image/svg+xml;base64,")
    (policy,) = (found["content"] for _, found in reader.tags if "http-equiv" in found)
    assert policy and "default-src 'none'; img-src data:;" in policy and "script-src 'sha256-" in policy


def test_hostile_text_stays_text_and_is_cut() -> None:
    page_text = project_page(hostile())
    assert len(page_text) < 200_000
    reader = Reader(page_text)
    names = [tag for tag, _ in reader.tags]
    assert names.count("script") == 2  # the data and what shows them
    assert names.count("img") == 1  # the curve
    assert not any(name.startswith("on") for _, found in reader.tags for name in found)
    assert "alert" not in re.sub(
        "&lt;script&gt;alert|onerror=alert", "", page_text.split("application/json")[0]
    )
    assert not re.search("[<>&\u2028\u2029]", reader.data)
    assert SCRIPT in "".join(reader.texts) and ONERROR in "".join(reader.texts)
    assert reader.items[0]["text"][:2] == [SCRIPT, ONERROR]
    longest = reader.items[0]["text"][5]
    assert len(longest) == 2000 and longest.endswith("…")
    assert all(len(item["id"]) <= 80 for item in reader.items)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_project_that_has_just_begun(task: Any) -> None:
    text = " ".join(Reader(project_page(ProjectReport("new", task, "y", {"unlabelled": 5}))).texts)
    for words in (
        "no learning curve yet",
        "no labels yet",
        "No batch has been chosen",
        "0 of 5 items are labelled",
    ):
        assert words in text
    assert "Settings" not in text


def test_a_pool_without_items_or_spread() -> None:
    Reader(project_page(ProjectReport("none", "regression", "y", {})))
    same = [PlacedItem(str(number), 1.0, 1.0, "unlabelled") for number in range(3)]
    lost = PlacedItem("lost", float("nan"), 0.0, "pending", rank=1)
    report = ProjectReport("same", "regression", "y", {}, values=[2.0, 2.0, float("nan")], map=[*same, lost])
    reader = Reader(project_page(report))
    assert [item["id"] for item in reader.items] == ["0", "1", "2"]
    assert "lost" in reader.texts  # in the table


def test_many_columns_do_not_make_a_large_page() -> None:
    description = {f"column {number}": "word " * 100 for number in range(200)}
    items = [PlacedItem(str(number), number, 0.0, "unlabelled", description) for number in range(300)]
    assert len(project_page(replace(sample(1), map=items))) < 1_000_000


def test_many_classes_are_gathered() -> None:
    classes = {f"class {number}": 100 - number for number in range(100)}
    report = ProjectReport("many", "classification", "y", {"labelled": 10}, classes=classes)
    texts = Reader(project_page(report)).texts
    assert "class 24" in texts and "class 25" not in texts
    assert "75 other classes" in texts


def test_curves_of_any_length() -> None:
    one = [CurvePoint(10, 1.0, float("nan"), float("nan"))]
    for curve, fitted, random in ((one, [], []), ([], one, []), (one, one, one)):
        report = ProjectReport("y", "regression", "y", {}, curve=curve, fitted=fitted, random=random)
        assert "data:image/svg+xml" in project_page(report)


def test_photographs(tmp_path: Path) -> None:
    items = photographs(tmp_path)
    (tmp_path / "photo-1.png").write_bytes(b"no picture")
    (tmp_path / "photo-2.png").unlink()
    shown = Reader(project_page(replace(sample(1), map=items))).items
    assert [("image" in item) for item in shown[:6]] == [True, False, False, True, True, True]
    wanted = {item.id for item in items[:6]} | {each for item in items[:6] for each in item.stands_for}
    assert {item["id"] for item in shown if "image" in item} == wanted - {"flat-1", "flat-2"}
    assert str(tmp_path) not in json.dumps(shown)  # others need not know where the files lie
    assert all(len(item.get("image", "")) < 12_000 for item in shown)


def test_a_failure_leaves_the_old_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="Invalid isoformat"):
        write_project_report(replace(sample(1), rounds=[replace(turn(1), at="yesterday")]), path)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_markup_has_its_style_and_script_once() -> None:
    part = Markup("<b>bold</b>", "a < b", "b { color: red }", "run()")
    text = page("Two", [part, part])
    assert text.count("<script>run()</script>") == text.count("b { color: red }") == 1
    assert text.count("<figure><b>bold</b><figcaption>a &lt; b</figcaption></figure>") == 2
    assert markdown("Two", [part]) == "# Two\n\na < b\n"
    assert "script-src 'none'" in page("One", ["text"])


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page opened from a file; at the end it has asked for nothing else and complained of nothing."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.address = path.as_uri()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.page.goto(self.address)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]


def written(report: ProjectReport, folder: Path) -> Path:
    write_project_report(report, folder / "report.html")
    return folder / "report.html"


def test_pointing_at_items(browser: Any, tmp_path: Path) -> None:
    with Visit(browser, written(sample(3000), tmp_path)) as page:
        page.hover("g.batch:has(text:text-is('1')) circle", force=True)
        card = page.inner_text(".card")
        item = sample(3000).map[0]
        for words in (
            "flat-0",
            "Number 1 of the batch, weight 333",
            item.description["review"],
            *item.stands_for,
        ):
            assert words in card
        assert page.get_attribute(".ties", "d").count("L") == 4
        # The ring lies around what is told of.
        mark, ring = page.locator("g.batch").last.bounding_box(), page.locator(".ring").bounding_box()
        assert abs(mark["x"] + mark["width"] / 2 - ring["x"] - ring["width"] / 2) < 1


def test_pointing_at_what_the_batch_stands_for(browser: Any, tmp_path: Path) -> None:
    path = written(sample(40), tmp_path)
    items = Reader(path.read_text(encoding="utf-8")).items
    batch = [item for item in items if "why" in item]
    number, other = next(
        (each, items[each])
        for each in batch[0]["near"]
        if "why" not in items[each]
        and all(np.hypot(items[each]["x"] - mark["x"], items[each]["y"] - mark["y"]) > 20 for mark in batch)
    )
    with Visit(browser, path) as page:
        page.locator(".map").scroll_into_view_if_needed()
        box = page.locator(".map svg").bounding_box()
        scale = box["width"] / 480
        page.mouse.move(box["x"] + scale * other["x"], box["y"] + scale * other["y"])
        assert page.inner_text(".card h3") == other["id"]
        shown = page.locator(".card li").all_inner_texts()
        assert shown == [mark["id"] for mark in batch if number in mark["near"]]
        assert page.get_attribute(".ties", "d").count("L") == len(shown)


def test_keys_go_from_item_to_item(browser: Any, tmp_path: Path) -> None:
    with Visit(browser, written(sample(), tmp_path)) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('role')") == "application"
        assert page.inner_text(".card h3") == "flat-0"
        page.keyboard.press("ArrowRight")
        assert page.inner_text(".card h3") == "flat-1"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text(".card h3") == "flat-599"


def test_hostile_text_in_a_browser(browser: Any, tmp_path: Path) -> None:
    with Visit(browser, written(hostile(), tmp_path)) as page:
        page.focus(".map svg")
        for text in HOSTILE.values():
            assert page.text_content(".card h3") == (text if len(text) <= 80 else text[:79] + "…")
            page.keyboard.press("ArrowRight")
        card = page.text_content(".card")
        assert all(text in card for text in (SCRIPT, ONERROR, "=cmd()", "🦊", f"{AWAY} (not on the map)"))
        assert page.locator("script").count() == 2
        assert page.locator(".card img").count() == 0


def test_what_slips_through_unescaped_does_not_run(browser: Any) -> None:
    run = 'document.title = "it ran"'
    slipped = Markup(f"<script>{run}</script><img src=x onerror='{run}'>", "", script="window.ours = true")
    visit = browser.new_page()
    visit.set_content(page("safe", [slipped]))
    assert visit.evaluate("window.ours") and visit.title() == "safe"
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 375])
def test_schemes_and_sizes(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    report = replace(sample(), map=photographs(tmp_path))
    view = {"width": width, "height": 800}
    with Visit(browser, written(report, tmp_path), color_scheme=scheme, viewport=view) as page:
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 30)")
        page.focus(".map svg")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("[...document.images].every(each => each.complete && each.naturalWidth > 0)")
        assert page.locator(".card img").count() == 5
        # Nothing but tables, which scroll by themselves, is wider than the window.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
