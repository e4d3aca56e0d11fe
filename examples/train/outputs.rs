//! The files that a run leaves: the picture of its loss, and with `--losses` the losses in digits.
//!
//! Law: whether they can be written is asked before training begins, and asking leaves every file as it was.
//! No two outputs are one file, the trace among them, and none is a file that the run reads. A file is
//! written beside its place and then takes its name, so on a full disk the old one stays; what is no plain
//! file (a pipe, a device) is written as it is.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Where they go.
#[derive(Debug)]
pub(crate) struct Outputs {
    curve: PathBuf,
    losses: Option<PathBuf>,
}

/// The trace, which the session writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace<'a> {
    /// What named it.
    pub(crate) option: &'static str,
    /// The file.
    pub(crate) path: &'a Path,
}

impl Outputs {
    /// Makes the folders and tries whether the files can be written. `inputs` are the files that the run
    /// reads, each with what named it.
    ///
    /// # Errors
    /// One line with the flag, the path, and what to do; of two outputs in one file both flags, and of an
    /// output in the place of an input both names.
    pub(crate) fn prepare(
        out: &Path,
        losses: Option<&Path>,
        trace: Option<Trace<'_>>,
        inputs: &[(&str, &Path)],
    ) -> Result<Self, String> {
        fs::create_dir_all(out).map_err(|error| {
            format!(
                "--out: `{}` cannot be a folder for the loss curve ({error}); name another",
                out.display()
            )
        })?;
        let curve = out.join("loss.svg");
        let trace = trace.map(|trace| (trace.option, trace.path));
        let losses_file = losses.map(|path| ("--losses", path));
        for (flag, path) in losses_file.into_iter().chain(trace) {
            fs::create_dir_all(folder(path)).map_err(|error| refusal(flag, path, &error))?;
        }
        let own = [Some(("--out", curve.as_path())), losses_file];
        apart(own.into_iter().chain([trace]).flatten(), inputs)?;
        own.into_iter().flatten().try_for_each(|(flag, path)| try_file(flag, path))?;
        Ok(Self { losses: losses.map(Path::to_owned), curve })
    }

    /// Writes both; one that fails does not keep the other from being written.
    ///
    /// # Errors
    /// As [`Outputs::prepare`].
    pub(crate) fn write(&self, picture: &str, losses: &[f32]) -> Result<(), String> {
        let digits = self.losses.as_ref().map_or(Ok(()), |path| {
            let lines: String = losses.iter().map(|loss| format!("{loss}\n")).collect();
            replace(path, lines.as_bytes()).map_err(|error| refusal("--losses", path, &error))
        });
        let drawn = replace(&self.curve, picture.as_bytes());
        digits.and(drawn.map_err(|error| refusal("--out", &self.curve, &error)))
    }

    /// The file of the picture.
    pub(crate) fn curve(&self) -> &Path {
        &self.curve
    }
}

fn refusal(flag: &str, path: &Path, error: &io::Error) -> String {
    format!(
        "{flag}: `{}` cannot be written ({error}); name a file that you may write, in a folder that takes new files and has room",
        path.display()
    )
}

/// No two of the files, each with its flag, are one, and none is an input.
fn apart<'a>(
    files: impl Iterator<Item = (&'a str, &'a Path)>,
    inputs: &[(&str, &Path)],
) -> Result<(), String> {
    let read: HashMap<PathBuf, &str> = inputs.iter().map(|(name, path)| (place(path), *name)).collect();
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    for (flag, path) in files {
        let place = place(path);
        if let Some(input) = read.get(&place) {
            return Err(format!(
                "`{}` is both input ({input}) and output ({flag}); name another file for the output",
                path.display()
            ));
        }
        if let Some((other, _)) = known.iter().find(|(_, taken)| *taken == place) {
            return Err(format!(
                "{other} and {flag} would both write `{}`; name different files",
                path.display()
            ));
        }
        known.push((flag, place));
    }
    Ok(())
}

/// One spelling for all paths of a file, which need not be there.
fn place(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (folder(path).canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    })
}

