//! Output files of a schedule.
//!
//! Law: names that are taken are refused before anything is computed, unless they may be replaced, and so is
//! one name for two files; a name that was taken since is refused in the end. What is read is never replaced.
//! Files are written whole or not at all, and only plain files are replaced.

use std::io;
use std::path::{Path, PathBuf};

use warpweft_base::whole_file::WholeFile;
use warpweft_session::trace::{Timeline, TimelinePicture, write_trace};

use super::{MeasureError, Measuring};

/// Width of pictures, pixels.
const WIDTH: u32 = 1400;

/// The output files of a command.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// Where a chrome trace goes.
    pub trace: Option<PathBuf>,
    /// Where a picture goes.
    pub picture: Option<PathBuf>,
    /// May files that exist be replaced?
    pub replace: bool,
}

impl Outputs {
    /// Refuses names that are taken, and at all events those of what is read.
    pub(super) fn check(&self, inputs: &[&Path]) -> Result<(), MeasureError> {
        let inputs: Vec<PathBuf> = inputs.iter().filter_map(|input| input.canonicalize().ok()).collect();
        let is_input = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
        if let Some(path) = self.trace.iter().chain(&self.picture).find(is_input) {
            return Err(MeasureError::SameFile { path: path.clone() });
        }
        if let (Some(trace), Some(picture)) = (&self.trace, &self.picture)
            && place(trace) == place(picture)
        {
            return Err(MeasureError::OneName { path: trace.clone() });
        }
        self.trace
            .iter()
            .chain(&self.picture)
            .try_for_each(|path| self.taken(path, WholeFile::check(path, self.replace)))
    }

    /// Writes the trace, if one is wanted.
    pub(super) fn write_trace(&self, timeline: &Timeline) -> Result<(), MeasureError> {
        let Some(path) = &self.trace else { return Ok(()) };
        let mut file = WholeFile::begin(path).map_err(refused("write", path))?;
        let written = write_trace(timeline, None, &mut file);
        written.map_err(|source| MeasureError::Trace { path: path.clone(), source })?;
        self.taken(path, file.commit_as(self.replace))
    }

    /// Draws a timeline, or a part of it, if a picture is wanted.
    pub(super) fn draw(&self, timeline: &Timeline, picture: TimelinePicture) -> Result<(), MeasureError> {
        let Some(path) = &self.picture else { return Ok(()) };
        let drawn = TimelinePicture { width: WIDTH, ..picture }.render(timeline);
        let drawn = drawn.map_err(|source| MeasureError::Trace { path: path.clone(), source })?;
        self.write_picture(&drawn)
    }

    /// Writes a finished picture, if one is wanted.
    pub(super) fn write_picture(&self, drawn: &str) -> Result<(), MeasureError> {
        let Some(path) = &self.picture else { return Ok(()) };
        self.taken(path, WholeFile::write_as(path, drawn.as_bytes(), self.replace))
    }

    /// What checking or writing came to; a file that appeared since the check is not replaced either.
    fn taken(&self, path: &Path, written: io::Result<()>) -> Result<(), MeasureError> {
        written.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if !self.replace => {
                MeasureError::Exists { path: path.to_owned(), of: Measuring::Machine }
            }
            _ => refused("write", path)(error),
        })
    }
}

/// One spelling for all paths of a file, which need not be there.
fn place(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    path.canonicalize().unwrap_or_else(|_| match (folder.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    })
}

pub(super) fn refused(action: &'static str, path: &Path) -> impl Fn(io::Error) -> MeasureError {
    move |source| MeasureError::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_for_trace_and_picture_is_refused_however_it_is_spelled() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        let [there, same, other] = ["x", "d/../x", "d/x"].map(|name| folder.path().join(name));
        for exists in [false, true] {
            if exists {
                std::fs::write(&there, "old").unwrap();
            }
            let checked = |picture: &PathBuf| {
                let (trace, picture) = (Some(there.clone()), Some(picture.clone()));
                Outputs { trace, picture, replace: true }.check(&[])
            };
            assert!(matches!(checked(&same), Err(MeasureError::OneName { .. })));
            checked(&other).unwrap();
        }
    }

    #[test]
    fn a_file_that_appeared_since_the_check_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [trace, picture] = ["trace", "picture"].map(|name| folder.path().join(name));
        for replace in [false, true] {
            let outputs = Outputs { trace: Some(trace.clone()), picture: Some(picture.clone()), replace };
            outputs.check(&[]).unwrap();
            std::fs::write(&trace, "other").unwrap();
            std::fs::write(&picture, "other").unwrap();
            for written in [outputs.write_trace(&Timeline::default()), outputs.write_picture("<svg>")] {
                assert_eq!(matches!(written, Err(MeasureError::Exists { .. })), !replace);
            }
            for path in [&trace, &picture] {
                assert_eq!(std::fs::read(path).unwrap() == b"other", !replace);
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
