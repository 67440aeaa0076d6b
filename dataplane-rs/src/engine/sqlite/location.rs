//! Which file a `sqlite:///PATH` URL names; twin of the gateway's `serve/sqlite/location.py`. IO: none.
use std::path::PathBuf;

/// Not a URL of a SQLite file. Never says which: URLs may hold secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a sqlite:///PATH URL")]
pub struct LocationError;

/// `sqlite:///relative.db` is relative to the working directory, `sqlite:////abs/olute.db` is not. No host, no parameters.
pub fn database_path(url: &str) -> Result<PathBuf, LocationError> {
    let text = url.strip_prefix("sqlite:///").ok_or(LocationError)?;
    if text.is_empty() || text.contains(['?', '#']) {
        return Err(LocationError);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>().ok_or(LocationError)?;
        let [high, low] = digits.map(|d| char::from(d).to_digit(16));
        bytes.push((high.ok_or(LocationError)? << 4 | low.ok_or(LocationError)?) as u8);
        rest = after;
    }
    let path = String::from_utf8(bytes).map_err(|_| LocationError)?;
    if path.contains('\0') || path == ":memory:" { Err(LocationError) } else { Ok(path.into()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn urls_as_the_vectors_say() {
        for case in crate::golden::vectors("sqlite_url.json").as_array().unwrap() {
            let url = case["url"].as_str().unwrap();
            let path = database_path(url).ok().map(|p| p.to_str().unwrap().to_owned());
            assert_eq!(path.as_deref(), case["path"].as_str(), "{url}");
        }
    }
}