/// The folder of a file.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Can the file be written? One that was not there is not there afterwards.
fn try_file(flag: &str, path: &Path) -> Result<(), String> {
    let tried = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        // A pipe or a device is taken as it is: opening one can wait, or end its reader.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::metadata(path) {
            Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
            _ => OpenOptions::new()
                .append(true)
                .open(path)
                .and_then(|_| beside(&path.canonicalize()?))
                .map(drop),
        },
        Err(error) => Err(error),
    };
    tried.map_err(|error| refusal(flag, path, &error))
}

/// Writes a file whole, or leaves what was there. A link is followed.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (place, mode) = match fs::metadata(path) {
        Ok(found) if found.is_file() => (path.canonicalize()?, Some(found.permissions())),
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
        Ok(_) => return fs::write(path, bytes),
        Err(error) => return Err(error),
    };
    let mut file = beside(&place)?;
    file.write_all(bytes)?;
    if let Some(mode) = mode {
        // Not every file system has modes; the content counts.
        let _ = file.as_file().set_permissions(mode);
    }
    file.as_file().sync_all()?;
    file.persist(&place).map_err(|error| error.error)?;
    Ok(())
}

/// A file that vanishes unless it takes the name of its neighbour.
fn beside(place: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".train-").suffix(".part");
    // As of any new file. The default is for secrets.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(place))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn outputs_that_are_one_file_are_refused_however_it_is_spelled() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        symlink(&out, folder.path().join("link")).unwrap();
        let said = |losses: &str, trace: Option<&str>| {
            let (losses, trace) = (folder.path().join(losses), trace.map(|trace| folder.path().join(trace)));
            let trace = trace.as_deref().map(|path| Trace { option: "--trace", path });
            Outputs::prepare(&out, Some(&losses), trace, &[]).map(drop)
        };
        for (losses, trace, flags) in [
            ("out/loss.svg", None, ["--out", "--losses"]),
            ("link/../out/./loss.svg", None, ["--out", "--losses"]),
            ("link/x", Some("out/x"), ["--losses", "--trace"]),
            ("x", Some("link/loss.svg"), ["--out", "--trace"]),
        ] {
            let refusal = said(losses, trace).unwrap_err();
            assert!(flags.iter().all(|flag| refusal.contains(flag)), "{refusal}");
        }
        assert_eq!(said("x", Some("out/x")), Ok(()));
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "what was only tried is not left behind");
    }

    #[test]
    fn an_output_in_the_place_of_an_input_is_refused_however_it_is_spelled() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("own.toml"), "").unwrap();
        fs::write(path("loss.svg"), "").unwrap();
        symlink(path("own.toml"), path("link")).unwrap();
        let (config, text) = (path("own.toml"), path("loss.svg"));
        let prepare = |losses: &str, trace: &str, inputs: &[(&str, &Path)]| {
            let (losses, trace) = (path(losses), path(trace));
            let trace = Trace { option: "--trace", path: &trace };
            Outputs::prepare(folder.path(), Some(&losses), Some(trace), inputs).map(drop)
        };
        for (losses, trace, flag) in [("link", "t", "--losses"), ("l", "./own.toml", "--trace")] {
            let refusal = prepare(losses, trace, &[("--config", &config)]).unwrap_err();
            assert!(refusal.contains(&format!("both input (--config) and output ({flag})")), "{refusal}");
        }
        let refusal = prepare("l", "t", &[("the text", &text)]).unwrap_err();
        assert!(refusal.contains("(the text)") && refusal.contains("(--out)"), "{refusal}");
        assert_eq!(prepare("l", "new/folder/t", &[("--config", &config)]), Ok(()));
        assert!(path("new/folder").is_dir(), "the folder of a trace is made too");
    }

    #[test]
    fn a_file_is_replaced_whole_where_its_link_leads_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        let outputs = Outputs::prepare(folder.path(), Some(&link), None, &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        outputs.write("<svg>", &[1.5, 2.0]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1.5\n2\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(outputs.curve()).unwrap(), "<svg>");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left beside them");
    }

    #[test]
    fn losses_that_cannot_be_written_do_not_keep_the_picture_from_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let losses = folder.path().join("losses");
        let outputs = Outputs::prepare(folder.path(), Some(&losses), None, &[]).unwrap();
        fs::create_dir(&losses).unwrap();
        assert!(outputs.write("<svg>", &[1.0]).unwrap_err().contains("--losses"));
        assert_eq!(fs::read_to_string(outputs.curve()).unwrap(), "<svg>");
    }
}
