//! Between the published messages and `weir-store`. Every message that a client can send is checked
//! here: what is missing or out of range is a [`ConvertError`], never a guess.

mod from_proto;
mod to_proto;

pub(crate) use from_proto::*;
pub(crate) use to_proto::*;

#[cfg(test)]
mod tests;
