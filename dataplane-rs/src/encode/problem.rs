//! RFC 9457 bodies. May reject: nothing. IO: none.
use super::text::string;
use crate::codes::{Code, Fault};
use crate::runs::RunId;

/// Media type of a problem.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// Appends the body. `faults` are (parameter name, what is wrong with it), already in order.
pub fn write(code: Code, run: Option<RunId>, faults: &[(String, Fault)], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"urn:tailrace:problem:");
    out.extend_from_slice(code.name().as_bytes());
    out.extend_from_slice(b"\",\"title\":");
    text(code.title(), out);
    out.extend_from_slice(b",\"status\":");
    out.extend_from_slice(itoa::Buffer::new().format(code.status()).as_bytes());
    out.extend_from_slice(b",\"detail\":");
    text(code.detail(), out);
    if let Some(run) = run {
        let mut id = [0; RunId::TEXT];
        run.write(&mut id);
        out.extend_from_slice(b",\"instance\":\"urn:tailrace:run:");
        out.extend_from_slice(&id);
        out.push(b'"');
    }
    out.extend_from_slice(b",\"code\":\"");
    out.extend_from_slice(code.name().as_bytes());
    out.push(b'"');
    for (n, (name, fault)) in faults.iter().enumerate() {
        out.extend_from_slice(if n == 0 { b",\"errors\":[" } else { b"," });
        out.extend_from_slice(b"{\"pointer\":");
        text(&format!("/{}", name.replace('~', "~0").replace('/', "~1")), out);
        out.extend_from_slice(b",\"code\":\"");
        out.extend_from_slice(fault.code().as_bytes());
        out.extend_from_slice(b"\",\"detail\":");
        text(fault.detail(), out);
        out.push(b'}');
    }
    out.extend_from_slice(if faults.is_empty() { b"}" } else { b"]}" });
}

fn text(value: &str, out: &mut Vec<u8>) {
    let _valid = string(value.as_bytes(), out); // a str is UTF-8
}
