"""Methods are read wherever a message begins, however a connection's bytes come in pieces, and no body is changed."""

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailrace_gateway.boundaries import HEAD_LIMIT_BYTES, Boundaries, MethodTooLong

BODIES = st.one_of(
    st.binary(max_size=40), st.sampled_from((b"\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"\r\n\r\n\r\n", b"0\r\n\r\nBREW /", b"\n"))
)
METHODS = st.one_of(
    st.sampled_from((b"GET", b"POST", b"BREW", b"get", b"PRI", b"CONNECT", b"PUT")),
    st.from_regex(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True),
)


class Reader:
    """What the protocol does with its parser."""

    def __init__(self) -> None:
        self.boundaries, self.parser = Boundaries(), httptools.HttpRequestParser(self)
        self.seen: list[tuple[bytes, bytes]] = []
        self.body, self.over, self.length = b"", False, None

    def on_message_begin(self) -> None:
        self.body, self.length = b"", 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.length = int(value) if name == b"Content-Length" else None if name == b"Transfer-Encoding" else self.length

    def on_headers_complete(self) -> None:
        self.boundaries.head_over(self.length)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.seen.append((self.boundaries.method or self.parser.get_method(), self.body))
        self.over = True

    def feed(self, data: bytes) -> None:
        while data:
            piece, data = self.boundaries.cut(data)
            if piece:
                self.parser.feed_data(piece)
            if self.over:
                self.over = False
                self.boundaries.message_over()


def written(method: bytes, body: bytes, chunks: int) -> bytes:
    """A message; `chunks` 0: with a length."""
    head = method + b" /q/x HTTP/1.1\r\nHost: a\r\n"
    if not chunks:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    parts = [body[at : at + chunks] for at in range(0, len(body), chunks)]
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@given(
    messages=st.lists(st.tuples(METHODS, BODIES, st.integers(0, 7), st.sampled_from((b"", b"\r\n"))), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
def test_every_message_is_read_as_it_was_written(messages: list[tuple[bytes, bytes, int, bytes]], sizes: list[int]) -> None:
    data = b"".join(blank + written(method, body, chunks) for method, body, chunks, blank in messages)
    reader, at, turn = Reader(), 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert reader.seen == [(method, body) for method, body, _, _ in messages]


def test_what_is_no_method_reaches_the_parser_as_it_came() -> None:
    for data in (b"BR@W / HTTP/1.1", b" GET /", b"\x16\x03\x01", b"BREW\r\n"):
        boundaries, had, rest = Boundaries(), b"", data
        while rest:
            piece, rest = boundaries.cut(rest)
            had += piece
        assert had == data
        assert boundaries.method is None


def test_a_word_without_an_end_is_refused() -> None:
    boundaries = Boundaries()
    for _ in range(HEAD_LIMIT_BYTES // 64):
        assert boundaries.cut(b"A" * 64) == (b"", b"")
    with pytest.raises(MethodTooLong):
        boundaries.cut(b"A")
