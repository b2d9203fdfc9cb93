mod app;
mod core;
mod frames;
mod learned;
mod recovery;
mod sessions;
mod simulation;
