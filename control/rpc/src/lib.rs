//! RPC.
