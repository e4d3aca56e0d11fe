//! The names that every crate of **warpweft** uses: indices, digests, amounts of time, errors in words, whole files.
//!
//! Law: nothing here knows a weight, a plan or a device. No version number promises anything of this crate: it is
//! public for the crates of warpweft alone. Use `warpweft`, which exports what a user needs.
//!
//! | module | idea |
//! |---|---|
//! | [`id`] | newtypes for every index |
//! | [`time`], [`median`] | nanoseconds and intervals of them; what counts of several measurements |
//! | [`errors`], [`panics`] | errors in words; the message of a panic |
//! | [`near`], [`pattern`] | the name that was meant; names that a pattern matches |
//! | [`digest`], [`noise`] | numbers that say whether bytes are the same; numbers that look random |
//! | [`queue`] | queues that allocate nothing late |
//! | [`whole_file`] | regular files, and files that are replaced whole |
//!
//! ```
//! use warpweft_base::id::RankId;
//! use warpweft_base::near::near;
//!
//! assert_eq!(RankId::new(3).to_string(), "rank 3");
//! assert_eq!(near("prefetch.dept", ["memory.budget", "prefetch.depth"].into_iter()), ["prefetch.depth"]);
//! ```

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!(
    "warpweft is built for 64-bit little-endian targets alone: values are cast to the bytes that formats, \
     checkpoints and messages between processes define as little endian, and sizes of weights exceed 32 bits; \
     build for another target"
);

pub mod digest;
pub mod errors;
pub mod id;
pub mod median;
pub mod near;
pub mod noise;
pub mod panics;
pub mod pattern;
pub mod queue;
pub mod time;
pub mod whole_file;
