//! Checkpoints of the run, in parts, and the one that it goes on from.
//!
//! Law: what a run needs beside its weights to go on is in the notes: the number of its steps, from which learning
//! rates follow, and with the seed and the batches of a step also its batches. A folder that is taken, be it by a
//! damaged checkpoint, is refused before anything is trained.

use std::path::{Path, PathBuf};

use warpweft::checkpoint::PartFiles;
use warpweft::session::{Session, SessionError};

use crate::arguments::Arguments;

/// The note that says how many steps were made.
const STEPS: &str = "steps";
/// The note that says of how many batches each was, without which a step is of one.
const ACCUMULATE: &str = "accumulate";
/// The note that says what batches were drawn by.
const SEED: &str = "seed";

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
    let noted = |name: &str| saved.notes.get(name).and_then(|note| note.parse::<u32>().ok());
    let (steps, accumulated) = (noted(STEPS), noted(ACCUMULATE).unwrap_or(1));
    let seed = saved.notes.get(SEED).and_then(|note| note.parse::<u64>().ok());
    if let Some(seed) = seed.filter(|seed| *seed != arguments.seed) {
        return Err(format!(
            "--resume: {} is of a run with --seed {seed}; go on with the same, or batches would be drawn twice or left out",
            folder.display()
        ));
    }
    if steps.is_some() && accumulated != arguments.accumulate {
        return Err(format!(
            "--resume: {} is of a run with --accumulate {accumulated}; go on with the same, or batches would be drawn twice or left out",
            folder.display()
        ));
    }
    match steps {
        Some(steps) if steps < arguments.steps => Ok(steps),
        Some(steps) => Err(format!(
            "--resume: {} is of step {steps}, so nothing is left of --steps {}; request more steps",
            folder.display(),
            arguments.steps
        )),
        None => {
            Err(format!("--resume: {} was kept by another program; name one of --save", folder.display()))
        }
    }
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
            let notes =
                [(STEPS, steps.into()), (ACCUMULATE, arguments.accumulate.into()), (SEED, arguments.seed)];
            let notes = notes.map(|(name, note): (_, u64)| (name.to_owned(), note.to_string())).into();
            session.save_parts_in_background(&files(folder, steps), &notes).await
        }
        _ => Ok(()),
    }
}
