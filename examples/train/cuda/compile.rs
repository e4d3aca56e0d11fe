//! The kernels of an example, compiled by NVRTC for one architecture. Needs no GPU.
//!
//! Law: what comes out is machine code for exactly the architecture requested, so the driver translates nothing.
#![allow(unsafe_code, reason = "NVRTC is a C library")]

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::Arc;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use super::failure::Failure;
use super::library::{Gpus, Library};

/// A GPU's instruction set, such as `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Architecture {
    /// Major compute capability.
    pub(crate) major: u32,
    /// Minor compute capability.
    pub(crate) minor: u32,
}

impl fmt::Display for Architecture {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sm_{}{}", self.major, self.minor)
    }
}

/// Machine code of all kernels, shared by the ranks.
#[derive(Clone, Debug)]
pub(crate) struct Cubin(Arc<[u8]>);

impl Cubin {
    /// The file's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Compiles the kernels of an example.
///
/// # Errors
/// [`Failure::Missing`] without NVRTC, [`Failure::Compile`] with the compiler's log.
pub(crate) fn compile(source: &str, architecture: Architecture) -> Result<Cubin, Failure> {
    Library::Compiler.open()?;
    let source = CString::new(source).map_err(|_| Failure::Compile {
        architecture: architecture.to_string(),
        log: "the source holds a zero byte".into(),
    })?;
    let program =
        Program(result::create_program(&source, Some(c"kernels.cu")).map_err(refused("nvrtcCreateProgram"))?);
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    // SAFETY: the program was made above and is destroyed by its owner's drop only.
    if unsafe { result::compile_program(program.0, &options) }.is_err() {
        return Err(Failure::Compile { architecture: architecture.to_string(), log: program.log() });
    }
    program.cubin().map(|code| Cubin(code.into()))
}

/// The kernels for each of the GPUs, compiled once per architecture.
///
/// # Errors
/// [`Failure::NoDevice`], and those of [`compile`].
pub(crate) fn compile_for(source: &str, found: &Gpus, ordinals: &[u32]) -> Result<Vec<Cubin>, Failure> {
    let mut compiled: Vec<(Architecture, Cubin)> = Vec::new();
    let mut code = |ordinal: u32| {
        let (_, architecture) = found.of(ordinal)?;
        if let Some((_, code)) = compiled.iter().find(|(known, _)| known == architecture) {
            return Ok(code.clone());
        }
        let code = compile(source, *architecture)?;
        compiled.push((*architecture, code.clone()));
        Ok(code)
    };
    ordinals.iter().map(|ordinal| code(*ordinal)).collect()
}

/// An NVRTC program, destroyed with its owner.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives as long as `self`.
        let log: Vec<c_char> = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: &[u8] = bytemuck::cast_slice(&log);
        CStr::from_bytes_until_nul(bytes)
            .map_or_else(|_| String::new(), |log| log.to_string_lossy().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Failure> {
        let mut size = 0;
        // SAFETY: the program lives as long as `self`; `size` outlives the call.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) }
            .result()
            .map_err(refused("nvrtcGetCUBINSize"))?;
        let mut code = vec![0u8; size];
        // SAFETY: `code` has as many bytes as the library just requested.
        unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) }
            .result()
            .map_err(refused("nvrtcGetCUBIN"))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once. A refusal leaves nothing to be done.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn refused(call: &'static str) -> impl Fn(NvrtcError) -> Failure {
    move |error| Failure::Refused { call, code: format!("{:?}", error.0) }
}
