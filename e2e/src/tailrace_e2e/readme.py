"""README's commands, as a reader would paste them. IO: reads the file. Fails with LookupError when the section or its block is gone."""

from pathlib import Path


def commands(readme: Path, heading: str) -> list[str]:
    """The lines of the first indented block below a heading, in order."""
    lines = readme.read_text(encoding="utf-8").splitlines()
    try:
        begin = lines.index(f"## {heading}") + 1
    except ValueError:
        raise LookupError(f"{readme.name} has no section {heading!r}") from None
    found: list[str] = []
    for line in lines[begin:]:
        if line.startswith("## "):
            break
        if line.startswith("    "):
            found.append(line.strip())
        elif found and line.strip():
            break
    if not found:
        raise LookupError(f"{heading!r} of {readme.name} has no commands")
    return found
