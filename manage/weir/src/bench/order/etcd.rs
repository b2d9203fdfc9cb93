//! The few calls of etcd's API that the bench makes, over plain HTTP/2: messages as `rpc.proto` of etcd 3 numbers
//! their fields.

use crate::failure::Failure;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Header {
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RangeResponse {
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
}

/// A connection.
#[derive(Clone)]
pub struct Etcd(tonic::client::Grpc<Channel>);

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Input(format!("etcd: {error}"))
}

impl Etcd {
    /// Connects to `host:port`.
    pub async fn connect(address: &str) -> Result<Etcd, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
        let endpoint = endpoint.connect_timeout(Duration::from_secs(1)).tcp_nodelay(true);
        Ok(Etcd(tonic::client::Grpc::new(endpoint.connect().await.map_err(failed)?)))
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.map_err(failed)?;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let path = axum::http::uri::PathAndQuery::from_static(path);
        let answer = self.0.unary(tonic::Request::new(request), path, codec).await.map_err(failed)?;
        Ok(answer.into_inner())
    }

    /// Writes.
    pub async fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        self.call::<_, PutResponse>("/etcdserverpb.KV/Put", PutRequest { key, value }).await.map(drop)
    }

    /// Reads, linearizably; whether it is there.
    pub async fn get(&mut self, key: Vec<u8>) -> Result<bool, Failure> {
        let found = self.call::<_, RangeResponse>("/etcdserverpb.KV/Range", RangeRequest { key }).await?;
        Ok(found.count > 0)
    }

    /// Whether this member leads.
    pub async fn leads(&mut self) -> Result<bool, Failure> {
        let status =
            self.call::<_, StatusResponse>("/etcdserverpb.Maintenance/Status", StatusRequest {}).await?;
        Ok(status.leader != 0 && status.header.is_some_and(|header| header.member_id == status.leader))
    }
}
