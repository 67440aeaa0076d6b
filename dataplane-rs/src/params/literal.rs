//! Values of a plan (defaults, enums, key bindings) → texts of the parameter grammar. Rejects values of another type. IO: none.
//!
//! Numbers may stand as strings, so that no reader rounds them; JSON numbers with a fraction or exponent, or beyond 64 bits, are doubles.
use crate::encode::{float, text::string};
use crate::plan::snapshot::ParamType;
use serde_json::{Number, Value};

/// The text of one value that is not null, as a caller would write it; None for another type.
pub fn text(kind: ParamType, value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match (kind, value) {
        (ParamType::Json, value) => json(value, &mut out),
        (ParamType::Boolean, Value::Bool(flag)) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
        (ParamType::Integer | ParamType::Number, Value::Number(value)) => number(value, &mut out),
        (ParamType::Boolean, _) => return None,
        (_, Value::String(text)) => out.extend_from_slice(text.as_bytes()),
        _ => return None,
    }
    Some(out)
}

fn number(value: &Number, out: &mut Vec<u8>) {
    if let Some(n) = value.as_i64() {
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
    } else if let Some(n) = value.as_u64() {
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
    } else {
        float::write(value.as_f64().unwrap_or(f64::NAN), out);
    }
}

/// Compact JSON, members in the order of their names.
fn json(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
        Value::Number(value) => number(value, out),
        Value::String(text) => quoted(text, out),
        Value::Array(elements) => {
            out.push(b'[');
            for (n, element) in elements.iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                json(element, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            out.push(b'{');
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            for (n, (name, value)) in sorted.into_iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                quoted(name, out);
                out.push(b':');
                json(value, out);
            }
            out.push(b'}');
        }
    }
}

fn quoted(text: &str, out: &mut Vec<u8>) {
    let _valid = string(text.as_bytes(), out); // a str is UTF-8
}
