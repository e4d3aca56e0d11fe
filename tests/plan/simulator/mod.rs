//! The simulator: closed forms, what it shares with the CPU backend, worlds of thousands of ranks.

mod closed_forms;
mod levels;
mod messages;
mod programs;
mod replicas;
mod weak_scaling;
mod worlds;
