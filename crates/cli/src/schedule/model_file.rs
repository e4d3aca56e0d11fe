//! A model as a file: a decoder by its sizes, or a list of calls.
//!
//! Law: which of the two a file is follows from its keys, and both end in the same declarations.

use std::path::{Path, PathBuf};

use warpweft_base::whole_file::regular;
use warpweft_plan::model::{DeclareError, Decoder, Mesh, Model, StepProgram};
use warpweft_session::config::{CallList, Declared};

use super::MeasureError;

/// A file that declares a model and the program of its step.
pub(super) enum ModelFile {
    /// By sizes; the path is what errors name.
    Sizes(Box<Decoder>, PathBuf),
    /// By calls.
    Calls(Box<CallList>),
}

impl ModelFile {
    pub(super) fn load(path: &Path) -> Result<Self, MeasureError> {
        let text =
            regular::text(path).map_err(|source| MeasureError::NoModel { path: path.to_owned(), source })?;
        let name = path.display().to_string();
        Ok(match CallList::is_meant_by(&text) {
            true => Self::Calls(Box::new(CallList::from_toml(&text, &name)?)),
            false => Self::Sizes(Box::new(Decoder::from_toml(&text, &name)?), path.to_owned()),
        })
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Sizes(decoder, _) => &decoder.name,
            Self::Calls(calls) => calls.name(),
        }
    }

    /// Tokens of one rank of a mesh in one micro-batch, if the file says so.
    pub(super) fn tokens(&self, mesh: Mesh) -> Option<usize> {
        match self {
            Self::Sizes(decoder, _) => Some(decoder.tokens / (mesh.tensor() * mesh.context()) as usize),
            Self::Calls(calls) => calls.tokens(),
        }
    }

    /// The fewest ranks that hold a text together, with `tokens` of it each.
    pub(super) fn ranks_of_text(&self, tokens: usize) -> u32 {
        match self {
            Self::Sizes(decoder, _) => {
                let ranks = decoder.sequence.unwrap_or(decoder.tokens).div_ceil(tokens.max(1));
                u32::try_from(ranks).unwrap_or(u32::MAX)
            }
            Self::Calls(_) => 1,
        }
    }

    /// Experts of a layer that may be on ranks of their own: those that are weights of their own.
    pub(super) fn experts(&self) -> u32 {
        match self {
            Self::Sizes(decoder, _) if decoder.expert_groups.is_some() => {
                u32::try_from(decoder.experts.unwrap_or(1)).unwrap_or(u32::MAX)
            }
            Self::Sizes(..) | Self::Calls(_) => 1,
        }
    }

    /// Whether the calls are those of a rank of one mesh, and of no other.
    pub(super) const fn is_of_one_mesh(&self) -> bool {
        matches!(self, Self::Calls(_))
    }

    /// The same for `ranks` ranks that share texts, with `tokens` tokens each; texts are as long as before.
    pub(super) fn shared_by(&self, ranks: u32, tokens: usize) -> Self {
        match self {
            Self::Sizes(decoder, path) => {
                let sequence = Some(decoder.sequence.unwrap_or(decoder.tokens));
                let tokens = tokens.saturating_mul(ranks as usize);
                Self::Sizes(Box::new(Decoder { tokens, sequence, ..(**decoder).clone() }), path.clone())
            }
            Self::Calls(calls) => Self::Calls(calls.clone()),
        }
    }

    pub(super) fn model(&self, mesh: Mesh) -> Result<Model, MeasureError> {
        match self {
            Self::Sizes(decoder, path) => decoder.model_on(mesh).map_err(wrong(path)),
            Self::Calls(calls) => Ok(calls.model()?),
        }
    }

    pub(super) fn program(&self, model: &Model, mesh: Mesh) -> Result<StepProgram, MeasureError> {
        match self {
            Self::Sizes(decoder, path) => decoder.program_on(model, mesh).map_err(wrong(path)),
            Self::Calls(calls) => Ok(calls.program(model)?),
        }
    }
}

fn wrong(path: &Path) -> impl Fn(DeclareError) -> MeasureError {
    move |source| MeasureError::Model { path: path.to_owned(), source: Box::new(source) }
}
