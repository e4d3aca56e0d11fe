//! Weights from elsewhere: rows of tensors of safetensors files, as the masters that a session begins with.
//!
//! Law: what a rank requests is read when it asks, and nothing else: in memory are the headers and one piece.
//! A value is that of the file, to the last bit. Names, shapes and dtypes are judged before a session starts;
//! what fails later is an error, and never a zero.

mod frozen_base;
mod model_folder;
mod quantized_layers;

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use safetensors::Dtype;

use super::engines::PlainTensor;
use super::engines::read_config::Quantization;
use super::kind::{Listed, NotWeights, Stated, of_start};
use super::manifest::{self, Manifest, ManifestError};
use super::ranks::MasterRows;
use super::safetensors::{TensorFile, TensorFileError, floats};
use super::{CheckpointError, FileTask};
use warpweft_base::errors::{LONGEST_NAME, shown};
use warpweft_base::near::near;
use warpweft_format::Shape;
use warpweft_plan::layout::expert_named;
use warpweft_plan::model::{Mesh, Model};

use quantized_layers::QuantizedLayer;

pub use frozen_base::FrozenBase;

/// Values read at once.
const PIECE: usize = 1 << 18;

/// Most names that an error proposes.
const MOST_NAMES: usize = 3;

/// The tensors of one or several safetensors files, such as the shards of a model from the Hugging Face hub.
///
/// Opening reads the headers. Rows are read when they are requested, by any thread, and converted to f32,
/// which is exact: F32, BF16 and F16 are read; tensors of other dtypes may be in the files. The files stay
/// open. A clone reads the same files.
///
/// Of a model's folder whose `config.json` says that layers are quantized as inference engines read them
/// ([`Dialect`](super::engines::Dialect)), the weight `X.weight` of such a layer is one of its values, computed as the
/// dialect's own package does when rows are requested.
///
/// Other codes of a quantized weight, their scales, and what an optimizer keeps are refused when they are requested,
/// with what the file is ([`CheckpointError::NotWeights`]), and so is every tensor of one rank's part of a checkpoint.
///
/// A tensor of two dimensions is a row-major matrix `[rows, cols]`; one of a single dimension `[n]` is one
/// row, or one column where a weight is n×1. One of more dimensions has rows of its last one, so
/// `[experts, rows, cols]` has `experts · rows` of them.
///
/// Nothing is transposed: a weight of this library computes `x · Wᵀ`, so its rows are output features, like
/// those of PyTorch's `Linear`. Where files hold the transposed matrix (`Conv1D` of GPT-2), or one tensor is
/// part of several weights, write an initializer over [`PretrainedFiles::rows`]; a square matrix that should
/// be transposed cannot be found out.
///
/// A checkpoint of [`FileStore`](super::FileStore) is such a file as well: the tensor of weight `w` is
/// `w.master`. Its digests are not compared, because rows are read and not the whole;
/// [`FileStore::load`](super::CheckpointStore::load) compares them.
///
/// ```
/// use warpweft::prelude::*;
/// use warpweft::checkpoint::PretrainedFiles;
/// use warpweft::session::block_on;
/// # use safetensors::tensor::{Dtype, TensorView};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let bytes: Vec<u8> = (0..6).flat_map(|number| (number as f32).to_le_bytes()).collect();
/// # let view = TensorView::new(Dtype::F32, vec![3, 2], &bytes)?;
/// # safetensors::serialize_to_file([("model.up.weight", view)], None, &path)?;
///
/// let mut model = Model::builder();
/// let up = model.sharded("up", 3, 2, Format::F32)?;
/// let model = model.build();
///
/// let files = PretrainedFiles::open([&path])?;
/// assert_eq!(files.shape("model.up.weight")?, [3, 2]);
/// let pretrained = files.initializer(&model, |weight| Some(format!("model.{weight}.weight")))?;
///
/// let mut program = StepProgram::builder("look", &model);
/// program.call("look", Phase::Forward).uses_dense(up).add()?;
/// let builder = Session::builder(Config::default(), |_rank| on_cpu(|_, _| Ok(())));
/// let builder = builder.program(program.build_evaluation()?).try_initialize(pretrained);
/// let mut session = block_on(builder.start_cpu(2))?;
/// assert_eq!(block_on(session.export())?.weights[0].master, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PretrainedFiles {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    files: Vec<Source>,
    tensors: BTreeMap<String, Tensor>,
    /// Those that hold something other than a weight.
    not_weights: NotWeights,
}

