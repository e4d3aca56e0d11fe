//! The files that a run leaves: the picture of its loss, and with `--losses` the losses in digits.
//!
//! Law: whether they can be written is asked before training begins, and asking leaves every file as it was.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where they go.
#[derive(Debug)]
pub(crate) struct Outputs {
    curve: PathBuf,
    losses: Option<PathBuf>,
}

impl Outputs {
    /// Makes the folders and tries whether the files can be written.
    ///
    /// # Errors
    /// One line with the flag, the path, and what to do.
    pub(crate) fn prepare(out: &Path, losses: Option<&Path>) -> Result<Self, String> {
        fs::create_dir_all(out).map_err(|error| {
            format!(
                "--out: `{}` cannot be a folder for the loss curve ({error}); name another",
                out.display()
            )
        })?;
        let curve = out.join("loss.svg");
        try_file("--out", &curve)?;
        if let Some(path) = losses {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                fs::create_dir_all(folder).map_err(|error| refusal("--losses", path, &error))?;
            }
            try_file("--losses", path)?;
        }
        Ok(Self { curve, losses: losses.map(Path::to_owned) })
    }

    /// Writes both.
    ///
    /// # Errors
    /// As [`Outputs::prepare`].
    pub(crate) fn write(&self, picture: &str, losses: &[f32]) -> Result<(), String> {
        if let Some(path) = &self.losses {
            let lines: String = losses.iter().map(|loss| format!("{loss}\n")).collect();
            fs::write(path, lines).map_err(|error| refusal("--losses", path, &error))?;
        }
        fs::write(&self.curve, picture).map_err(|error| refusal("--out", &self.curve, &error))
    }

    /// The file of the picture.
    pub(crate) fn curve(&self) -> &Path {
        &self.curve
    }
}

fn refusal(flag: &str, path: &Path, error: &std::io::Error) -> String {
    format!(
        "{flag}: `{}` cannot be written ({error}); name a file that you may write, where there is room",
        path.display()
    )
}

/// Can the file be written? One that was not there is not there afterwards.
fn try_file(flag: &str, path: &Path) -> Result<(), String> {
    let tried = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        // A pipe or a device is taken as it is: opening one can wait, or end its reader.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::metadata(path) {
            Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
            _ => OpenOptions::new().append(true).open(path).map(drop),
        },
        Err(error) => Err(error),
    };
    tried.map_err(|error| refusal(flag, path, &error))
}
