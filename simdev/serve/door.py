"""Who may come in by HTTP: judged by the headers alone, before a byte of the body is read."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence

from .errors import RequestError

HOSTS = ("127.0.0.1", "localhost", "[::1]")
_ORIGIN = re.compile(rb"https?://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?\Z")
_LENGTH = re.compile(rb"[0-9]{1,15}\Z")

Headers = Sequence[tuple[bytes, bytes]]
Verdict = tuple[int, RequestError] | None


def judge(headers: Headers, port: int, token: str, limit: int) -> Verdict:
    """The status and error that turn a request away, or None. Header names are in lower case."""
    return _stranger(headers, port, token) or _unreadable(headers, limit)


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in headers if key == name]


def _stranger(headers: Headers, port: int, token: str) -> Verdict:
    """A name that was made to lead here, a page of another site, or no token."""
    hosts = [value.lower() for value in _values(headers, b"host")]
    if len(hosts) != 1 or hosts[0] not in [f"{host}:{port}".encode() for host in HOSTS]:
        return 403, RequestError(
            "forbidden", "the Host header must name this server on the loopback"
        )
    if any(not _ORIGIN.match(origin.lower()) for origin in _values(headers, b"origin")):
        return 403, RequestError("forbidden", "pages of other sites may not ask")
    given = _values(headers, b"authorization")
    known = len(given) == 1 and hmac.compare_digest(given[0], f"Bearer {token}".encode())
    return (
        None
        if known
        else (401, RequestError("unauthorized", "Authorization: Bearer TOKEN is missing or wrong"))
    )


def _unreadable(headers: Headers, limit: int) -> Verdict:
    """A body of another type, of no told length, or too long."""
    types = [
        value.partition(b";")[0].strip().lower() for value in _values(headers, b"content-type")
    ]
    if types != [b"application/json"]:
        return 415, RequestError("invalid", "the Content-Type must be application/json")
    lengths = _values(headers, b"content-length")
    if not lengths or _values(headers, b"transfer-encoding"):
        return 411, RequestError("invalid", "a Content-Length is needed, and no Transfer-Encoding")
    if len(lengths) > 1 or not _LENGTH.match(lengths[0]):
        return 400, RequestError("invalid", "the Content-Length must be one whole number of bytes")
    if int(lengths[0]) > limit:
        return 413, RequestError("too_large", f"the request is larger than {limit} bytes")
    return None
