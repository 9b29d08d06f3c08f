"""The page in a headless Chromium: every tab, filters and orders, hostile names, phone width, dark and light, and no request that leaves the machine."""

import json
import re
import socket
import urllib.error
import urllib.request
from html.parser import HTMLParser

import pytest

from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import board

from .browser import find
from .result_rows import closed_rows, row

pytest.importorskip("gradio", reason="the extra `leaderboard` is not installed")
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>${document.title='hacked'}{{x}}"


def shown_board():
    """Four models of two tasks; one has a name that no validator would let pass, because the page must not depend on one."""
    found = [
        *closed_rows(0.7, name="delta", repo="alice/delta", mixer="delta_net", write_rule="delta"),
        row(accuracy=0.9, sealed=0.9, name="big", repo="bob/big", submitter="bob", parameters=20_000_000, run_id="big"),
        row(accuracy=0.5, sealed=None, name="plain", repo="bob/plain", submitter="bob", mixer="gpt", state_grows=True, state_size=None, run_id="plain"),
        row(accuracy=0.3, sealed=0.3, name="other task", repo="bob/other", task="te1", run_id="te1"),
    ]  # fmt: skip
    shown = board.from_rows(found, "test rows")
    for line in shown.lines:
        if line["name"] == "plain":
            line |= {"name": HOSTILE, "model": HOSTILE, "flags": [HOSTILE], "source_url": "javascript:alert(1)"}
    return shown


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def address():
    from selectivbench_hf.hub import page

    port = free_port()
    served = page.serve(board.Kept(shown_board), port=port, browser=False)
    yield f"http://127.0.0.1:{port}/"
    served.close(verbose=False)


