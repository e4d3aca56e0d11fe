//! The output checkpoint (TL-2).

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use warpweft_base::whole_file::WholeFile;
use warpweft_session::checkpoint::safetensors::{
    Invalid, Layout, Outline, TensorFileError, TensorId, Writer,
};

use super::ToolError;

/// A file that takes its name in [`Output::commit`], and vanishes when it is dropped before.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    replace: bool,
    writer: Writer<WholeFile>,
}

impl Output {
    /// Refuses a name that no output could take now. `replace` allows a regular file there, unless it is `input`.
    pub(crate) fn check(path: &Path, replace: bool, input: &Path) -> Result<(), ToolError> {
        let failed = ToolError::file("write", path);
        match std::fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
            Ok(about) if !about.is_file() => return Err(ToolError::NotAFile { path: path.to_owned() }),
            Ok(_) => {}
        }
        if path.canonicalize().map_err(&failed)? == input.canonicalize().map_err(&failed)? {
            return Err(ToolError::SameFile { path: path.to_owned() });
        }
        if replace { Ok(()) } else { Err(ToolError::Exists { path: path.to_owned() }) }
    }

    /// Fixes the place of every tensor in the file `path`, which is not touched.
    pub(crate) fn lay_out(
        outline: &Outline,
        metadata: &BTreeMap<String, String>,
        path: &Path,
    ) -> Result<Layout, ToolError> {
        outline.lay_out(metadata).map_err(|error| match error {
            TensorFileError::Invalid(Invalid::DuplicateTensor { tensor }) => ToolError::NameTaken { tensor },
            TensorFileError::Invalid(Invalid::HeaderTooLarge { bytes, limit }) => {
                ToolError::HeaderTooLarge { bytes, limit }
            }
            TensorFileError::Invalid(source) => ToolError::Checkpoint { path: path.to_owned(), source },
            TensorFileError::File(source) => ToolError::file("write the header of", path)(source),
        })
    }

    /// Begins an output, beside `path` and with its header.
    pub(crate) fn create(path: &Path, replace: bool, layout: Layout) -> Result<Self, ToolError> {
        let failed = ToolError::file("create", path);
        let mut file = WholeFile::begin(path).map_err(&failed)?;
        file.reserve(layout.file_bytes).map_err(&failed)?;
        let writer = Writer::begin(file, layout).map_err(&failed)?;
        Ok(Self { path: path.to_owned(), replace, writer })
    }

    /// Writes the next bytes of a tensor.
    pub(crate) fn append(&mut self, id: TensorId, bytes: &[u8]) -> Result<(), ToolError> {
        self.writer.append(id, bytes).map_err(ToolError::file("write", &self.path))
    }

    /// Gives the file its name, once every byte is on the disk.
    pub(crate) fn commit(self) -> Result<(), ToolError> {
        let Self { path, replace, writer } = self;
        let failed = ToolError::file("write", &path);
        match writer.finish().map_err(&failed)?.commit_as(replace) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(ToolError::Exists { path: path.clone() })
            }
            named => named.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;

    /// TL-2.
    #[test]
    fn a_file_takes_its_name_only_when_every_tensor_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for bytes in [[0; 4].as_slice(), &[0; 8], &[0; 9]] {
            let mut outline = Outline::default();
            let id = outline.add("w".to_owned(), Dtype::F32, vec![2]);
            let layout = Output::lay_out(&outline, &BTreeMap::new(), &path).unwrap();
            let mut output = Output::create(&path, false, layout).unwrap();
            let whole = output.append(id, bytes).and_then(|()| output.commit()).is_ok();
            assert_eq!(whole, bytes.len() == 8);
            assert_eq!(folder.path().read_dir().unwrap().count(), usize::from(whole));
            let _ = std::fs::remove_file(&path);
        }
    }

    #[test]
    fn a_file_that_appeared_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for replace in [false, true] {
            let layout = Output::lay_out(&Outline::default(), &BTreeMap::new(), &path).unwrap();
            let output = Output::create(&path, replace, layout).unwrap();
            std::fs::write(&path, "other").unwrap();
            let result = output.commit();
            assert_eq!(matches!(result, Err(ToolError::Exists { .. })), !replace);
            assert_eq!(std::fs::read(&path).unwrap() == b"other", !replace);
            assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        }
    }
}
