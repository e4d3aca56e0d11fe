//! Checkpoints of the run, in parts, and the one that it goes on from.
//!
//! Law: what a run needs beside its weights to go on is in the notes: the number of its steps, from which learning
//! rates follow, and what else its batches follow from: the seed, the batches of a step and the texts of a batch. A
//! folder that is taken, be it by a damaged checkpoint, is refused before anything is trained.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warpweft::checkpoint::PartFiles;
use warpweft::session::{Session, SessionError};

use crate::arguments::{Arguments, TEXTS};

/// The note that says how many steps were made.
const STEPS: &str = "steps";

/// What batches follow from: a flag, which names the note, what it says, and what holds where there is no note.
fn drawn_by(arguments: &Arguments) -> [(&'static str, u64, Option<u64>); 3] {
    [
        ("seed", arguments.seed, None),
        ("accumulate", arguments.accumulate.into(), Some(1)),
        ("batch", arguments.batch.into(), Some(TEXTS.into())),
    ]
}

/// A number in the notes.
fn noted(notes: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    notes.get(name)?.parse().ok()
}

/// The first flag that was another in the run that left these notes, and what it was.
fn drawn_otherwise(arguments: &Arguments, notes: &BTreeMap<String, String>) -> Option<(&'static str, u64)> {
    let differs = |(flag, given, otherwise): (&'static str, u64, Option<u64>)| {
        Some((flag, noted(notes, flag).or(otherwise).filter(|other| *other != given)?))
    };
    drawn_by(arguments).into_iter().find_map(differs)
}

/// The checkpoint that is kept after so many steps.
fn files(folder: &Path, steps: u32) -> PartFiles {
    PartFiles::new(folder.join(format!("step-{steps}")))
}

/// After how many steps one is kept.
fn is_due(arguments: &Arguments, steps: u32) -> bool {
    steps == arguments.steps || arguments.save_every.is_some_and(|every| steps.is_multiple_of(every))
}

/// How many steps were made before, according to `--resume`.
///
/// # Errors
/// One line with the flag, the path, and what to do.
pub(crate) fn steps_before(arguments: &Arguments) -> Result<u32, String> {
    let Some(folder) = &arguments.resume else { return Ok(0) };
    let saved = PartFiles::new(folder).saved().map_err(|error| format!("--resume: {error}"))?;
    let (folder, notes) = (folder.display(), &saved.notes);
    let steps = noted(notes, STEPS).and_then(|steps| u32::try_from(steps).ok());
    let Some(steps) = steps else {
        return Err(format!("--resume: {folder} was kept by another program; name one of --save"));
    };
    if let Some((flag, other)) = drawn_otherwise(arguments, notes) {
        return Err(format!(
            "--resume: {folder} is of a run with --{flag} {other}; go on with the same, or batches would be drawn \
             twice or left out"
        ));
    }
    if steps >= arguments.steps {
        return Err(format!(
            "--resume: {folder} is of step {steps}, so nothing is left of --steps {}; request more steps",
            arguments.steps
        ));
    }
    Ok(steps)
}

/// Makes the folder of all checkpoints. Are their places free?
///
/// # Errors
/// One line with the flag, the path, and what to do.
pub(crate) fn prepare(arguments: &Arguments, steps_before: u32) -> Result<(), String> {
    let Some(folder) = &arguments.save else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|error| {
        format!("--save: {}: {error}; name a folder in which this user can write", folder.display())
    })?;
    let mut kept = (steps_before + 1..=arguments.steps).filter(|steps| is_due(arguments, *steps));
    let taken = kept.find(|steps| files(folder, *steps).is_taken());
    taken.map_or(Ok(()), |steps| {
        let taken: PathBuf = files(folder, steps).folder().to_owned();
        Err(format!(
            "--save: {} holds a checkpoint or what is left of one; name another folder, or remove it",
            taken.display()
        ))
    })
}

/// Goes on from the checkpoint of `--resume`.
///
/// # Errors
/// Those of [`Session::import_parts`].
pub(crate) async fn resume(arguments: &Arguments, session: &mut Session) -> Result<(), SessionError> {
    if let Some(folder) = &arguments.resume {
        session.import_parts(&PartFiles::new(folder)).await?;
    }
    Ok(())
}

/// Keeps a checkpoint after so many steps, if one is due; training goes on meanwhile.
///
/// # Errors
/// Those of [`Session::save_parts_in_background`]; what is found out later, the next call says.
pub(crate) async fn save(
    arguments: &Arguments,
    steps: u32,
    session: &mut Session,
) -> Result<(), SessionError> {
    match &arguments.save {
        Some(folder) if is_due(arguments, steps) => {
            let drawn_by = drawn_by(arguments).map(|(flag, given, _)| (flag, given));
            let notes = drawn_by.into_iter().chain([(STEPS, steps.into())]);
            let notes = notes.map(|(name, note)| (name.to_owned(), note.to_string())).collect();
            session.save_parts_in_background(&files(folder, steps), &notes).await
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn where_a_note_is_missing_its_flag_was_as_it_is_by_default() {
        let drawn_otherwise = |flags: &[&str], notes: &[(&str, &str)]| {
            let arguments = Arguments::parse_from([&["train"], flags].concat());
            let notes = notes.iter().map(|(name, note)| ((*name).to_owned(), (*note).to_owned())).collect();
            drawn_otherwise(&arguments, &notes)
        };
        assert_eq!(drawn_otherwise(&[], &[("seed", "1")]), None);
        assert_eq!(drawn_otherwise(&["--batch", "2"], &[]), Some(("batch", 6)));
        assert_eq!(drawn_otherwise(&["--batch", "2"], &[("batch", "2")]), None);
        assert_eq!(drawn_otherwise(&["--accumulate", "2"], &[]), Some(("accumulate", 1)));
        assert_eq!(drawn_otherwise(&[], &[("batch", "2")]), Some(("batch", 2)));
        assert_eq!(drawn_otherwise(&["--seed", "3"], &[]), None, "it was not always noted");
    }
}