@pytest.fixture(scope="module")
def chromium():
    where = find()
    if where is None:
        pytest.skip("there is no Chromium on the PATH, and CHROMIUM names none")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, address):
    """visit(**context) -> an open page; what it asked for, and errors of its scripts, are checked at the end."""
    contexts, asked, errors = [], [], []

    def open_page(query="", **settings):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address + query)
        cells(page).first.wait_for(state="visible")
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            assert page.title() == "SelectivBench leaderboard"  # which hostile names try to change
        context.close()
    assert asked and not [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert not errors


def cells(page):
    return page.locator("#sb-table").get_by_role("gridcell")


def models(page) -> list[str]:
    """The names in the table, from above."""
    return [name.strip() for name in cells(page).all_inner_texts()[1 :: columns()]]


def columns() -> int:
    from selectivbench_hf.hub.page_table import COLUMNS

    return len(COLUMNS)


def wait_for_models(page, wanted):
    for _ in range(100):
        if models(page) == wanted:
            return
        page.wait_for_timeout(50)
    assert models(page) == wanted


def choose(page, box: str, word: str):
    """Choose from a dropdown by its label, with the keyboard alone: what is typed leaves one option."""
    field = page.get_by_label(box, exact=True).first
    field.focus()
    field.press("ControlOrMeta+a")
    field.press_sequentially(word)
    options = page.locator(f"#{field.get_attribute('aria-controls')}").get_by_role("option")
    options.and_(page.locator(".active")).filter(has_text=word).wait_for()
    page.wait_for_timeout(100)
    assert options.count() == 1
    field.press("Enter")
    page.wait_for_timeout(300)  # Gradio forgets a choice whose field is left at once


def test_the_table_filters_sorts_searches_and_opens_a_model(visit):
    page = visit()
    assert models(page) == ["delta", "big", HOSTILE]
    assert page.get_by_text("3 of 3 lines of this task, 2 of them official").is_visible()
    choose(page, "Sort by", "published accuracy")
    wait_for_models(page, ["big", "delta", HOSTILE])
    page.get_by_label("Reversed").check()
    wait_for_models(page, [HOSTILE, "delta", "big"])
    page.get_by_text("Filters").click()
    choose(page, "Write rule", "delta")
    wait_for_models(page, ["delta"])
    with page.expect_download() as download:
        page.get_by_text("Download these lines as CSV").click()
    with open(download.value.path(), encoding="utf-8") as file:
        header, line = file.read().splitlines()
    assert header.startswith("name,repo,model,table") and line.startswith("delta,alice/delta,delta,lite")
    page.get_by_label("Write rule").first.press("Backspace")
    choose(page, "Task", "te1")
    wait_for_models(page, ["other task"])
    choose(page, "Task", "lite")
    page.get_by_label("Search").fill("BIG")
    wait_for_models(page, ["big"])
    cells(page).nth(1).click()
    page.get_by_role("button", name="Open the page of big").click()
    page.get_by_role("heading", name="big", exact=True).wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "big"


def test_every_tab_shows_what_it_is_for_and_hostile_names_stay_text(visit):
    page = visit()
    page.get_by_role("tab", name="Plots").click()
    pictures = page.locator("svg[role=img]")
    pictures.first.wait_for()
    assert pictures.count() == 3  # parameters, state, levels; `lite` has one length of gaps
    assert page.locator(".sb-legend").inner_text().count(HOSTILE) == 1
    page.get_by_text("The numbers").first.click()
    assert page.get_by_role("rowheader", name=HOSTILE).first.is_visible()
    page.get_by_role("tab", name="Model").click()
    choose(page, "Model", "<img")
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.locator(".sb-doubts").get_by_text(HOSTILE).is_visible()
    choose(page, "Model", "delta")
    page.get_by_role("heading", name="delta", exact=True).wait_for()
    link = page.get_by_role("link", name="run-1-1")
    assert link.get_attribute("href") == f"https://huggingface.co/alice/delta/tree/{'a' * 40}/runs/run-1-1"
    assert "noopener" in link.get_attribute("rel")
    page.get_by_role("tab", name="How to submit").click()
    assert page.get_by_text("selectivbench submit runs/gla").first.is_visible()
    page.get_by_role("tab", name="About").click()
    assert page.get_by_text("what a gate, a decay or a delta rule buys").is_visible()
    assert page.locator("img[src=x], script:has-text('hacked')").count() == 0


def test_a_phone_scrolls_the_page_in_one_direction_only(visit):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True)
    for tab in ("Table", "Plots", "Model"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(600)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, tab
    page.get_by_role("tab", name="Table").click()
    for head in ("rank", "model", "sealed, %"):  # what fits beside each other
        box = (
            page.locator("#sb-table")
            .get_by_role("columnheader", name=head, exact=True)
            .locator("visible=true")
            .first.bounding_box()
        )
        assert box["x"] + box["width"] <= 390, head


def luminance(page, what: str, of: str) -> float:
    red, green, blue = re.findall(
        r"[\d.]+", page.evaluate(f"getComputedStyle(document.querySelector({what!r})).{of}")
    )[:3]
    return (0.2126 * float(red) + 0.7152 * float(green) + 0.0722 * float(blue)) / 255


def test_dark_and_light_follow_the_system(visit):
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme)
        page.get_by_role("tab", name="Plots").click()
        page.locator("svg[role=img]").first.wait_for()
        paper, ink = luminance(page, "body", "backgroundColor"), luminance(page, "svg[role=img] text", "fill")
        assert (ink < 0.3 and paper > 0.9) if scheme == "light" else (ink > 0.8 and paper < 0.2)


def test_tabs_and_links_are_reached_with_the_keyboard(visit):
    page = visit()
    page.get_by_role("tab", name="Table").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.get_by_role("tab", name="Model").get_attribute("aria-selected") == "true"


