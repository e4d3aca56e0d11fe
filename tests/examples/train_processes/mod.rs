//! The main job on GPUs, split over processes: the same losses, and ends that name their cause.
//!
//! Needs a GPU, most tests two or more, and says so where there are none. With two, processes that claim to be
//! hosts of two ranks each use both GPUs: nobody compares the GPUs of one host with those of another. NCCL is used
//! where it is installed. Of the machine that it was built on it needs two programs: itself as
//! `X/deps/examples`, and `X/examples/train`, both perhaps stripped; it runs in the root of the
//! repository, whose files are what is trained on. With `--nocapture` every run has a line that says how long
//! it took.

mod accumulated;
mod ends;
mod losses;
mod parts;
mod run;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warpweft_cuda::{CudaOptions, CudaWorld, DeviceOrdinal, Transport};

/// One test at a time has the GPUs.
static ALONE: Mutex<()> = Mutex::new(());

/// The GPUs to use: an even number up to four, or none, with the reason on stderr.
fn gpus(what: &str) -> Option<(u32, MutexGuard<'static, ()>)> {
    let (found, alone) = at_least(2, what)?;
    Some((if found >= 4 { 4 } else { 2 }, alone))
}

/// How many GPUs there are, or none if they are too few, with the reason on stderr.
fn at_least(needed: usize, what: &str) -> Option<(usize, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let reason = match DeviceOrdinal::all().map(|found| found.len()) {
        Ok(found) if found >= needed => return Some((found, alone)),
        Ok(found) => format!("GPUs are needed, at least {needed}, and {found} are here"),
        Err(failure) => failure.to_string(),
    };
    skipped(what, &reason);
    None
}

/// Said past the capture of the harness.
fn skipped(what: &str, reason: &str) {
    let mut out = std::io::stderr();
    writeln!(out, "skipped: {what}, because {reason}").unwrap();
}

fn has_nccl() -> bool {
    let devices = DeviceOrdinal::all().unwrap().into_iter().take(2).collect();
    let options = CudaOptions { transport: Some(Transport::Nccl), ..CudaOptions::new(devices) };
    CudaWorld::new(options).is_ok()
}
