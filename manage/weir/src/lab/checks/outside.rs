//! North and south: what leaves through the gateway, and what must not come in.

use super::super::place::{EXTERNAL_V4, EXTERNAL_V6, OUTSIDE_V4, OUTSIDE_V6};
use super::{Ground, Row, in_url, page};
use crate::failure::Failure;
use std::net::IpAddr;
use weir_lab::probe::http::{self, Outcome};

/// Both tenants reach the outside, which sees the gateway's external address.
pub fn north_south(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for tenant in ["red", "blue"] {
        for (target, external) in [
            (IpAddr::V4(OUTSIDE_V4), IpAddr::V4(EXTERNAL_V4)),
            (IpAddr::V6(OUTSIDE_V6), IpAddr::V6(EXTERNAL_V6)),
        ] {
            let url = format!("http://{}/caller", in_url(target));
            let seen = page(ground.netns(tenant, "app")?, &url, 5)?;
            let holds = seen == Ok(external.to_string());
            rows.push(Row::new(
                format!("{tenant}: app gets {url}"),
                format!("seen as {external}"),
                seen.map_or_else(|error| error, |address| format!("seen as {address}")),
                holds,
            ));
        }
    }
    Ok(rows)
}

/// The outside opens a connection to the external address.
pub fn no_way_in(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let outcome = http::run(&ground.place.netns("out"), &format!("http://{EXTERNAL_V4}/"), 1)?;
    let answered = matches!(outcome, Outcome::Answered { .. });
    Ok(vec![Row::new(
        format!("outside: gets http://{EXTERNAL_V4}/"),
        "no answer",
        if answered { "an answer" } else { "no answer" },
        !answered,
    )])
}
