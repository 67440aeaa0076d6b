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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::golden::vectors;

    #[test]
    fn as_the_vectors_say() {
        const FAULTS: [Fault; 3] = [Fault::Type, Fault::Unknown, Fault::MinLength];
        for vector in vectors("problems.json").as_array().unwrap() {
            let code = Code::ALL.into_iter().find(|code| code.name() == vector["code"]).unwrap();
            let number = |n: usize| u64::from_str_radix(vector["run"][n].as_str().unwrap(), 16).unwrap();
            let run = vector["run"].is_array().then(|| RunId { epoch: number(0), sequence: number(1) });
            let fault = |name: &str| FAULTS.into_iter().find(|fault| fault.code() == name).unwrap();
            let faults: Vec<_> = vector["faults"]
                .as_array()
                .unwrap()
                .iter()
                .map(|f| (f[0].as_str().unwrap().to_owned(), fault(f[1].as_str().unwrap())))
                .collect();
            let mut out = Vec::new();
            write(code, run, &faults, &mut out);
            assert_eq!(std::str::from_utf8(&out).unwrap(), vector["body"].as_str().unwrap());
        }
    }
}
