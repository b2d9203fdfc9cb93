//! The HTTP API (rows A1, A2): its types, server, OpenAPI 3.1 document and client, and the public
//! key infrastructure of a domain.
//!
//! The server knows only the [`Backend`] trait; the binary joins it to the controller. The document
//! at `/v1/openapi.json` is derived from the same types and handlers, so it cannot drift.
//!
//! Every call but `/healthz`, `/readyz`, the document, `/v1/join` and `/v1/domain/statements` needs an administrator: a bearer token, or
//! a client certificate of the domain for [`pki::ADMIN_DNS_NAME`]. Who joins brings a token's secret, and a controller of another
//! domain its signature.

mod admins;
pub mod any;
pub mod asked;
mod backend;
pub mod bounds;
pub mod client;
pub mod domains;
mod extract;
mod guard;
pub mod operator;
pub mod pki;
pub mod planes;
mod problem;
pub mod proxy;
mod requests;
pub mod said;
pub mod serve;
pub mod server;
mod statement;
pub mod tls;
pub mod types;
pub mod within;
pub mod words;

pub use backend::{Backend, Caller, Reply, TOKEN_CALLER, WatchStep};
pub use types::{ApiError, Problem};