/// One file, at whatever place it was read last.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: Mutex<TensorFile>,
    /// What it says is quantized in it, or why that cannot be used.
    quantized: Option<Result<Manifest, ManifestError>>,
}

/// One tensor.
#[derive(Debug)]
struct Tensor {
    /// Number of its file.
    file: usize,
    /// Its first byte in there.
    begin: u64,
    dtype: Dtype,
    shape: Vec<usize>,
    /// What makes values of its codes, where it is a quantized layer.
    layer: Option<Box<QuantizedLayer>>,
}

impl PretrainedFiles {
    /// Opens files and reads their headers: all shards of a model, in any order.
    /// [`PretrainedFiles::open_model`] finds them in a model's folder.
    ///
    /// # Errors
    /// [`CheckpointError::File`], [`CheckpointError::NotSafetensors`] for a file of another kind,
    /// [`CheckpointError::Invalid`] for what is not a valid safetensors file, and [`CheckpointError::Twice`] for a name
    /// that two files have.
    pub fn open(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self, CheckpointError> {
        Self::open_listed(paths, None, |_, _| true)
    }

    /// Opens files, and takes of each, by its number, the tensors that are `listed`; of a model whose layers are
    /// quantized these become values.
    fn open_listed(
        paths: impl IntoIterator<Item = impl AsRef<Path>>,
        quantization: Option<(&Path, Quantization)>,
        listed: impl Fn(usize, &str) -> bool,
    ) -> Result<Self, CheckpointError> {
        let (mut files, mut tensors) = (Vec::<Source>::new(), BTreeMap::<String, Tensor>::new());
        let mut stated = Stated::default();
        for path in paths {
            let path = path.as_ref();
            let (header, file, _) = TensorFile::open(path).map_err(|error| invalid(path, error))?;
            stated = stated.or(Stated::of(path, header.metadata().keys()));
            for entry in header.tensors() {
                let name = &entry.name;
                if !listed(files.len(), name) {
                    continue;
                }
                if let Some(first) = tensors.get(name) {
                    let (first, second) = (files[first.file].path.clone(), path.to_owned());
                    return Err(CheckpointError::Twice { tensor: name.clone(), first, second });
                }
                let (begin, dtype, shape) = (file.begin(entry), entry.dtype, entry.shape.clone());
                tensors.insert(name.clone(), Tensor { file: files.len(), begin, dtype, shape, layer: None });
            }
            let quantized = header.metadata().get(manifest::KEY).map(|text| Manifest::read(text));
            files.push(Source { path: path.to_owned(), file: Mutex::new(file), quantized });
        }
        if let Some((folder, quantization)) = quantization {
            quantized_layers::find(&mut tensors, &quantization, folder)?;
        }
        let plain = tensors.iter().filter(|(_, tensor)| tensor.layer.is_none());
        let all = plain.map(|(name, Tensor { dtype, shape, .. })| Listed::new(name, *dtype, shape));
        let not_weights = NotWeights::of(all, &stated);
        Ok(Self { opened: Arc::new(Opened { files, tensors, not_weights }) })
    }

    /// The names of all tensors of all files, sorted.
    pub fn tensor_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.opened.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor, as its file has it.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`].
    pub fn shape(&self, tensor: &str) -> Result<&[usize], CheckpointError> {
        Ok(&self.find(tensor)?.shape)
    }

    /// Fills `values` with rows of a tensor of `columns` columns, row-major, from `first_row` on: as many
    /// rows as `values` has room for.
    ///
    /// # Errors
    /// [`CheckpointError::NoTensor`], [`CheckpointError::NotWeights`], [`CheckpointError::Dtype`], and
    /// [`CheckpointError::Rows`] for other columns, rows that are not there, or a part of one.
    /// [`CheckpointError::File`] when the file cannot be read; part of `values` may be filled then.
    pub fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let found = self.find(tensor)?;
        let width = self.width(tensor, found)?;
        let shape = found.matrix(columns == 1);
        let rows = values.len().checked_div(columns).filter(|rows| rows * columns == values.len());
        let end = rows.and_then(|rows| first_row.checked_add(rows));
        if columns != shape.cols || end.is_none_or(|end| end > shape.rows) {
            let (shape, values) = (&found.shape, values.len());
            let reason = format!(
                "has the shape {shape:?}, and {values} values were requested from row {first_row} on, in {columns} columns"
            );
            return Err(CheckpointError::Rows { tensor: tensor.to_owned(), path: self.path(found), reason });
        }
        if let Some(layer) = &found.layer {
            return self.dequantize(tensor, found, layer, first_row, values);
        }
        let begin = found.begin + (first_row * columns * width) as u64;
        self.opened.files[found.file].values(found.dtype, begin, width, values)
    }

    /// All tensors, in the order of their files.
    ///
    /// # Errors
    /// [`CheckpointError::NotWeights`].
    pub(in crate::checkpoint) fn plain_tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        let mut tensors: Vec<(&String, &Tensor)> = self.opened.tensors.iter().collect();
        tensors.sort_by_key(|(_, tensor)| (tensor.file, tensor.begin));
        let what = |name: &str, found: &Tensor| match found.layer {
            Some(_) => Some("quantized already; begin with the model as it was before"),
            None => self.opened.not_weights.what(name),
        };
        let plain = tensors.into_iter().map(|(name, found)| match what(name, found) {
            None => Ok(PlainTensor { name: name.clone(), dtype: found.dtype, shape: found.shape.clone() }),
            Some(what) => Err(self.not_weights(name, found, what)),
        });
        plain.collect()
    }

    /// Dtypes and shapes of all tensors that are no quantized layers.
    #[doc(hidden)]
    pub fn plain_tensors_by_dtype(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let plain = self.opened.tensors.values().filter(|tensor| tensor.layer.is_none());
        plain.map(|tensor| (tensor.dtype.to_string(), tensor.shape.clone()))
    }

    /// Fills `bytes` with those of a tensor from the byte `at` on.
    pub(in crate::checkpoint) fn fill(
        &self,
        tensor: &str,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let found = self.find(tensor)?;
        self.opened.files[found.file].bytes(found.begin + at as u64, bytes)
    }

    /// Masters from these files, for
    /// [`SessionBuilder::try_initialize`](crate::session::SessionBuilder::try_initialize).
    ///
    /// `tensor_of` names the tensor of every weight of `model`. Where it gives `None`, the weight is not in
    /// the files: pass a function to `try_initialize` that gives its masters, and calls this one for the
    /// others. For a weight without a tensor this one fails ([`CheckpointError::NoName`]), so nothing begins
    /// as zeros unnoticed. Two weights may have one tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Weight`] with the weight, for the first one whose tensor is not there
    /// ([`CheckpointError::NoTensor`]), is part of a quantized weight or of the state of an optimizer
    /// ([`CheckpointError::NotWeights`]), is of another shape ([`CheckpointError::Shape`]) or of a dtype that is not
    /// read ([`CheckpointError::Dtype`]). Nothing but headers was read then.
    pub fn initializer<F: Fn(&str) -> Option<String>>(
        &self,
        model: &Model,
        tensor_of: F,
    ) -> Result<
        impl Fn(MasterRows<'_>, &mut [f32]) -> Result<(), CheckpointError>
        + Clone
        + Send
        + Sync
        + 'static
        + use<F>,
        CheckpointError,
    > {
        let mut tensors = HashMap::new();
        for spec in model.weights() {
            // An expert brings all others of its layer.
            if tensors.contains_key(&spec.name) {
                continue;
            }
            let Some(tensor) = tensor_of(&spec.name) else { continue };
            self.check(&tensor, spec.shape).map_err(|error| of_weight(&spec.name, error))?;
            tensors.insert(spec.name.clone(), tensor);
            // Other ranks may have other experts in its place: all that are there.
            let named = |number| expert_named(&spec.name, number).filter(|_| spec.expert);
            let others = (0..Mesh::MAX_RANKS).map_while(named).map_while(|name| {
                let tensor = tensor_of(&name).filter(|tensor| self.check(tensor, spec.shape).is_ok())?;
                Some((name, tensor))
            });
            tensors.extend(others);
        }
        let (files, tensors) = (self.clone(), Arc::new(tensors));
        Ok(move |rows: MasterRows<'_>, values: &mut [f32]| {
            let MasterRows { weight, first_row, columns } = rows;
            let none = || CheckpointError::NoName { weight: weight.to_owned() };
            let tensor = tensors.get(weight).ok_or_else(none)?;
            files.rows(tensor, first_row, columns, values).map_err(|error| of_weight(weight, error))
        })
    }

