"""Names as SQL writes them: `shop.customers`, `"E-Mail"`. Pure; ValueError for what is none."""

from collections.abc import Iterator


def parts(text: str) -> tuple[str, ...]:
    """Dotted parts; unquoted ones fold to lower case, quoted ones (`""` doubles) stay."""
    found = tuple(_split(text, "."))
    if not found:
        raise ValueError("not a name")
    return found


def listed(text: str) -> tuple[str, ...]:
    """Comma-separated names, as in `search_path`."""
    return tuple(_split(text, ",")) if text.strip() else ()


def quoted(name: str, quote: str = '"') -> str:
    """Always in quotes (MySQL: backticks)."""
    return quote + name.replace(quote, quote * 2) + quote


def _split(text: str, divider: str) -> Iterator[str]:
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at < len(text) and text[at] == '"':
            part = ""
            at += 1
            while True:
                end = text.find('"', at)
                if end < 0:
                    raise ValueError("a quote has no end")
                part += text[at:end]
                at = end + 1
                if text[at : at + 1] != '"':
                    break
                part += '"'
                at += 1
        else:
            start = at
            while at < len(text) and (text[at].isalnum() or text[at] in "_$"):
                at += 1
            part = text[start:at].lower()
        if not part:
            raise ValueError("not a name")
        yield part
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        if text[at] != divider:
            raise ValueError("not a name")
        at += 1
