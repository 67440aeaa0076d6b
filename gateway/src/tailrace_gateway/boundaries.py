"""Where messages begin in what an HTTP/1.1 connection sends, so that a method that the parser does not know can be read. Pure.

llhttp ends the connection at a method that stands on no list of its own, and reads `CONNECT` and `PRI` by rules of their own; RFC 9110 (9.1) makes a
method any token, and the data plane answers 405 after the key check. So a word besides the common ones is handed on as `PUT`, which has
no meaning of its own to the parser, and kept beside it.

The input is cut at the ends of heads and bodies; a cut is never placed by guess: the parser says when a message is over, and whoever feeds it
ends the connection if that is not where a cut was. Otherwise bytes of a body could be taken for a method.
"""

import re

HEAD_LIMIT_BYTES = 16 * 1024

KNOWN = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"))
"""Methods that the parser reads as themselves."""

_STAND_IN = b"PUT"
_END = b"\r\n\r\n"
_NOT_TOKEN = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")


class MethodTooLong(ValueError):
    """A word that fills a whole head."""


class Boundaries:
    """State of one connection."""

    def __init__(self) -> None:
        self.begins = True
        """The next byte is the first of a message, or of its method."""
        self.method: bytes | None = None
        """What the message under way has in the place of `PUT`; None when the parser has read it itself."""
        self._word = b""
        self._body_left: int | None = None
        self._tail = b""

    def cut(self, data: bytes) -> tuple[bytes, bytes]:
        """What the parser may have now (perhaps nothing yet), and the rest, for which this is called again after it had that. MethodTooLong."""
        if self.begins:
            return self._first_word(data)
        if self._body_left is not None:
            piece = data[: self._body_left]
            self._body_left -= len(piece)
            return piece, data[len(piece) :]
        # A head ends with an empty line, and so does a body in chunks. In a chunk's data one may stand too; a cut there does no harm.
        joint = self._tail + data
        at = joint.find(_END)
        if at < 0:
            self._tail = joint[1 - len(_END) :]
            return data, b""
        end = at + len(_END) - len(self._tail)
        self._tail = b""
        return data[:end], data[end:]

    def _first_word(self, data: bytes) -> tuple[bytes, bytes]:
        if not self._word:
            blank = len(data) - len(data.lstrip(b"\r\n"))
            if blank:
                return data[:blank], data[blank:]
        other = _NOT_TOKEN.search(data)
        self._word += data if other is None else data[: other.start()]
        if len(self._word) > HEAD_LIMIT_BYTES:
            raise MethodTooLong("no end of the method")
        if other is None:
            return b"", b""
        word, self._word = self._word, b""
        self.begins, self._tail = False, b""
        strange = bool(word) and other[0] == b" " and word not in KNOWN
        self.method = word if strange else None
        return (_STAND_IN if strange else word), data[other.start() :]

    def head_over(self, length: int | None) -> None:
        """The parser has read a head. `length`: bytes of the body; None when it comes in chunks."""
        self._body_left = length

    def message_over(self) -> None:
        """The parser has read a message to its end."""
        self.begins, self._body_left = True, None
