//! One HTTPS request with a bounded answer. HTTP/1.0, so that the answer ends with the stream.

use crate::session::tls::{clock_words, split_address};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// Longest answer, bytes.
pub(super) const ANSWER_BYTES_MAX: u64 = 256 * 1024;
/// The whole exchange takes at most so long, seconds.
const EXCHANGE_S: u64 = 20;

/// Host and port of `https://host:port`.
pub(super) fn parse_base(base: &str) -> Result<(&str, u16), String> {
    let wrong =
        || format!("'{base}' is not an address: use https://host:port, such as https://192.0.2.1:7443");
    let authority = base.strip_prefix("https://").ok_or_else(wrong)?;
    split_address(authority.strip_suffix('/').unwrap_or(authority)).map_err(|_| wrong())
}

/// Posts JSON; status and body of the answer.
pub(super) async fn post(
    config: Arc<ClientConfig>,
    base: &str,
    path: &str,
    body: &[u8],
) -> Result<(u16, Zeroizing<Vec<u8>>), String> {
    let exchange = tokio::time::timeout(Duration::from_secs(EXCHANGE_S), exchange(config, base, path, body));
    exchange.await.map_err(|_| format!("no answer within {EXCHANGE_S} seconds"))?
}

async fn exchange(
    config: Arc<ClientConfig>,
    base: &str,
    path: &str,
    body: &[u8],
) -> Result<(u16, Zeroizing<Vec<u8>>), String> {
    let (host, port) = parse_base(base)?;
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
    let mut stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| clock_words(&error).unwrap_or_else(|| format!("TLS: {error}")))?;
    let authority = base.trim_start_matches("https://").trim_end_matches('/');
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Accept: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let io = |error: std::io::Error| error.to_string();
    stream.write_all(head.as_bytes()).await.map_err(io)?;
    stream.write_all(body).await.map_err(io)?;
    stream.flush().await.map_err(io)?;
    let mut answer = Zeroizing::new(Vec::new());
    match stream.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer).await {
        Ok(_) => {}
        // Servers often end without TLS's own farewell; the length below tells whether all came.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error.to_string()),
    }
    parse_answer(&answer)
}

/// Splits an answer; a body shorter than announced is an error.
pub(super) fn parse_answer(answer: &[u8]) -> Result<(u16, Zeroizing<Vec<u8>>), String> {
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"));
    }
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or("the answer is not HTTP")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "the answer is not HTTP")?;
    let mut lines = head.split("\r\n");
    let mut status = lines.next().unwrap_or_default().split(' ');
    let version = status.next().unwrap_or_default();
    let code = status.next().and_then(|code| code.parse().ok()).filter(|code| (100..600).contains(code));
    let (true, Some(code)) = (version.starts_with("HTTP/1."), code) else {
        return Err("the answer is not HTTP".into());
    };
    let mut body = &answer[end + 4..];
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && !value.eq_ignore_ascii_case("identity") {
            return Err(format!("the answer comes in the encoding '{value}', which was not asked for"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value.parse().map_err(|_| "the answer's length is not a number")?;
            body = body.get(..length).ok_or("the answer is cut off")?;
        }
    }
    Ok((code, Zeroizing::new(body.to_vec())))
}

/// What an error's body says: a field that errors usually have, or its beginning.
pub(super) fn reason_of(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let field = json.as_ref().and_then(|json| {
        let names = ["detail", "message", "error", "title"];
        names.iter().find_map(|name| json.get(name).and_then(|value| value.as_str()))
    });
    match field {
        Some(text) => text.chars().take(500).collect(),
        None => {
            let text = String::from_utf8_lossy(body);
            text.chars().filter(|c| !c.is_control()).take(200).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let read = |text: &str| parse_answer(text.as_bytes()).map(|(code, body)| (code, body.to_vec()));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Ok((200, b"hi".to_vec())));
        assert_eq!(read("HTTP/1.0 404 Not Found\r\n\r\ngone"), Ok((404, b"gone".to_vec())));
        for (wrong, part) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", "cut off"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi", "encoding 'chunked'"),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not a number"),
            ("SSH-2.0-x\r\n\r\n", "not HTTP"),
            ("HTTP/1.1 20 OK\r\n\r\n", "not HTTP"),
            ("", "not HTTP"),
        ] {
            assert!(read(wrong).unwrap_err().contains(part), "{wrong}");
        }
    }

    #[test]
    fn reasons_are_short_and_printable() {
        assert_eq!(reason_of(br#"{"code":1,"message":"no"}"#), "no");
        assert_eq!(reason_of(b"plain\x1b[31m\r\n"), "plain[31m");
        assert!(reason_of(&[b'x'; 10_000]).len() <= 200);
    }

    #[test]
    fn any_answer_and_any_token_is_read_or_refused() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let with_head = [b"HTTP/1.1 200 OK\r\n", bytes, b"\r\n\r\n", bytes].concat();
            for answer in [bytes, &with_head] {
                if let Ok((_, body)) = parse_answer(answer) {
                    assert!(body.len() <= answer.len());
                }
            }
            let _ = reason_of(bytes);
            let text = String::from_utf8_lossy(bytes);
            let _ = parse_base(&text);
            let _ = crate::join::parse_token(&text);
            let _ = crate::join::parse_token(&format!("weir1.{text}"));
        });
    }
}
