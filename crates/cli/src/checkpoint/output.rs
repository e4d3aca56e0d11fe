//! A checkpoint that is written (TL-2).

use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use warpweft_base::whole_file::WholeFile;

use super::layout::{Layout, TensorId};
use crate::ToolError;

/// A file that takes its name in [`Output::commit`], and vanishes when it is dropped before.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    replace: bool,
    file: WholeFile,
    layout: Layout,
    /// Bytes of each tensor that are written.
    written: Vec<u64>,
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

    /// Begins an output, beside `path` and with its header.
    pub(crate) fn create(path: &Path, replace: bool, layout: Layout) -> Result<Self, ToolError> {
        let failed = ToolError::file("create", path);
        let mut file = WholeFile::begin(path).map_err(&failed)?;
        file.reserve(layout.file_bytes).map_err(&failed)?;
        file.write_all(&layout.head).map_err(&failed)?;
        let written = vec![0; layout.places.len()];
        Ok(Self { path: path.to_owned(), replace, file, layout, written })
    }

    /// Writes the next bytes of a tensor.
    pub(crate) fn append(&mut self, id: TensorId, bytes: &[u8]) -> Result<(), ToolError> {
        let ((begin, room), written) = (self.layout.places[id.0], self.written[id.0]);
        let reached = written + bytes.len() as u64;
        let result = if reached <= room {
            let file = &mut self.file;
            file.seek(SeekFrom::Start(begin + written)).and_then(|_| file.write_all(bytes))
        } else {
            Err(io::Error::other("a tensor is longer than its header says"))
        };
        self.written[id.0] = reached;
        result.map_err(ToolError::file("write", &self.path))
    }

    /// Gives the file its name, once every byte is on the disk.
    pub(crate) fn commit(self) -> Result<(), ToolError> {
        let Self { path, replace, file, layout, written } = self;
        let failed = ToolError::file("write", &path);
        if !layout.places.iter().map(|(_, room)| room).eq(&written) {
            return Err(failed(io::Error::other("a tensor is shorter than its header says")));
        }
        match file.commit_as(replace) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(ToolError::Exists { path: path.clone() })
            }
            named => named.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use safetensors::Dtype;

    use super::super::layout::Outline;
    use super::*;

    /// TL-2.
    #[test]
    fn a_file_takes_its_name_only_when_every_tensor_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for bytes in [[0; 4].as_slice(), &[0; 8], &[0; 9]] {
            let mut outline = Outline::default();
            let id = outline.add("w".to_owned(), Dtype::F32, vec![2]);
            let layout = outline.lay_out(&BTreeMap::new(), &path).unwrap();
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
            let layout = Outline::default().lay_out(&BTreeMap::new(), &path).unwrap();
            let output = Output::create(&path, replace, layout).unwrap();
            std::fs::write(&path, "other").unwrap();
            let result = output.commit();
            assert_eq!(matches!(result, Err(ToolError::Exists { .. })), !replace);
            assert_eq!(std::fs::read(&path).unwrap() == b"other", !replace);
            assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        }
    }
}
