mod app;
mod core;
mod frames;
mod recovery;
mod sessions;
mod simulation;
