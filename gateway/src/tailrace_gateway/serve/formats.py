"""The forms of an answer's body. Pure; rejects nothing."""

from enum import StrEnum


class Format(StrEnum):
    """In the order that breaks ties; the value is the word of `format=`."""

    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"

    @property
    def content_type(self) -> str:
        """`Content-Type` of an answer."""
        return _CONTENT_TYPES[self]


_CONTENT_TYPES = {
    Format.JSON: "application/json",
    Format.NDJSON: "application/x-ndjson",
    Format.CSV: "text/csv; charset=utf-8; header=present",
}


def parse_format(word: str) -> Format | None:
    """The format that a word of `format=` names."""
    return next((form for form in Format if form.value == word), None)


def completion(rows: int, truncated: bool) -> str:
    """The last line of NDJSON."""
    return f'{{"$complete":{{"rows":{rows},"truncated":{"true" if truncated else "false"}}}}}\n'


def affected(form: Format, count: int) -> bytes:
    """The whole body of `returns: none`."""
    match form:
        case Format.JSON:
            text = f'{{"affected":{count}}}'
        case Format.NDJSON:
            text = f'{{"affected":{count}}}\n' + completion(0, truncated=False)
        case Format.CSV:
            text = f"affected\r\n{count}\r\n"
    return text.encode()
