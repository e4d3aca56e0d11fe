//! Tensors of any rank and kind: what a block's closure takes and returns, and what of it is differentiated.
//!
//! Law: ranks and kinds are types in the user's closures and nowhere else. A tensor that a closure's type does not fit
//! is an error with both, before the closure runs.

use std::any::Any;

use burn::tensor::{Bool, DType, Device, Gradients, Int, Tensor, TensorData};

use crate::error::form as in_words;
use crate::values::Form;

/// A float tensor of any rank, which may be part of a graph.
pub trait AnyRank: Any + Send {
    fn form(&self) -> Form;

    /// A copy of its values.
    fn data(&self) -> Result<TensorData, String>;

    /// Its gradient, taken out of `all`.
    fn gradient(&self, all: &mut Gradients) -> Result<Option<TensorData>, String>;

    /// The gradients of `Σ self × upstream`, or of `Σ self` without one.
    fn backward(&self, upstream: Option<TensorData>) -> Gradients;

    /// Is it part of a graph?
    fn tracks(&self) -> bool;

    fn any(&self) -> &dyn Any;
}

impl<const D: usize> AnyRank for Tensor<D> {
    fn form(&self) -> Form {
        Form { dims: self.dims().to_vec(), dtype: self.dtype() }
    }

    fn data(&self) -> Result<TensorData, String> {
        self.try_to_data().map_err(|error| error.to_string())
    }

    fn gradient(&self, all: &mut Gradients) -> Result<Option<TensorData>, String> {
        let gradient = self.grad_remove(all).map(|gradient| gradient.try_into_data());
        gradient.transpose().map_err(|error| error.to_string())
    }

    fn backward(&self, upstream: Option<TensorData>) -> Gradients {
        let output = self.clone();
        match upstream {
            Some(upstream) => {
                let options = (&self.device(), self.dtype());
                (output * Tensor::from_data(upstream, options)).sum().backward()
            }
            None => output.sum().backward(),
        }
    }

    fn tracks(&self) -> bool {
        self.is_tracked()
    }

    fn any(&self) -> &dyn Any {
        self
    }
}

pub(crate) mod sealed {
    use super::{AnyRank, Device, TensorData};

    /// A tensor of one rank and kind.
    pub trait OneTensor: Sized + 'static {
        /// Its rank and kind.
        const WORDS: (&'static str, usize);

        fn fits(data: &TensorData) -> bool;

        /// The tensor; and itself once more if it is to have a gradient, which floats alone have.
        fn given(data: TensorData, place: Place<'_>) -> (Self, Leaf);

        fn try_data(self) -> Result<TensorData, String>;
    }

    /// Tensors beside each other.
    pub trait Tensors: Sized + 'static {
        fn all(self) -> Result<Vec<TensorData>, String>;

        /// The first ones of `data` as the types say; what of the first one is differentiated, if it `tracks`.
        fn of(data: Vec<TensorData>, place: Place<'_>) -> Result<(Self, Leaf), String>;
    }

    /// What comes out of a block.
    pub trait Floats: 'static {
        fn boxed(self) -> Box<dyn AnyRank>;
    }

    /// The device of a tensor, and whether it is to have a gradient.
    #[derive(Clone, Copy)]
    pub struct Place<'a> {
        pub(crate) device: &'a Device,
        pub(crate) tracks: bool,
    }

    /// What has a gradient.
    pub struct Leaf(pub(crate) Option<Box<dyn AnyRank>>);
}

use sealed::{Floats, Leaf, OneTensor, Place, Tensors};

/// A tensor of any rank, of floats, integers or booleans.
pub trait Value: OneTensor {}

/// The input of a block: a tensor, or the tensor and one or two that every block gets, such as a mask.
pub trait Inputs: Tensors {}

/// The output of a block: a tensor of floats.
pub trait Output: Floats {}

impl<T: OneTensor> Value for T {}
impl<T: Tensors> Inputs for T {}
impl<T: Floats> Output for T {}

