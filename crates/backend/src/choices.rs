//! Choices of an operator about GPUs: transport, signals, the source of device times.

use serde::{Deserialize, Serialize};

/// How bytes get from one GPU to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// `peer` where all GPUs of a host reach each other, and over several hosts if these have equally many
    /// ranks and more than one; `nccl` elsewhere.
    #[default]
    Auto,
    /// Copy engines write into the peers' memory; needs GPUs that reach each other. Over several hosts NCCL
    /// carries what goes between them; each needs equally many ranks, numbered host by host.
    Peer,
    /// NCCL's collectives; needs a GPU of its own for each rank.
    Nccl,
}

/// What sets a word in a peer's memory, by which ranks that push with copy engines meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalBy {
    /// `stream` with drivers for CUDA 13.0 and older, `copy` with newer ones.
    #[default]
    Auto,
    /// A memory operation of the stream. From CUDA 13.1 on they write to no other GPU.
    Stream,
    /// A copy of four bytes, with any driver. It is a call more for every peer and meeting, in captures too.
    Copy,
}

/// What says when tasks ran on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTimes {
    /// CUPTI where it is there and lets us, events elsewhere; a session says which, and why.
    Auto,
    /// CUPTI, which sees kernels, copies and memory sets, and not what a lane waits between them. A session
    /// does not start without it. On H200, a step of 14 ms took 14 to 19 % longer under it.
    Cupti,
    /// An event after every task, which is taken to begin when what it comes after has ended and the host
    /// has begun to enqueue it. In a captured step each event is a node of its own.
    /// Such a step took 0.5 to 1.8 % longer with them.
    #[default]
    Events,
}
