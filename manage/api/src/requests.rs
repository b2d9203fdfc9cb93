//! Requests, counted by route and status, and how long their answers took to begin.
//!
//! A route is what a path begins with, so that names of resources make no series: the keys are bounded by the routes and statuses that
//! there are.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use weir_base::exposition::{Exposition, Kind};

/// Upper ends of the buckets, seconds.
const BUCKETS_S: [f64; 6] = [0.001, 0.01, 0.1, 1.0, 10.0, 60.0];
/// What paths begin with; all others are one.
const ROUTES: [&str; 23] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/actuators",
    "/v1/apply",
    "/v1/approvals",
    "/v1/audit",
    "/v1/capture",
    "/v1/clock",
    "/v1/devices",
    "/v1/domain",
    "/v1/domains",
    "/v1/group",
    "/v1/identities",
    "/v1/join",
    "/v1/openapi.json",
    "/v1/operators",
    "/v1/resources",
    "/v1/status",
    "/v1/tokens",
    "/v1/trace",
    "/v1/watch",
    "/weir.store.v1.Store",
];

#[derive(Default)]
struct Counted {
    codes: BTreeMap<(&'static str, u16), u64>,
    /// Of those that took no longer than each bucket's end, and longer than the one's before; and of the longest.
    times: BTreeMap<&'static str, ([u64; BUCKETS_S.len() + 1], f64)>,
}

static COUNTED: Mutex<Option<Counted>> = Mutex::new(None);

pub(crate) fn route_of(path: &str) -> &'static str {
    let begins = |route: &&&str| {
        path.strip_prefix(**route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    ROUTES.iter().filter(begins).max_by_key(|route| route.len()).map_or("other", |route| *route)
}

fn counted<T>(with: impl FnOnce(&mut Counted) -> T) -> T {
    // A panic elsewhere leaves counts that are each whole.
    with(COUNTED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Counts a request, whatever becomes of it.
pub(crate) async fn count(request: Request, next: Next) -> Response {
    let (route, began) = (route_of(request.uri().path()), Instant::now());
    let response = next.run(request).await;
    note(route, response.status().as_u16(), began.elapsed().as_secs_f64());
    response
}

fn note(route: &'static str, code: u16, seconds: f64) {
    counted(|counted| {
        *counted.codes.entry((route, code)).or_default() += 1;
        let (buckets, sum) = counted.times.entry(route).or_default();
        buckets[BUCKETS_S.partition_point(|end| *end < seconds)] += 1;
        *sum += seconds;
    });
}

/// What was counted since this process began, as Prometheus text.
pub fn metrics_text() -> String {
    let mut text = Exposition::new();
    counted(|counted| {
        let help =
            "Requests to the API and the store, by what their path begins with and the status of the answer.";
        for ((route, code), count) in &counted.codes {
            let labels = [("route", *route), ("code", &code.to_string())];
            text.put("weir_http_requests_total", Kind::Counter, help, &labels, *count as f64);
        }
        let help = "How long answers took to begin.";
        for (route, (buckets, sum)) in &counted.times {
            text.histogram("weir_http_request_seconds", help, &[("route", route)], &BUCKETS_S, buckets, *sum);
        }
    });
    text.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_few_whatever_is_asked() {
        assert_eq!(route_of("/v1/resources/endpoint/red/web"), "/v1/resources");
        assert_eq!(route_of("/v1/domains/east"), "/v1/domains");
        assert_eq!(route_of("/v1/domain/statements"), "/v1/domain");
        assert_eq!(route_of("/weir.store.v1.Store/Submit"), "/weir.store.v1.Store");
        for other in ["/", "", "/v1", "/v1/resourcesx", "/v2/apply", "/\u{1f600}"] {
            assert_eq!(route_of(other), "other", "{other}");
        }
    }

    #[test]
    fn requests_are_counted_by_route_and_status() {
        note("/readyz", 299, 0.05);
        note("/readyz", 299, 5.0);
        let text = metrics_text();
        assert_eq!(weir_base::exposition::check(&text), []);
        assert!(text.contains("weir_http_requests_total{route=\"/readyz\",code=\"299\"} 2\n"), "{text}");
        let value = |le: &str| {
            let name = format!("weir_http_request_seconds_bucket{{route=\"/readyz\",le=\"{le}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
        };
        assert_eq!(
            (value("0.01"), value("0.1"), value("10"), value("+Inf")),
            (Some(0), Some(1), Some(2), Some(2))
        );
    }
}
