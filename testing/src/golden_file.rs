//! Reads the golden vectors: safetensors files whose tensors are named `<case>/<field>`.

use safetensors::SafeTensors;

/// One golden file.
pub struct GoldenFile {
    bytes: Vec<u8>,
    name: String,
}

/// One case of a golden file.
pub struct Case<'a> {
    tensors: SafeTensors<'a>,
    /// Name of the case, the prefix of its tensors.
    pub name: String,
    /// The case's entry in the header: kind, shape, seed.
    pub entry: serde_json::Value,
}

impl GoldenFile {
    /// Reads `tests/golden/NAME.safetensors`.
    pub fn open(name: &str) -> Self {
        let path = format!("{}/../tests/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { bytes, name: name.to_owned() }
    }

    /// The cases in file order. Panics if there is none: a test over no cases proves nothing.
    pub fn cases(&self) -> Vec<Case<'_>> {
        let (_, header) = SafeTensors::read_metadata(&self.bytes).unwrap();
        let metadata = header.metadata().as_ref().expect("the header has metadata");
        let entries: Vec<serde_json::Value> = serde_json::from_str(&metadata["cases"]).unwrap();
        assert!(!entries.is_empty(), "{} has no cases", self.name);
        let case = |entry: serde_json::Value| Case {
            tensors: SafeTensors::deserialize(&self.bytes).unwrap(),
            name: entry["case"].as_str().or(entry["name"].as_str()).expect("the case has a name").to_owned(),
            entry,
        };
        entries.into_iter().map(case).collect()
    }
}

impl Case<'_> {
    /// A whole number of the entry.
    pub fn dimension(&self, key: &str) -> usize {
        self.entry[key].as_u64().unwrap_or_else(|| panic!("{}: no {key}", self.name)) as usize
    }

    /// A text of the entry.
    pub fn text(&self, key: &str) -> &str {
        self.entry[key].as_str().unwrap_or_else(|| panic!("{}: no {key}", self.name))
    }

    /// Has the case such a field?
    pub fn has(&self, field: &str) -> bool {
        self.tensors.tensor(&format!("{}/{field}", self.name)).is_ok()
    }

    /// The bytes of a field.
    pub fn bytes(&self, field: &str) -> &[u8] {
        let name = format!("{}/{field}", self.name);
        self.tensors.tensor(&name).unwrap_or_else(|error| panic!("{name}: {error}")).data()
    }

    /// A field of f32 values.
    pub fn f32s(&self, field: &str) -> Vec<f32> {
        self.bytes(field).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// A field of whole numbers.
    pub fn i64s(&self, field: &str) -> Vec<i64> {
        self.bytes(field).as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }
}

/// Panics unless the slices are equal; names the first difference.
pub fn assert_bytes(what: &str, actual: &[u8], expected: &[u8]) {
    assert_eq!(actual.len(), expected.len(), "{what}: length");
    if let Some(at) = actual.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} is {:#04x}, expected {:#04x}", actual[at], expected[at]);
    }
}

/// Panics unless the values have equal bits, NaN equal to NaN; names the first difference.
pub fn assert_f32s(what: &str, actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len(), "{what}: length");
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if let Some(at) = actual.iter().zip(expected).position(|(a, b)| !same(*a, *b)) {
        panic!("{what}: element {at} is {:e}, expected {:e}", actual[at], expected[at]);
    }
}
