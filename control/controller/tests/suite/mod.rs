mod app;
mod core;
mod domains;
mod frames;
mod learned;
mod recovery;
mod sessions;
mod simulation;
