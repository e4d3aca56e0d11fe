//! Leftovers of killed saves in a folder.
//!
//! Law (CK-5): it is removed if it is provably of a save of this library, and no process is left that could end that
//! save. A save has its index begun, and locked, from before its first part to its end, and the process of rank 0 alone
//! gives it its name. A part is known by the file beside it, which is the same file, stays locked as long as its
//! process is in the save, and is there until its rank knows the end (WF-1). So what others put there stays, under
//! whatever name.

use std::path::Path;

use super::index::{self, Index};
use warpweft_base::whole_file::{Beside, Dead, besides};

/// Removes it, from a folder without an index. What cannot be removed stays.
pub(super) fn remove(folder: &Path) {
    let index = Index::path(folder);
    // Parts first: the save of a part that is listed has its index begun already, or has ended.
    let listed = besides(folder);
    let begun: Vec<Beside> = besides(folder).into_iter().filter(|beside| beside.is_for(&index)).collect();
    let dead: Vec<Dead<'_>> = begun.iter().filter_map(Beside::dead).collect();
    if dead.len() < begun.len() {
        return;
    }
    let parts = listed.iter().filter(|beside| index::is_part(beside.target()));
    for (dead, part) in parts.filter_map(|beside| Some((beside.dead()?, folder.join(beside.target())))) {
        // The save ended before its locks were free.
        if Index::is_there(folder) {
            return;
        }
        // Last goes what shows whose the part is.
        if !dead.is(&part) || std::fs::remove_file(&part).is_ok() {
            dead.remove();
        }
    }
    dead.into_iter().for_each(Dead::remove);
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;
    use crate::checkpoint::ranks::SaveId;
    use warpweft_base::id::RankId;
    use warpweft_base::whole_file::{Held, WholeFile};

    /// A save of two ranks, of which one has written its part and the other half of it.
    struct Saving {
        index: WholeFile,
        part: Held,
        half: WholeFile,
    }

    fn save(folder: &Path, number: u64) -> Saving {
        let part = |rank| index::part(folder, SaveId::of(&[number]), RankId::new(rank), 2);
        let index = WholeFile::begin(&Index::path(folder)).unwrap();
        let [mut whole, mut half] = [0, 1].map(|rank| WholeFile::begin(&part(rank)).unwrap());
        whole.write_all(b"whole").unwrap();
        half.write_all(b"half").unwrap();
        Saving { index, part: whole.commit_held().unwrap().unwrap(), half }
    }

    /// Ends a save as a kill does: its locks are free, and its files stay.
    fn kill(folder: &Path, saving: Saving) {
        let kept = folder.join("kept");
        std::fs::create_dir(&kept).unwrap();
        let all = files(folder);
        all.iter().for_each(|path| std::fs::hard_link(path, kept.join(path.file_name().unwrap())).unwrap());
        drop(saving);
        all.iter().for_each(|path| {
            let _ = std::fs::remove_file(path);
            std::fs::rename(kept.join(path.file_name().unwrap()), path).unwrap();
        });
        std::fs::remove_dir(kept).unwrap();
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file()).collect()
    }

    /// CK-5.
    #[test]
    fn all_that_a_killed_save_left_goes_and_what_others_put_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let saving = save(folder, 1);
        kill(folder, saving);
        assert_eq!(files(folder).len(), 4, "an index, half a part, and a part under both of its names");
        // A part of another checkpoint, and a copy of the dead one's.
        let other = index::part(folder, SaveId::of(&[2]), RankId::new(0), 2);
        let copy = index::part(folder, SaveId::of(&[3]), RankId::new(0), 2);
        std::fs::write(&other, "other").unwrap();
        std::fs::copy(index::part(folder, SaveId::of(&[1]), RankId::new(0), 2), &copy).unwrap();
        remove(folder);
        let mut left = files(folder);
        left.sort();
        let mut expected = vec![other, copy];
        expected.sort();
        assert_eq!(left, expected);
    }

    /// CK-5.
    #[test]
    fn beside_a_save_that_lives_nothing_goes_nor_once_an_index_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let saving = save(folder, 1);
        kill(folder, saving);
        let living = save(folder, 2);
        let before = files(folder).len();
        remove(folder);
        assert_eq!(files(folder).len(), before);
        // A process of another rank is killed, and that of rank 0 makes the index all the same.
        let Saving { mut index, part, half } = living;
        drop((part, half));
        index.write_all(b"{}").unwrap();
        index.commit_as(false).unwrap();
        let before = files(folder).len();
        remove(folder);
        assert_eq!(files(folder).len(), before);
    }
}
