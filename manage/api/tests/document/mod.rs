//! The document drives requests: each field of each body at its ends and one beyond them, and every path with odd methods, bodies and content
//! types. What the document allows is not refused for its shape; what it does not allow is, by a problem in JSON that names the field.

use super::Rote;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, StatusCode, header};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tower::ServiceExt;
use weir_api::bounds::{ADDRESS, HEX, LABEL, is_of};
use weir_api::server::{Admins, finished, openapi, router};
use weir_api::tls::Peer;
use weir_api::types::Problem;
use weir_api::within::DEPTH_MAX;

/// Deepest schema that is made a value of.
const SCHEMAS_DEPTH_MAX: usize = 12;
/// Longer texts and lists than this are made only for what must be refused by their length.
const MADE_MAX: u64 = 300_000;

struct Door {
    document: Value,
    service: Router,
    runtime: tokio::runtime::Runtime,
}

impl Door {
    fn new() -> Door {
        let service = finished(router(Arc::new(Rote(None)), Admins::of_token("t")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Door { document: openapi(), service, runtime }
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        kind: Option<&str>,
        body: Vec<u8>,
    ) -> (StatusCode, String, Vec<u8>) {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::AUTHORIZATION, "Bearer t");
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let mut request = request.body(Body::from(body)).unwrap();
        let peer = Peer::of("198.18.0.7:1".parse().unwrap(), None);
        request.extensions_mut().insert(ConnectInfo(peer));
        self.runtime.block_on(async {
            let answer = self.service.clone().oneshot(request).await.unwrap();
            let status = answer.status();
            let kind =
                answer.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_string());
            // A watch goes on.
            let body = match status {
                StatusCode::OK => Vec::new(),
                _ => to_bytes(answer.into_body(), 1 << 20).await.unwrap().to_vec(),
            };
            (status, kind.unwrap_or_default(), body)
        })
    }

    /// The problem of an answer that is an error.
    fn problem(&self, method: &str, path: &str, kind: Option<&str>, body: Vec<u8>) -> (StatusCode, Problem) {
        let (status, said, answer) = self.ask(method, path, kind, body);
        let text = String::from_utf8_lossy(&answer);
        assert!(status.is_client_error() || status.is_server_error(), "{method} {path}: {status} {text}");
        assert_eq!(said, "application/json", "{method} {path}: {status} {text}");
        let problem = serde_json::from_slice(&answer);
        (status, problem.unwrap_or_else(|error| panic!("{method} {path}: {error}: {text}")))
    }

    fn schema(&self, name: &str) -> &Value {
        &self.document["components"]["schemas"][name]
    }

