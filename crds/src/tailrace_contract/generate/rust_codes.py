"""`dataplane-rs/src/codes.rs` from `tailrace_contract.codes`."""

from tailrace_contract.codes import CODES, FAULT_DETAILS, Fault


def _variant(name: str) -> str:
    parts = name.replace("-", "_").split("_")
    return "".join(part[:1].upper() + part[1:] for part in parts)


def _match(function: str, result: str, rows: list[tuple[str, str]], doc: str) -> str:
    arms = "\n".join(f"            Self::{variant} => {value}," for variant, value in rows)
    return f"    /// {doc}\n    pub const fn {function}(self) -> {result} {{\n        match self {{\n{arms}\n        }}\n    }}\n"


def render() -> str:
    """The Rust source text."""
    variants = [(_variant(code.name), code) for code in CODES]
    faults = [(_variant(fault.value), fault) for fault in Fault]
    lines = [
        "//! Generated from tailrace_contract.codes by `make generate`. Do not edit.",
        "",
        "/// A stable error code of the API (docs/errors.md).",
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]",
        "pub enum Code {",
        *(f"    /// {code.detail}\n    {variant}," for variant, code in variants),
        "}",
        "",
        "impl Code {",
        "    /// Every code, in the order of the contract.",
        f"    pub const ALL: [Self; {len(variants)}] = [{', '.join(f'Self::{variant}' for variant, _ in variants)}];",
        "",
        _match("name", "&'static str", [(v, f'"{c.name}"') for v, c in variants], "The code's stable name."),
        _match("status", "u16", [(v, str(c.status)) for v, c in variants], "HTTP status."),
        _match("title", "&'static str", [(v, f'"{c.title}"') for v, c in variants], "`title` of the problem."),
        _match("detail", "&'static str", [(v, f'"{c.detail}"') for v, c in variants], "`detail` of the problem."),
        _match(
            "retry_after_s",
            "Option<u32>",
            [(v, "None" if c.retry_after_s is None else f"Some({c.retry_after_s})") for v, c in variants],
            "Whole seconds of Retry-After.",
        ).rstrip("\n"),
        "}",
        "",
        "/// Why one parameter was refused, in the order in which faults are looked for.",
        "#[derive(Clone, Copy, Debug, PartialEq, Eq)]",
        "pub enum Fault {",
        *(f"    /// {FAULT_DETAILS[fault]}\n    {variant}," for variant, fault in faults),
        "}",
        "",
        "impl Fault {",
        _match("code", "&'static str", [(v, f'"{f.value}"') for v, f in faults], "`errors[].code`."),
        _match("detail", "&'static str", [(v, f'"{FAULT_DETAILS[f]}"') for v, f in faults], "`errors[].detail`.").rstrip("\n"),
        "}",
        "",
    ]
    return "\n".join(lines)
