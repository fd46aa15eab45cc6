"""Fetches one page over plain HTTP.

It is a GET without redirects, bounded in size and time. The file is one of its own because nothing else of the
package talks to a network.
"""

import http.client
import time
from urllib.parse import urlsplit

from bottleneck.errors import TraceError, UsageError

_LONGEST_S = 10.0
_PIECE_BYTES = 65536


def is_address(text: str) -> bool:
    """Returns whether a text is an address of the web, not a path."""
    return "://" in text


def fetch_page(address: str, most_bytes: int, longest_s: float = _LONGEST_S) -> bytes:
    """Fetches a page of at most so many bytes.

    Raises UsageError for an address that is not of plain HTTP, TraceError where there is no such page.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise UsageError(f"{address!r} is no address", why=str(exc), fix="pass http://HOST:PORT/metrics") from exc
    if parts.scheme != "http" or not host or parts.username is not None:
        raise UsageError(
            f"{address!r} is no plain address http://HOST:PORT/PATH",
            why="only plain HTTP without a user name is read",
            fix="save the page and pass the file: curl ADDRESS > metrics.txt",
        )
    deadline = time.monotonic() + longest_s
    connection = http.client.HTTPConnection(host, port, timeout=longest_s)
    try:
        connection.request("GET", f"{parts.path or '/metrics'}{'?' + parts.query if parts.query else ''}")
        with connection.getresponse() as answer:
            if answer.status != http.client.OK:
                raise _no_page(address, f"it answers with status {answer.status}; redirects are not followed")
            return _content(answer, address, most_bytes, deadline)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise _no_page(address, f"{type(exc).__name__}: {exc}") from exc
    finally:
        connection.close()


def _content(answer: http.client.HTTPResponse, address: str, most_bytes: int, deadline: float) -> bytes:
    pieces, size = [], 0
    while piece := answer.read1(_PIECE_BYTES):
        size += len(piece)
        if size > most_bytes:
            raise _no_page(address, f"it is larger than {most_bytes // 2**20} MiB")
        if time.monotonic() > deadline:
            raise _no_page(address, "it did not end in time")
        pieces.append(piece)
    return b"".join(pieces)


def _no_page(address: str, why: str) -> TraceError:
    return TraceError(f"{address} cannot be read", why=why, fix="check it with: curl ADDRESS; or pass a saved file")
