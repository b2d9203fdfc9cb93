mod access;
mod cached;
mod checker;
mod kill;
mod path;
mod python;
mod server;
mod watching;
