//! Files that are replaced whole, and what is left where that fails.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::begin(path)?;
    file.write_all(bytes)?;
    file.commit()
}

#[test]
fn a_file_that_is_dropped_before_it_is_whole_leaves_what_was_there_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    for was_there in [false, true] {
        let mut file = WholeFile::begin(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(path.exists(), was_there);
        assert_eq!(folder.path().read_dir().unwrap().count(), usize::from(was_there));
        std::fs::write(&path, "old").unwrap();
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[test]
fn of_two_that_may_not_replace_the_first_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let begun = [b"first", b"other"].map(|bytes| {
        let mut file = WholeFile::begin(&path).unwrap();
        file.write_all(bytes).unwrap();
        file
    });
    let [first, other] = begun.map(|file| file.commit_as(false).map_err(|error| error.kind()));
    assert_eq!((first, other), (Ok(()), Err(io::ErrorKind::AlreadyExists)));
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1, "nothing is left beside it");
    write(&path, b"third").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"third");
}

#[test]
fn what_is_no_plain_file_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, link, dangling] = ["socket", "link", "dangling"].map(|name| folder.path().join(name));
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    symlink("socket", &link).unwrap();
    symlink("nowhere", &dangling).unwrap();
    let before = folder.path().read_dir().unwrap().count();
    for path in [&socket, &link, &folder.path().to_owned(), &dangling] {
        let error = write(path, b"new").unwrap_err();
        assert!(!error.to_string().is_empty(), "{}", path.display());
        assert!(std::fs::symlink_metadata(path).is_ok_and(|about| !about.is_file()));
    }
    let said = write(&link, b"new").unwrap_err().to_string();
    assert!(said.contains("no plain file"), "{said}");
    // Nothing is there, and no file can be.
    for name in ["new/", "..", "."] {
        let error = WholeFile::begin(&folder.path().join(name)).unwrap_err().to_string();
        assert!(error.contains("no plain file") || error.contains("of no file"), "{name}: {error}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), before);
}

#[test]
fn a_link_stays_a_link_and_the_file_it_leads_to_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    write(&link, b"new").unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
}

#[test]
fn the_longest_names_there_may_be_are_written() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["x".repeat(255), "ü".repeat(127)] {
        let path = folder.path().join(name);
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 2);
}

#[test]
fn a_file_system_that_syncs_no_folders_is_not_waited_for_and_one_that_fails_to_is_heard() {
    #[cfg(target_os = "linux")]
    settle_names(Some(File::open("/proc").unwrap())).unwrap();
    const EIO: i32 = 5;
    assert!([9, 22].into_iter().all(|number| syncs_no_folders(&io::Error::from_raw_os_error(number))));
    assert!(syncs_no_folders(&io::ErrorKind::Unsupported.into()));
    let failed = io::Error::from_raw_os_error(EIO);
    assert!(!syncs_no_folders(&failed));
    let words = failed.to_string();
    let told = io::Error::new(failed.kind(), Failure::Unsettled(failed));
    assert_eq!(told.to_string(), words);
    assert!(next_step(&told).starts_with("the file is in place"), "{}", next_step(&told));
}

#[test]
fn that_nothing_was_changed_is_said_of_what_is_refused_here_alone() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("new/")] {
        let refused = WholeFile::begin(&path).unwrap_err();
        assert_eq!(next_step(&refused), "nothing was changed", "{refused}");
    }
    assert_ne!(next_step(&io::ErrorKind::InvalidInput.into()), "nothing was changed");
}

#[test]
fn a_new_file_has_the_mode_of_any_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    write(&one, b"").unwrap();
    std::fs::write(&other, "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&one), mode(&other));
}
