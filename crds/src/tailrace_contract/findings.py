"""What is wrong with a document, where, and what to do. Pure values; shown by `tailrace check`, a CR's status and the goldens."""

from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Field names and positions from the document's root."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One fault. `message` names the field and what is wrong, `hint` (may be empty) the fix. Neither holds a secret."""

    path: Path
    message: str
    hint: str = ""

    @property
    def place(self) -> str:
        """The path as people write it: `spec.queries[2].params.id`."""
        return format_path(self.path)


def format_path(path: Path) -> str:
    """`spec.queries[2].params.id`; a name that is not plain is quoted in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "a").replace("-", "a").isalnum():
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text