    /// Can the tensor be a weight of this shape?
    pub(in crate::checkpoint) fn check(&self, tensor: &str, expected: Shape) -> Result<(), CheckpointError> {
        let found = self.find(tensor)?;
        self.width(tensor, found)?;
        if found.matrix(expected.cols == 1) == expected {
            return Ok(());
        }
        let (path, tensor) = (self.path(found), tensor.to_owned());
        Err(CheckpointError::Shape { tensor, path, found: found.shape.clone(), expected })
    }

    fn find(&self, tensor: &str) -> Result<&Tensor, CheckpointError> {
        self.opened.tensors.get(tensor).ok_or_else(|| {
            let names = self.tensor_names().filter(|name| name.len() <= LONGEST_NAME);
            let near = near(tensor, names).into_iter().take(MOST_NAMES).map(shown).collect();
            CheckpointError::NoTensor { tensor: tensor.to_owned(), files: self.opened.files.len(), near }
        })
    }

    /// Bytes of an element of a tensor that can be a weight.
    fn width(&self, tensor: &str, found: &Tensor) -> Result<usize, CheckpointError> {
        if let Some(what) = self.opened.not_weights.what(tensor) {
            return Err(self.not_weights(tensor, found, what));
        }
        floats::float_bytes(found.dtype).ok_or_else(|| {
            let (tensor, path, dtype) = (tensor.to_owned(), self.path(found), found.dtype.to_string());
            CheckpointError::Dtype { tensor, path, dtype }
        })
    }