    /// A schema, also where it is meant by its name, or beside null.
    fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        if let Some(place) = schema["$ref"].as_str() {
            return self.schema(place.rsplit('/').next().unwrap());
        }
        match schema["oneOf"].as_array() {
            Some(one_of) if one_of.iter().any(|one| one["type"] == "null") => {
                let other = one_of.iter().find(|one| one["type"] != "null").unwrap();
                self.resolved(other)
            }
            _ => schema,
        }
    }

    /// Path, method and schema of what takes JSON.
    fn bodies(&self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for (path, operations) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let place =
                    operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
                if let Some(place) = place {
                    let schema = place.rsplit('/').next().unwrap().to_string();
                    found.push((filled(path), method.to_uppercase(), schema));
                }
            }
        }
        assert!(found.len() >= 10, "{found:?}");
        found
    }

    /// A value that a schema allows: the least of it.
    fn least(&self, schema: &Value, depth: usize) -> Value {
        let schema = self.resolved(schema);
        if depth > SCHEMAS_DEPTH_MAX {
            return Value::Null;
        }
        if let Some(all) = schema["allOf"].as_array() {
            let mut whole = Map::new();
            for part in all {
                whole.extend(self.least(part, depth + 1).as_object().cloned().unwrap_or_default());
            }
            return Value::Object(whole);
        }
        if let Some(one_of) = schema["oneOf"].as_array() {
            return self.least(&one_of[0], depth + 1);
        }
        if let Some(word) = schema["enum"].as_array().map(|words| words[0].clone()) {
            return word;
        }
        if is_of(schema, "integer") {
            return schema["minimum"].clone();
        }
        if is_of(schema, "boolean") {
            return json!(false);
        }
        if is_of(schema, "string") {
            return json!(self.text(schema, false));
        }
        if is_of(schema, "array") {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            return (0..least).map(|_| self.least(&schema["items"], depth + 1)).collect();
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let fields = required.iter().map(|name| {
            let name = name.as_str().unwrap();
            (name.to_string(), self.least(&schema["properties"][name], depth + 1))
        });
        Value::Object(fields.collect())
    }

    /// Text that a schema allows: a short one, or the longest.
    fn text(&self, schema: &Value, longest: bool) -> String {
        let length = match (longest, schema["maxLength"].as_u64()) {
            (true, Some(most)) => most as usize,
            _ => 1,
        };
        match schema["pattern"].as_str() {
            Some(ADDRESS) if longest => "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".into(),
            Some(ADDRESS) => "::".into(),
            // Of a name, of hexadecimal digits, and of what has no pattern.
            _ => "a".repeat(length),
        }
    }

    /// All fields below a schema with their paths; `into` puts a value at one into a body that is right otherwise.
    fn fields(&self, schema: &Value, path: &str, depth: usize, found: &mut Vec<(String, Value)>) {
        let schema = self.resolved(schema);
        if depth > SCHEMAS_DEPTH_MAX {
            return;
        }
        for part in
            ["allOf", "oneOf"].iter().flat_map(|which| schema[*which].as_array().into_iter().flatten())
        {
            self.fields(part, path, depth + 1, found);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let place = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            found.push((place.clone(), self.resolved(field).clone()));
            self.fields(field, &place, depth + 1, found);
        }
        if is_of(schema, "array") {
            let place = format!("{path}.0");
            found.push((place.clone(), self.resolved(&schema["items"]).clone()));
            self.fields(&schema["items"], &place, depth + 1, found);
        }
    }

    /// Values at the ends of a schema, and values beyond them.
    fn ends(&self, schema: &Value) -> (Vec<Value>, Vec<Value>) {
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        if is_of(schema, "integer") {
            for (name, step) in [("minimum", -1_i128), ("maximum", 1)] {
                let end = schema[name].as_number().unwrap_or_else(|| panic!("no {name} in {schema}"));
                right.push(schema[name].clone());
                let beyond = end.as_i128().unwrap() + step;
                // What fits in no number of JSON's is written as it is.
                wrong.push(serde_json::from_str(&beyond.to_string()).unwrap());
            }
            wrong.extend([json!("1"), json!(1.5), json!(true)]);
        } else if let Some(words) = schema["enum"].as_array() {
            right.extend(words.clone());
            wrong.extend([json!("no such word"), json!(7)]);
        } else if is_of(schema, "string") {
            let most = schema["maxLength"].as_u64().unwrap_or_else(|| panic!("no maxLength in {schema}"));
            right.extend([json!(self.text(schema, false)), json!(self.text(schema, true))]);
            wrong.extend([json!("a".repeat(most as usize + 1)), json!(7), json!(["a"])]);
            match schema["pattern"].as_str() {
                Some(LABEL) => wrong.extend(["", "A", "a-", "a_b", "ä", "a\n"].map(|text| json!(text))),
                Some(ADDRESS) => {
                    wrong.extend(["", "a", "1.2.3", "::g", "1.2.3.4/8", ":::"].map(|text| json!(text)))
                }
                Some(HEX) => wrong.extend(["g", "0x1", "ä"].map(|text| json!(text))),
                Some(other) => panic!("the test knows no text for {other}"),
                None => {}
            }
        } else if is_of(schema, "array") {
            let most = schema["maxItems"].as_u64().unwrap_or_else(|| panic!("no maxItems in {schema}"));
            let items = |count: u64| -> Value {
                let one = self.least(&schema["items"], 0);
                (0..count).map(|_| one.clone()).collect()
            };
            let least = schema["minItems"].as_u64().unwrap_or(0);
            right.push(items(least));
            if most <= MADE_MAX {
                wrong.push(items(most + 1));
            }
            wrong.extend((0..least).map(items));
            wrong.push(json!("a"));
        } else if is_of(schema, "boolean") {
            right.extend([json!(true), json!(false)]);
            wrong.push(json!("yes"));
        }
        (right, wrong)
    }

    /// The body of a schema with a value at a place.
    fn with(&self, schema: &Value, place: &[&str], value: &Value) -> Option<Value> {
        let schema = self.resolved(schema);
        let Some((first, rest)) = place.split_first() else { return Some(value.clone()) };
        if let Some(all) = schema["allOf"].as_array() {
            let mut whole = self.least(schema, 0).as_object().cloned()?;
            let part = all.iter().find_map(|part| self.with(part, place, value))?;
            whole.extend(part.as_object().cloned()?);
            return Some(Value::Object(whole));
        }
        if let Some(one_of) = schema["oneOf"].as_array() {
            return one_of.iter().find_map(|one| self.with(one, place, value));
        }
        if is_of(schema, "array") {
            let least = schema["minItems"].as_u64().unwrap_or(1).max(1) as usize;
            return Some(Value::Array(vec![self.with(&schema["items"], rest, value)?; least]));
        }
        let field = schema["properties"].get(*first)?;
        let mut whole = self.least(schema, 0);
        whole[*first] = self.with(field, rest, value)?;
        Some(whole)
    }
}

