//! Folders as hubs of models have them: files of tensors, and an index that says which tensor is where.

use std::path::Path;

use safetensors::tensor::Dtype;
use warpweft_session::checkpoint::{CheckpointError, PretrainedFiles};
use warpweft_testing::trainer::SIZE;

use crate::pretrained::{bits, given, masters, shards, write};

/// The index of the hub for these tensors and files.
fn write_index(folder: &Path, entries: &[(&str, &str)]) {
    let map: serde_json::Map<String, serde_json::Value> =
        entries.iter().map(|(tensor, file)| ((*tensor).to_owned(), (*file).into())).collect();
    let json = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), json.to_string()).unwrap();
}

#[test]
fn a_folder_of_the_hub_is_opened_by_its_index_or_by_its_only_file() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shards(folder.path());
    // A file that the index does not name is none of the model's.
    write(
        &folder.path().join("other.safetensors"),
        &[given("model.layer0.weight", Dtype::F32, &[1], &[0.0])],
    );
    let listed = [
        ("model.layer0.weight", first),
        ("model.layer1.weight", first),
        ("model.layer2.weight", second),
        ("model.bias.weight", second),
    ];
    write_index(folder.path(), &listed);
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    assert_eq!(files.tensor_names().len(), 4, "what the index does not list is not there");
    let error = files.shape("steps").unwrap_err().to_string();
    assert!(error.contains("their index does not list it"), "{error}");
    let mut values = [0.0; SIZE];
    files.rows("model.layer0.weight", 0, SIZE, &mut values).unwrap();
    assert_eq!(bits(&values), bits(&masters("layer0", 1)));

    let alone = tempfile::tempdir().unwrap();
    let hub = PretrainedFiles::open_model("meta-llama/Llama-3-8B").unwrap_err();
    assert!(matches!(hub, CheckpointError::NoFolder { .. }), "{hub}");
    let words = "the name of a model on the Hugging Face hub: nothing is downloaded here";
    assert!(hub.to_string().contains(words), "{hub}");
    assert!(hub.to_string().contains("hf download meta-llama/Llama-3-8B --local-dir"), "{hub}");
    let nowhere = PretrainedFiles::open_model(alone.path().join("models")).unwrap_err().to_string();
    assert!(nowhere.contains("there is no folder") && !nowhere.contains("Hugging Face"), "{nowhere}");
    let missing = PretrainedFiles::open_model(alone.path()).unwrap_err();
    assert!(matches!(&missing, CheckpointError::File { path, .. } if path.ends_with("model.safetensors")));
    write(&alone.path().join("model.safetensors"), &[given("w", Dtype::F32, &[2], &[1.0, 2.0])]);
    assert_eq!(PretrainedFiles::open_model(alone.path()).unwrap().shape("w").unwrap(), [2]);
}

/// Both have it, and the index says which of them counts.
#[test]
fn of_two_files_with_one_tensor_the_one_counts_that_the_index_lists() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a.safetensors", "b.safetensors"];
    for (name, value) in names.into_iter().zip([1.0, 2.0]) {
        let alone = given(name, Dtype::F32, &[1], &[value]);
        write(&folder.path().join(name), &[given("shared", Dtype::F32, &[1], &[value]), alone]);
    }
    for (counts, value) in names.into_iter().zip([1.0, 2.0]) {
        let of_each = names.map(|name| (name, name));
        write_index(folder.path(), &[("shared", counts), of_each[0], of_each[1]]);
        let files = PretrainedFiles::open_model(folder.path()).unwrap();
        let mut values = [0.0];
        files.rows("shared", 0, 1, &mut values).unwrap();
        assert_eq!(values, [value], "{counts}");
    }
}

#[test]
fn an_index_that_is_wrong_about_its_folder_is_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shards(folder.path());
    let refused = |parts: &[&str]| {
        let error = PretrainedFiles::open_model(folder.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::Index { .. }), "{error}");
        for part in parts.iter().chain(&["model.safetensors.index.json", "fetch"]) {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };
    for outside in ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", ""] {
        write_index(folder.path(), &[("model.layer0.weight", outside)]);
        refused(&["no file of this folder"]);
    }
    write_index(folder.path(), &[("model.layer0.weight", second)]);
    refused(&["model.layer0.weight", second]);
    write_index(folder.path(), &[("model.layer0.weight", first), ("model.head.weight", first)]);
    refused(&["model.head.weight", first]);
    let index = folder.path().join("model.safetensors.index.json");
    let twice = format!("{{\"weight_map\": {{\"t\": \"{second}\", \"t\": \"{first}\"}}}}");
    std::fs::write(&index, twice).unwrap();
    refused(&["`t` twice"]);
    write_index(folder.path(), &[]);
    refused(&["no tensor"]);
    write_index(folder.path(), &[("model.layer0.weight", "model-00003-of-00002.safetensors")]);
    let error = PretrainedFiles::open_model(folder.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::File { .. }), "{error}");
    for text in ["", "{", "[]", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": null}}"] {
        std::fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        refused(&[]);
    }
}
