//! What a store says that its answers are, against what was asked.

use std::ops::RangeInclusive;
use ureq::http::HeaderMap;

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    /// What changes with its contents, as the store writes it; nothing from a store that has none.
    pub(super) tag: Option<String>,
    /// Bytes.
    pub(super) size: u64,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted<'a> {
    /// Place and number of bytes; all of them without it.
    pub(super) range: Option<(u64, u64)>,
    /// The object of which they are, where that is known.
    pub(super) object: Option<&'a Object>,
}

/// What an answer must be, as its head says and what was asked allows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// The object.
    pub(super) object: Object,
    /// Bytes of the answer.
    pub(super) bytes: u64,
}

type Reason = &'static str;

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-length")?.trim().parse().ok()
}

/// The object that an answer without bytes is about.
pub(super) fn object(headers: &HeaderMap) -> Result<Object, Reason> {
    let size = length(headers).filter(|size| *size <= i64::MAX as u64);
    let size = size.ok_or("the store does not say how long it is")?;
    Ok(Object { tag: text(headers, "etag").map(str::to_owned), size })
}

/// `bytes 2-9/40`.
fn range(headers: &HeaderMap) -> Option<(RangeInclusive<u64>, u64)> {
    let (range, all) = text(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.trim().parse().ok()?..=last.trim().parse().ok()?, all.trim().parse().ok()?))
}

/// What follows the head of an answer to a call for bytes.
pub(super) fn answered(status: u16, headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Answered, Reason> {
    let length = length(headers).ok_or("the store does not say how long its answer is")?;
    let tag = text(headers, "etag").map(str::to_owned);
    let (size, bytes) = match (wanted.range, status) {
        (None, 200) => (length, length),
        // Of an empty object there is no range.
        (Some(_), 200) if length == 0 => (0, 0),
        (Some((start, most)), 206) => {
            let (told, all) = range(headers).ok_or("the store does not say which bytes it gives")?;
            let end = start.saturating_add(most).min(all);
            if *told.start() != start || told.end().checked_add(1) != Some(end) || end <= start {
                return Err("the store gives other bytes than it was asked for");
            }
            if length != end - start {
                return Err("the store's answer is not as long as its range");
            }
            (all, length)
        }
        _ => return Err("the store gives the whole where it was asked for a part, or a part for the whole"),
    };
    let object = Object { tag, size };
    if wanted.object.is_some_and(|known| *known != object) {
        return Err("another object has taken its place");
    }
    Ok(Answered { object, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn head(range: &str, length: &str, tag: &str) -> HeaderMap {
        headers(&[("content-range", range), ("content-length", length), ("etag", tag)])
    }

    #[test]
    fn only_what_was_asked_is_taken() {
        let object = Object { tag: Some("a".to_owned()), size: 100 };
        let wanted = Wanted { range: Some((10, 20)), object: Some(&object) };
        let right = answered(206, &head("bytes 10-29/100", "20", "a"), &wanted);
        assert_eq!(right, Ok(Answered { object: object.clone(), bytes: 20 }));
        // Less only at the end.
        let last = Wanted { range: Some((90, 20)), object: Some(&object) };
        assert_eq!(answered(206, &head("bytes 90-99/100", "10", "a"), &last).unwrap().bytes, 10);
        let wrong = [
            (200, "bytes 10-29/100", "20", "a"),
            (200, "bytes 10-29/100", "100", "a"),
            (206, "bytes 0-19/100", "20", "a"),
            (206, "bytes 10-19/100", "10", "a"),
            (206, "bytes 10-30/100", "21", "a"),
            (206, "bytes 10-29/100", "21", "a"),
            (206, "bytes 10-29/100", "19", "a"),
            (206, "bytes 10-29/100", "", "a"),
            (206, "bytes 10-29/101", "20", "a"),
            (206, "bytes 10-29/*", "20", "a"),
            (206, "", "20", "a"),
            (206, "bytes 29-10/100", "20", "a"),
            (206, "bytes 10-29/100", "20", "b"),
            (204, "bytes 10-29/100", "20", "a"),
        ];
        for (status, range, length, tag) in wrong {
            let told = answered(status, &head(range, length, tag), &wanted);
            assert!(told.is_err(), "{status} {range} {length} {tag}: {told:?}");
        }
        assert!(answered(206, &head("bytes 0-99/100", "100", "a"), &Wanted::default()).is_err());
        assert!(answered(200, &headers(&[("etag", "a")]), &Wanted::default()).is_err());
        assert!(object_without_length().is_err());
    }

    fn object_without_length() -> Result<Object, Reason> {
        super::object(&headers(&[("etag", "a")]))
    }
}