/// A path with names in its places.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{kind}" => "endpoint",
        "{id}" => "7",
        part if part.starts_with('{') => "red",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Whether a refusal is about the shape of a request, not about what is there.
fn is_of_shape(status: StatusCode, problem: &Problem) -> bool {
    matches!(status.as_u16(), 400 | 413 | 415 | 422)
        && (problem.field.is_some() || problem.message.contains(": "))
}

#[test]
fn what_the_document_allows_is_taken_and_what_it_does_not_is_refused_with_the_field() {
    let door = Door::new();
    let (mut taken, mut refused) = (0, 0);
    for (path, method, name) in door.bodies() {
        let schema = door.schema(&name).clone();
        let mut fields = Vec::new();
        door.fields(&schema, "", 0, &mut fields);
        assert!(!fields.is_empty(), "{name}");
        for (place, field) in fields {
            // Of resources, what goes together is theirs to say: they are tried one by one below.
            if place.starts_with("resources.") {
                continue;
            }
            let parts: Vec<&str> = place.split('.').collect();
            let (right, wrong) = door.ends(&field);
            for value in right {
                let body = door.with(&schema, &parts, &value).unwrap();
                let sent = serde_json::to_vec(&body).unwrap();
                let (status, _, answer) = door.ask(&method, &path, Some("application/json"), sent);
                if !status.is_success() {
                    let problem: Problem = serde_json::from_slice(&answer).unwrap();
                    assert!(!is_of_shape(status, &problem), "{name}.{place} = {value}: {status} {problem:?}");
                }
                taken += 1;
            }
            for value in wrong {
                let body = door.with(&schema, &parts, &value).unwrap();
                let sent = serde_json::to_vec(&body).unwrap();
                let (status, problem) = door.problem(&method, &path, Some("application/json"), sent);
                let shown: String = value.to_string().chars().take(80).collect();
                assert!(
                    matches!(status.as_u16(), 400 | 413 | 422),
                    "{name}.{place} = {shown}: {status} {problem:?}"
                );
                let named = parts.iter().rev().find(|part| part.parse::<usize>().is_err()).unwrap();
                let in_field = problem.field.as_ref().is_some_and(|field| field.field.contains(named));
                // A list as a whole is counted by the handler, too.
                let is_count = status == StatusCode::PAYLOAD_TOO_LARGE;
                assert!(
                    in_field || is_count || problem.message.contains(named),
                    "{name}.{place} = {shown} is refused without a name: {problem:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(taken > 100 && refused > 200, "{taken} taken, {refused} refused");
}

/// The kinds of resources, by what judges them at the controller.
#[test]
fn numbers_and_counts_of_resources_are_those_of_the_document() {
    use weir_model::resource::Resource;
    let door = Door::new();
    let judged = |kind: &str, schema: &str, parts: &[&str], value: &Value| {
        let mut document = door.with(door.schema(schema), parts, value).unwrap();
        // What it needs besides.
        let needs = match (kind, parts[0]) {
            ("subnet", _) => json!({"v4": "10.0.0.0/24"}),
            ("route", _) => json!({"prefix": "10.0.0.0/24", "nextHop": "drop"}),
            ("firewall-rule", "ports") => json!({"protocol": "tcp"}),
            ("balancer", _) => json!({"address": "10.0.0.9", "services": [{"protocol": "tcp", "port": 80}]}),
            ("endpoint", "attachment") => json!({"attachment": {"kind": "vhost-user", "socket": "/run/a"}}),
            _ => json!({}),
        };
        for (name, need) in needs.as_object().unwrap() {
            match document.get_mut(name) {
                Some(Value::Object(own)) => {
                    need.as_object().into_iter().flatten().for_each(|(name, need)| {
                        own.entry(name.clone()).or_insert(need.clone());
                    });
                }
                _ if parts[0] == name => {}
                _ => document[name] = need.clone(),
            }
        }
        document["kind"] = json!(kind);
        serde_json::from_value::<Resource>(document.clone())
            .map_err(|error| error.to_string())
            .and_then(|resource| resource.validate().map_err(|error| error.to_string()))
            .map_err(|error| format!("{document}: {error}"))
    };
    let mut count = 0;
    for (kind, schema, place) in [
        ("network", "Network", "mtu"),
        ("network", "Network", "vni"),
        ("network", "Network", "name"),
        ("subnet", "Subnet", "dhcp.leaseS"),
        ("endpoint", "Endpoint", "attachment.queuePairs"),
        ("route", "Route", "priority"),
        ("firewall-rule", "FirewallRule", "priority"),
        ("firewall-rule", "FirewallRule", "name"),
    ] {
        let parts: Vec<&str> = place.split('.').collect();
        let mut fields = Vec::new();
        door.fields(door.schema(schema), "", 0, &mut fields);
        let (_, field) = fields.iter().find(|(found, _)| found == place).unwrap_or_else(|| panic!("{place}"));
        let (right, wrong) = door.ends(field);
        right.iter().for_each(|value| judged(kind, schema, &parts, value).unwrap());
        for value in &wrong {
            assert!(judged(kind, schema, &parts, value).is_err(), "{kind}.{place} = {value}");
        }
        count += right.len() + wrong.len();
    }
    let list =
        |number: usize, of: fn(usize) -> String| -> Value { (0..number).map(|at| json!(of(at))).collect() };
    let address = |at: usize| format!("10.0.0.{}", at + 1);
    let label = |at: usize| format!("a{at}");
    for (kind, schema, place, of) in [
        ("endpoint", "Endpoint", "addresses", address as fn(usize) -> String),
        ("endpoint", "Endpoint", "tags", label),
        ("subnet", "Subnet", "dhcp.dnsServers", address),
        ("subnet", "Subnet", "dhcp.ntpServers", address),
        ("subnet", "Subnet", "dhcp.search", label),
        ("firewall-rule", "FirewallRule", "targets", label),
        ("firewall-rule", "FirewallRule", "ports", |at| (at + 1).to_string()),
        ("balancer", "Balancer", "members", label),
    ] {
        let parts: Vec<&str> = place.split('.').collect();
        let mut fields = Vec::new();
        door.fields(door.schema(schema), "", 0, &mut fields);
        let (_, field) = fields.iter().find(|(found, _)| found == place).unwrap();
        let most = field["maxItems"].as_u64().unwrap() as usize;
        judged(kind, schema, &parts, &list(most, of)).unwrap();
        assert!(judged(kind, schema, &parts, &list(most + 1, of)).is_err(), "{kind}.{place}");
        count += 2;
    }
    assert!(count > 60, "{count}");
}

#[test]
fn every_field_of_a_request_has_its_ends_in_the_document() {
    let door = Door::new();
    let unbounded = |field: &Value| {
        let lacks = |name: &str| field.get(name).is_none();
        (is_of(field, "integer") && (lacks("minimum") || lacks("maximum")))
            || (is_of(field, "string") && lacks("maxLength") && lacks("enum"))
            || (is_of(field, "array") && lacks("maxItems"))
    };
    let mut open = Vec::new();
    for (_, _, name) in door.bodies() {
        let mut fields = Vec::new();
        door.fields(door.schema(&name), "", 0, &mut fields);
        open.extend(
            fields.iter().filter(|(_, field)| unbounded(field)).map(|(place, _)| format!("{name}.{place}")),
        );
    }
    for (path, operations) in door.document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                if unbounded(&parameter["schema"]) {
                    open.push(format!("{method} {path}: {}", parameter["name"]));
                }
            }
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn every_call_that_orders_has_the_header_by_which_it_is_signed() {
    // These order nothing of an operator's: they look, or carry signatures of their own, or the members agree on them.
    let others = [
        "/v1/trace",
        "/v1/capture",
        "/v1/clock",
        "/v1/join",
        "/v1/domain/statements",
        "/v1/group/convert",
        "/v1/group/members/{id}",
        "/v1/group/refresh",
        "/v1/group/convert",
        "/v1/identities/rotate",
        "/v1/identities/change",
        "/v1/identities/own/next",
        "/v1/identities/own/use",
    ];
    let document = openapi();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let parameters = operation["parameters"].as_array();
            let signed = parameters.is_some_and(|all| all.iter().any(|one| one["name"] == "Weir-Signature"));
            assert_eq!(signed, method != "get" && !others.contains(&path.as_str()), "{method} {path}");
        }
    }
}

#[test]
fn all_paths_answer_odd_methods_bodies_and_content_types_with_a_problem() {
    let door = Door::new();
    let methods = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"];
    for (path, operations) in door.document["paths"].as_object().unwrap() {
        let documented = |method: &str| operations.get(method.to_lowercase()).is_some();
        for method in methods.into_iter().filter(|method| !documented(method)) {
            // A bare `{kind}/{network}/{name}` and `network/{name}` are other paths of one folder.
            let (status, problem) = door.problem(method, &filled(path), None, Vec::new());
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}: {problem:?}");
        }
        if documented("get") {
            let (status, _, answer) = door.ask("HEAD", &filled(path), None, Vec::new());
            assert!(answer.is_empty() || !status.is_success(), "{path}: {status}");
        }
    }
    for (path, method, name) in door.bodies() {
        let least = serde_json::to_vec(&door.least(door.schema(&name), 0)).unwrap();
        for kind in
            [None, Some(""), Some("text/plain"), Some("application/yaml"), Some("multipart/form-data")]
        {
            let (status, _) = door.problem(&method, &path, kind, least.clone());
            assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path} {kind:?}");
        }
        let deep = "[".repeat(DEPTH_MAX + 1).into_bytes();
        let twice = [least.as_slice(), least.as_slice()].concat();
        for body in
            [&b""[..], b"{", b"nul", b"[]", b"7", b"\"a\"", b"{\"a\":}", b"\xff\xfe", &deep, &twice, &[0; 64]]
        {
            let (status, problem) = door.problem(&method, &path, Some("application/json"), body.to_vec());
            let shown = String::from_utf8_lossy(body);
            let is_list = body == b"[]" && status == StatusCode::UNPROCESSABLE_ENTITY;
            assert!(is_list || status == StatusCode::BAD_REQUEST, "{path} {shown}: {status} {problem:?}");
        }
    }
    for path in ["/", "/v1", "/v1/apply/", "//v1/apply", "/v1/resources/network", "/v1/%00", "/v2/apply"] {
        let (status, problem) = door.problem("GET", path, None, Vec::new());
        assert_eq!((status, problem.code.as_str()), (StatusCode::NOT_FOUND, "not-found"), "{path}");
    }
    for (path, wrong) in [
        ("/v1/resources?kynd=network", "kynd"),
        ("/v1/resources?kind=nope", "kind"),
        ("/v1/resources?stale=abc", "stale"),
        ("/v1/audit?from=-1", "from"),
        ("/v1/audit?limit=18446744073709551616", "limit"),
        ("/v1/watch?from=x", "from"),
        ("/v1/resources/network/RED", "RED"),
        ("/v1/group/members/x", "x"),
    ] {
        let method = if path.contains("members") { "DELETE" } else { "GET" };
        let (status, problem) = door.problem(method, path, None, Vec::new());
        assert!(matches!(status.as_u16(), 400 | 422), "{path}: {status} {problem:?}");
        assert!(problem.message.contains(wrong) || problem.field.is_some(), "{path}: {problem:?}");
    }
    assert!(Method::from_bytes(b"BREW").is_ok());
}
