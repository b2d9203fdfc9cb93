use super::*;

fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, String> {
    Proxies::read(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
    .map_err(|error| error.to_string())
}

#[test]
fn a_server_is_reached_by_the_proxy_unless_it_is_excepted() {
    let cases = [
        ("", "https://198.18.0.9:7443", true),
        ("*", "https://198.18.0.9:7443", false),
        ("198.18.0.0/15", "https://198.18.0.9:7443", false),
        ("198.18.0.0/32", "https://198.18.0.9:7443", true),
        ("0.0.0.0/0", "https://198.18.0.9:7443", false),
        ("10.0.0.0/8, 198.18.0.9", "https://198.18.0.9:7443", false),
        ("198.18.0.9:7444", "https://198.18.0.9:7443", true),
        ("198.18.0.9:7443", "https://198.18.0.9:7443", false),
        ("198.18.0.0/99", "https://198.18.0.9:7443", true),
        ("fd00::/8", "https://[fd00::5]:7443", false),
        ("fd00::/8", "https://[2001:db8::5]:7443", true),
        ("example.net", "https://c1.example.net:7443", false),
        (".example.net", "https://c1.example.net:7443", false),
        ("*.example.net", "https://c1.EXAMPLE.net:7443", false),
        ("ample.net", "https://c1.example.net:7443", true),
        ("", "https://127.0.0.1:7443", false),
        ("", "https://[::1]:7443", false),
        ("", "localhost:7443", false),
    ];
    for (without, server, by_proxy) in cases {
        let proxies = proxies(&[("HTTPS_PROXY", "http://proxy:8080"), ("NO_PROXY", without)]).unwrap();
        assert_eq!(proxies.to(server).is_some(), by_proxy, "NO_PROXY={without} {server}");
    }
    assert!(proxies(&[]).unwrap().to("https://198.18.0.9:7443").is_none());
}

#[test]
fn a_proxy_is_read_or_the_variable_is_named() {
    let one = |value: &str| proxies(&[("https_proxy", value)]).map(|found| found.proxy.unwrap());
    assert_eq!(one("http://proxy:8080/").unwrap().address, "proxy:8080");
    assert_eq!(one("proxy").unwrap().address, "proxy:3128");
    assert_eq!(one("http://[fd00::1]:80").unwrap().address, "[fd00::1]:80");
    let with_user = one("http://me:secret@proxy:8080").unwrap();
    assert_eq!(with_user.authorization.as_deref(), Some("Basic bWU6c2VjcmV0"));
    assert_eq!((with_user.address.as_str(), with_user.url()), ("proxy:8080", "http://me:secret@proxy:8080"));
    for wrong in ["socks5://proxy:1080", "http://:8080", "http://proxy:port", "http://a b:80"] {
        let error = one(wrong).unwrap_err().to_string();
        assert!(error.contains("https_proxy") && error.contains("http://HOST:PORT"), "{error}");
    }
}