impl<const D: usize> Floats for Tensor<D> {
    fn boxed(self) -> Box<dyn AnyRank> {
        Box::new(self)
    }
}

impl<const D: usize> OneTensor for Tensor<D> {
    const WORDS: (&'static str, usize) = ("floats", D);

    fn fits(data: &TensorData) -> bool {
        data.rank() == D && data.dtype().is_float()
    }

    fn given(data: TensorData, place: Place<'_>) -> (Self, Leaf) {
        let dtype = data.dtype();
        let tensor = Self::from_data(data, (place.device, dtype));
        let tensor = if place.tracks { tensor.require_grad() } else { tensor };
        let leaf = place.tracks.then(|| tensor.clone().boxed());
        (tensor, Leaf(leaf))
    }

    fn try_data(self) -> Result<TensorData, String> {
        self.try_into_data().map_err(|error| error.to_string())
    }
}

macro_rules! whole {
    ($kind:ty, $words:literal, $is:expr) => {
        impl<const D: usize> OneTensor for Tensor<D, $kind> {
            const WORDS: (&'static str, usize) = ($words, D);

            fn fits(data: &TensorData) -> bool {
                let is: fn(DType) -> bool = $is;
                data.rank() == D && is(data.dtype())
            }

            fn given(data: TensorData, place: Place<'_>) -> (Self, Leaf) {
                let dtype = data.dtype();
                (Self::from_data(data, (place.device, dtype)), Leaf(None))
            }

            fn try_data(self) -> Result<TensorData, String> {
                self.try_into_data().map_err(|error| error.to_string())
            }
        }
    };
}

whole!(Int, "integers", |dtype| dtype.is_int() || dtype.is_uint());
whole!(Bool, "booleans", |dtype| dtype.is_bool());

/// A tensor of the type that is asked for.
pub(crate) fn one<T: OneTensor>(
    data: Option<TensorData>,
    what: &str,
    place: Place<'_>,
) -> Result<(T, Leaf), String> {
    let (kind, rank) = T::WORDS;
    match data {
        Some(data) if T::fits(&data) => Ok(T::given(data, place)),
        Some(data) => {
            let given = in_words(&data.shape().to_vec(), data.dtype());
            Err(format!("its closure takes {what} of rank {rank} of {kind}, and is given {given}"))
        }
        None => Err(format!("its closure takes {what} of rank {rank} of {kind}, and the batch has none")),
    }
}

impl<T: OneTensor> Tensors for T {
    fn all(self) -> Result<Vec<TensorData>, String> {
        Ok(vec![self.try_data()?])
    }

    fn of(data: Vec<TensorData>, place: Place<'_>) -> Result<(Self, Leaf), String> {
        one(data.into_iter().next(), "an input", place)
    }
}

impl<T: OneTensor, A: OneTensor> Tensors for (T, A) {
    fn all(self) -> Result<Vec<TensorData>, String> {
        Ok(vec![self.0.try_data()?, self.1.try_data()?])
    }

    fn of(data: Vec<TensorData>, place: Place<'_>) -> Result<(Self, Leaf), String> {
        let mut data = data.into_iter();
        let (first, leaf) = one(data.next(), "an input", place)?;
        let (second, _) = one(data.next(), "a second tensor", Place { tracks: false, ..place })?;
        Ok(((first, second), leaf))
    }
}

impl<T: OneTensor, A: OneTensor, B: OneTensor> Tensors for (T, A, B) {
    fn all(self) -> Result<Vec<TensorData>, String> {
        Ok(vec![self.0.try_data()?, self.1.try_data()?, self.2.try_data()?])
    }

    fn of(data: Vec<TensorData>, place: Place<'_>) -> Result<(Self, Leaf), String> {
        let (mut data, beside) = (data.into_iter(), Place { tracks: false, ..place });
        let (first, leaf) = one(data.next(), "an input", place)?;
        let (second, _) = one(data.next(), "a second tensor", beside)?;
        let (third, _) = one(data.next(), "a third tensor", beside)?;
        Ok(((first, second, third), leaf))
    }
}
