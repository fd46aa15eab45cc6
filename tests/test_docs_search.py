"""The search of the documentation site, as a browser runs it, finds the page that answers a question first."""

import functools
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed"),
]

# What people type -> the section that should come first, or its page where any section of it will do.
SEARCHES = {
    "my gpu is idle": "howto/symptoms.html#my-gpu-is-idle-low-gpu-util",
    "idle gpu": "howto/symptoms.html#my-gpu-is-idle-low-gpu-util",
    "MFU": "howto/symptoms.html#utilization-is-low-mfu",
    "utilization": "howto/symptoms.html#utilization-is-low-mfu",
    "straggler": "howto/symptoms.html#one-rank-is-late-straggler",
    "OOM": "howto/symptoms.html#out-of-memory-oom",
    "dataloader": "howto/symptoms.html#the-data-loader-is-slow",
    "torch.compile": "howto/symptoms.html#torchcompile-is-slow-or-does-not-help",
    "torch.compile slow": "howto/symptoms.html#torchcompile-is-slow-or-does-not-help",
    "slower after upgrade": "howto/symptoms.html#slower-after-an-upgrade-a-regression",
    "regression": "howto/symptoms.html#slower-after-an-upgrade-a-regression",
    "slow step": "howto/symptoms.html",
    "memory": "howto/symptoms.html#out-of-memory-oom",
    "kv cache": "howto/servers.html",
    "recompile": "howto/compile-health.html",
    "send data": "howto/faq.html#does-it-send-data-anywhere",
    "inconclusive": "howto/inconclusive.html",
    "CI": "howto/gate-in-ci.html",
    "flash attention": "tutorial/ten-findings.html",
}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Writes nothing."""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """Gives the results of a search on the built site, each as a page with its section, best first."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(site)], cwd=ROOT, check=True
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--headless=new"])

        def results(query: str) -> list[str]:
            page = browser.new_page()
            page.goto(f"{address}index.html?q={quote(query)}")
            page.locator(".md-search-result__link").first.wait_for(state="attached")
            links = [link.get_attribute("href") for link in page.locator(".md-search-result__link").all()]
            page.close()
            return [re.sub(r"\?[^#]*", "", link).removeprefix(address) for link in links if link]

        yield results
        browser.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("query", "section"), SEARCHES.items(), ids=SEARCHES)
def test_a_search_finds_first_what_answers_it(search: Callable[[str], list[str]], query: str, section: str) -> None:
    page, *sections = search(query)
    first = next((link for link in sections if link.startswith(page)), page)
    assert first.startswith(section) if "#" in section else page.startswith(section), (page, *sections[:3])


def test_a_search_for_oom_finds_the_page_on_memory_behind_the_symptom(search: Callable[[str], list[str]]) -> None:
    links = search("oom")
    pages = list(dict.fromkeys(link.partition("#")[0] for link in links))
    assert pages.index("howto/gpu-memory.html") == 1, links


def test_a_search_never_finds_tables_of_keys_or_verdicts(search: Callable[[str], list[str]]) -> None:
    links = [link for query in ("share", "trace", "verdict") for link in search(query)]
    assert links
    assert [link for link in links if link.startswith(("reference/json", "explanation/verdicts"))] == []