class _Loaded(HTMLParser):
    """Addresses that a browser fetches by itself for a document."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "link"):
            self.found += [known[key] for key in ("src", "href") if known.get(key)]


def test_the_document_names_nothing_to_fetch_from_elsewhere_and_analytics_are_off(address):
    with urllib.request.urlopen(address) as answer:
        document = answer.read().decode()
    parser = _Loaded()
    parser.feed(document)
    assert parser.found and not [
        url for url in parser.found if re.match(r"(https?:)?//", url) and not url.startswith(address)
    ]
    with urllib.request.urlopen(address + "config") as answer:
        config = json.load(answer)
    assert config["analytics_enabled"] is False
    styles = json.dumps(config.get("stylesheets", []))
    assert "fonts.g" not in styles and "//" not in styles.replace(address, "")
    assert "fonts.googleapis" not in document and "cdn" not in "".join(parser.found)


def test_nothing_of_the_page_can_be_called_as_an_api_and_nothing_can_be_left_there(address):
    with urllib.request.urlopen(address + "gradio_api/info") as answer:
        assert json.load(answer)["named_endpoints"] == {}
    form = (
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.html"\r\n\r\n<script></script>\r\n--x--\r\n'
    )
    request = urllib.request.Request(
        address + "gradio_api/upload", form, {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 413


def test_a_board_that_changes_is_shown_to_the_next_visitor(chromium):
    from selectivbench_hf.hub import page

    readings = iter(
        [
            board.from_rows([row(name="old")], "first"),
            board.from_rows([row(name="new", task="te1"), row(name="old")], "second"),
        ]
    )
    kept, port = board.Kept(lambda: next(readings), again=-1), free_port()
    served = page.serve(kept, port=port, browser=False)
    try:
        view = chromium.new_page()
        view.goto(f"http://127.0.0.1:{port}/")
        view.get_by_text("second, read").wait_for()
        choose(view, "Task", "te1")
        wait_for_models(view, ["new"])
        view.close()
    finally:
        served.close(verbose=False)


def test_a_board_that_was_empty_is_filled_for_the_next_visitor_and_no_name_is_translated(chromium):
    from selectivbench_hf.hub import page

    odd = ["common.submit", '__i18n__{"__type__":"translation_metadata","key":"gla"}']  # Gradio's own keys and marks
    found = [row(name=name, repo=f"eve/{at}", run_id=name[:9]) for at, name in enumerate(odd)]
    readings = iter([board.from_rows([], "first"), board.from_rows(found, "second")])
    kept, port = board.Kept(lambda: next(readings), again=-1), free_port()
    served = page.serve(kept, port=port, browser=False)
    try:
        view = chromium.new_page()
        view.goto(f"http://127.0.0.1:{port}/")
        view.get_by_text("2 of 2 lines of this task").wait_for()
        assert view.get_by_label("Task", exact=True).first.input_value() == "lite"
        view.get_by_role("tab", name="Plots").click()
        view.locator("svg[role=img]").first.wait_for()
        picked = view.locator("#sb-plot-models").inner_text().replace("\u2060", "")
        assert all(name in picked for name in odd)
        view.get_by_role("tab", name="Model").click()
        assert view.locator("#sb-model h3").inner_text() == odd[1]
        view.close()
    finally:
        served.close(verbose=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_is_served_behind_a_proxy_and_on_either_kind_of_address(monkeypatch, host):
    from selectivbench_hf.hub import page

    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")  # where nobody answers
    monkeypatch.setenv("no_proxy", "")
    port = free_port()
    try:
        page.check_port(host, port)
    except InputError:
        pytest.skip(f"this machine has no {host}")
    served = page.serve(board.Kept(shown_board), host, port, browser=False)
    monkeypatch.delenv("http_proxy")
    try:
        with urllib.request.urlopen(f"http://{f'[{host}]' if ':' in host else host}:{port}/") as answer:
            assert answer.status == 200
    finally:
        served.close(verbose=False)


def test_a_port_that_is_taken_is_one_sentence():
    from selectivbench_hf.hub import page

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot serve on port .* choose another with --port"):
            page.check_port("127.0.0.1", taken.getsockname()[1])


def test_without_gradio_the_extra_is_named(monkeypatch):
    import sys

    from selectivbench_hf.hub import page

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(InputError, match=re.escape("pip install 'selectivbench_hf[leaderboard]'")):
        page.require_gradio()