    fn not_weights(&self, tensor: &str, found: &Tensor, what: &str) -> CheckpointError {
        let (tensor, path, what) = (tensor.to_owned(), self.path(found), what.to_owned());
        CheckpointError::NotWeights { tensor, path, what }
    }

    fn path(&self, tensor: &Tensor) -> PathBuf {
        self.opened.files[tensor.file].path.clone()
    }
}

impl Tensor {
    /// Its rows and columns, in a matrix of one column if that is requested and fits. No product overflows: the
    /// header's check has taken the same ones.
    fn matrix(&self, one_column: bool) -> Shape {
        match self.shape.as_slice() {
            [] => Shape { rows: 1, cols: 1 },
            [rows] if one_column => Shape { rows: *rows, cols: 1 },
            [cols] => Shape { rows: 1, cols: *cols },
            [leading @ .., cols] => Shape { rows: leading.iter().product(), cols: *cols },
        }
    }
}

impl Source {
    /// Reads values of `width` bytes each from `begin` on, piece by piece.
    fn values(
        &self,
        dtype: Dtype,
        begin: u64,
        width: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let (mut at, mut bytes) = (begin, Vec::new());
        for piece in values.chunks_mut(PIECE) {
            if dtype == Dtype::F32 {
                self.bytes(at, bytemuck::cast_slice_mut(piece))?;
            } else {
                bytes.resize(piece.len() * width, 0);
                self.bytes(at, &mut bytes)?;
                floats::to_f32(dtype, &bytes, piece);
            }
            at += (piece.len() * width) as u64;
        }
        Ok(())
    }

    /// Reads bytes at a place. Others wait meanwhile, and not while values are converted.
    fn bytes(&self, at: u64, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let read = self.file.lock().unwrap_or_else(PoisonError::into_inner).read_at(at, bytes);
        read.map_err(|error| CheckpointError::file(&self.path, FileTask::ReadWeights, error))
    }
}

/// Why a file is none of tensors: by how it begins, if that says it.
fn invalid(path: &Path, error: TensorFileError) -> CheckpointError {
    let path = path.to_owned();
    match error {
        TensorFileError::File(source) if source.kind() != ErrorKind::InvalidInput => {
            CheckpointError::file(path, FileTask::ReadWeights, source)
        }
        error => match of_start(&path) {
            Some(what) => CheckpointError::NotSafetensors { path, what: what.to_owned() },
            None => CheckpointError::Invalid { path, reason: error.to_string() },
        },
    }
}

pub(super) fn of_weight(weight: &str, error: CheckpointError) -> CheckpointError {
    CheckpointError::Weight { weight: weight.to_owned(), source: Box::new(error) }
}
