"""One page over plain HTTP: bounded, without redirects."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bottleneck.errors import TraceError, UsageError
from bottleneck.system.plain_http import fetch_page, is_address


class Pages(BaseHTTPRequestHandler):
    """A page, a redirect to it, and what is missing."""

    def do_GET(self) -> None:
        status = {"/metrics": 200, "/moved": 302}.get(self.path, 404)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/metrics")
        self.end_headers()
        self.wfile.write(b"a 1\n" if status == 200 else b"")

    def log_message(self, *_: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_is_fetched_and_a_bare_host_means_its_metrics(address: str) -> None:
    assert fetch_page(f"{address}/metrics", 100) == b"a 1\n" == fetch_page(address, 100)


@pytest.mark.parametrize(("path", "why"), [("/moved", "redirects are not followed"), ("/none", "status 404")])
def test_redirects_and_missing_pages_are_refused(address: str, path: str, why: str) -> None:
    with pytest.raises(TraceError) as caught:
        fetch_page(address + path, 100)
    assert why in caught.value.why and caught.value.fix


def test_a_page_beyond_the_bound_is_refused(address: str) -> None:
    with pytest.raises(TraceError) as caught:
        fetch_page(f"{address}/metrics", 3)
    assert "larger" in caught.value.why


def test_nobody_who_listens_is_an_error(address: str) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        fetch_page("http://127.0.0.1:1/metrics", 100)


@pytest.mark.parametrize("text", ["https://host/metrics", "ftp://host/", "http://", "http://u:p@host/", "http://h:x/"])
def test_other_addresses_are_refused_before_anything_is_asked(text: str) -> None:
    assert is_address(text)
    with pytest.raises(UsageError):
        fetch_page(text, 100)
