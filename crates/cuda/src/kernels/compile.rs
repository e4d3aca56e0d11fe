//! Kernel sources into machine code, by NVRTC, for the device at hand.
//!
//! Laws:
//! - The same options everywhere, so that kernels round as the CPU does: no contraction, no flushing of
//!   subnormals, IEEE division and square root.
//! - A device that this NVRTC knows gets machine code for exactly its architecture. A newer one gets PTX for
//!   the newest architecture NVRTC knows, which the driver compiles when the module is loaded.
//! - Nothing is read from disk: sources and headers are part of the program.

use std::ffi::{CString, c_char, c_int};
use std::fmt;

use cudarc::nvrtc::{result, sys};
use warpweft_kernels::{HEADERS, Source};

use crate::device::libraries::Library;
use crate::failure::CudaFailure;

/// Options of every compilation, except the architecture.
pub(super) const OPTIONS: [&str; 5] =
    ["--std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"];

/// What code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Machine code for one compute capability, such as 9.0.
    Machine {
        /// Before the dot.
        major: u32,
        /// After the dot.
        minor: u32,
    },
    /// PTX for this compute capability and everything newer.
    Virtual {
        /// Before the dot.
        major: u32,
        /// After the dot.
        minor: u32,
    },
}

impl Architecture {
    /// Machine code for compute capability `major.minor`.
    #[must_use]
    pub const fn of(major: u32, minor: u32) -> Self {
        Self::Machine { major, minor }
    }

    /// The best that this machine's NVRTC can do for a device of compute capability `major.minor`.
    ///
    /// # Errors
    /// [`CudaFailure::Library`] without NVRTC; [`CudaFailure::Call`]; [`CudaFailure::Refused`] for a device older
    /// than every architecture NVRTC knows.
    pub fn best_for(major: u32, minor: u32) -> Result<Self, CudaFailure> {
        let device = major * 10 + minor;
        let known = known_architectures()?;
        if known.contains(&device) {
            return Ok(Self::of(major, minor));
        }
        match known.iter().filter(|known| **known < device).max() {
            Some(newest) => Ok(Self::Virtual { major: newest / 10, minor: newest % 10 }),
            None => Err(CudaFailure::Refused(format!(
                "this NVRTC has no code for compute capability {major}.{minor}; install an older CUDA, or use the CPU backend"
            ))),
        }
    }
}

/// As the compiler takes it. From 9.0 on code is for one chip (`a`), which unlocks its conversions.
impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine { major, minor } => {
                let suffix = if *major >= 9 { "a" } else { "" };
                write!(formatter, "sm_{major}{minor}{suffix}")
            }
            Self::Virtual { major, minor } => write!(formatter, "compute_{major}{minor}"),
        }
    }
}

/// Compute capabilities NVRTC has code for, times ten.
fn known_architectures() -> Result<Vec<u32>, CudaFailure> {
    Library::Compiler.open()?;
    let mut count: c_int = 0;
    // SAFETY: NVRTC is present, and `count` outlives the call.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }
        .result()
        .map_err(CudaFailure::compiler("nvrtcGetNumSupportedArchs"))?;
    let mut known: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: `known` has as many places as NVRTC said it fills.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }
        .result()
        .map_err(CudaFailure::compiler("nvrtcGetSupportedArchs"))?;
    Ok(known.into_iter().map(c_int::unsigned_abs).collect())
}

/// The version of this machine's NVRTC.
///
/// # Errors
/// [`CudaFailure::Library`] without one.
pub(super) fn version() -> Result<(i32, i32), CudaFailure> {
    Library::Compiler.open()?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: NVRTC is present, and both numbers outlive the call.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .map_err(CudaFailure::compiler("nvrtcVersion"))?;
    Ok((major, minor))
}

/// A program of NVRTC, destroyed when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `compile`, destroyed once here. A failure leaves nothing to be done.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Code for `architecture`: a cubin, or PTX with its terminating zero.
///
/// # Errors
/// [`CudaFailure::Library`] without NVRTC, [`CudaFailure::Compile`] with the compiler's log.
pub(super) fn compile(source: Source, architecture: Architecture) -> Result<Vec<u8>, CudaFailure> {
    Library::Compiler.open()?;
    let refused = |error: std::ffi::NulError| CudaFailure::Refused(format!("a kernel source: {error}"));
    let text = CString::new(source.text).map_err(refused)?;
    let headers: Result<Vec<CString>, _> = HEADERS.iter().map(|header| CString::new(header.text)).collect();
    let headers = headers.map_err(refused)?;
    let texts: Vec<*const c_char> = headers.iter().map(|text| text.as_ptr()).collect();
    let names: Vec<*const c_char> = HEADERS.iter().map(|header| header.name.as_ptr()).collect();
    let count = c_int::try_from(names.len()).unwrap_or(c_int::MAX);

    let mut program = std::ptr::null_mut();
    // SAFETY: NVRTC is present; all strings end in a zero and outlive `program`, which is dropped first.
    unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            text.as_ptr(),
            source.name.as_ptr(),
            count,
            texts.as_ptr(),
            names.as_ptr(),
        )
    }
    .result()
    .map_err(CudaFailure::compiler("nvrtcCreateProgram"))?;
    let program = Program(program);

    let mut options: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
    options.push(format!("--gpu-architecture={architecture}"));
    // SAFETY: the program was just created and lives.
    unsafe { result::compile_program(program.0, &options) }
        .map_err(|_| CudaFailure::Compile { architecture: architecture.to_string(), log: log(&program) })?;
    code(&program, architecture)
}

fn log(program: &Program) -> String {
    // SAFETY: the program lives.
    let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
    let bytes: &[u8] = bytemuck::cast_slice(&log);
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn code(program: &Program, architecture: Architecture) -> Result<Vec<u8>, CudaFailure> {
    let mut bytes = 0;
    match architecture {
        Architecture::Machine { .. } => {
            // SAFETY: the program lives and was compiled; `bytes` outlives the call.
            unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) }
                .result()
                .map_err(CudaFailure::compiler("nvrtcGetCUBINSize"))?;
            let mut code = vec![0_u8; bytes];
            // SAFETY: `code` has as many bytes as NVRTC said it writes.
            unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }
                .result()
                .map_err(CudaFailure::compiler("nvrtcGetCUBIN"))?;
            Ok(code)
        }
        Architecture::Virtual { .. } => {
            // SAFETY: the program lives and was compiled.
            let code = unsafe { result::get_ptx(program.0) }.map_err(CudaFailure::compiler("nvrtcGetPTX"))?;
            Ok(bytemuck::cast_slice(&code).to_vec())
        }
    }
}
