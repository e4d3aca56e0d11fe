//! Folders that the packages of the engines wrote.

use std::path::Path;

use warpweft::checkpoint::PretrainedFiles;

use super::values;

/// EN-3.
#[test]
fn what_the_packages_wrote_is_read_as_they_read_it_to_the_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engines");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        let files = PretrainedFiles::open_model(&folder).unwrap_or_else(|error| panic!("{error}"));
        let golden = PretrainedFiles::open([folder.join("values.safetensors")]).unwrap();
        assert!(golden.tensor_names().len() > 0);
        for name in golden.tensor_names() {
            let (ours, theirs) = (values(&files, name), values(&golden, name));
            let differs =
                ours.iter().zip(&theirs).position(|(ours, theirs)| ours.to_bits() != theirs.to_bits());
            assert_eq!(differs, None, "{} {name}", folder.display());
            // From the middle of a block as well.
            let cols = files.shape(name).unwrap()[1];
            let mut row = vec![0.0; cols];
            let last = ours.len() / cols - 1;
            files.rows(name, last, cols, &mut row).unwrap();
            assert_eq!(row, ours[last * cols..]);
            compared += 1;
        }
        assert!(
            files.tensor_names().all(|name| !name.contains("weight_")),
            "codes and scales are no weights"
        );
    }
    assert!(compared > 40, "{compared}");
}
