//! One product of fixed shape: D = op(A) · op(B), with the algorithm that always computes it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::rc::Rc;

use cudarc::cublaslt::{result, sys};

use super::blas::{Blas, SCALE_ALIGNMENT};
use super::factor::{Element, Factor, ProductSpec, Scale};
use super::lent::{Lent, LentMut};
use super::scalars::Scalars;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use crate::surface::CudaHandles;

/// What operands must be aligned to: that of every region of an arena.
pub(super) const ALIGNMENT: u64 = 256;

/// A factor at its place, with its scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scaled<'a> {
    pub(crate) values: Lent<'a>,
    pub(crate) scale: Option<Lent<'a>>,
    /// One f32 to which the scales are relative ([`Scale::Lines16`]).
    pub(crate) amax: Option<Lent<'a>>,
}

/// What is added to a product, laid out as its result is, and by what both are multiplied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighted<'a> {
    pub(crate) product: f32,
    pub(crate) addend: Option<(f32, Lent<'a>)>,
}

impl<'a> Weighted<'a> {
    /// The product as it is, plus `addend` as it is.
    pub(crate) fn plain(addend: Option<Lent<'a>>) -> Self {
        Self { product: 1.0, addend: addend.map(|addend| (1.0, addend)) }
    }
}

/// A product and how it is computed.
#[derive(Debug)]
pub(crate) struct Product {
    spec: ProductSpec,
    description: Description,
    a: Layout,
    b: Layout,
    d: Layout,
    /// Where alpha follows from the factors.
    scalars: Option<Scalars>,
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
    blas: Rc<Blas>,
}

impl Product {
    /// Asks cuBLASLt once for the algorithm that it considers fastest.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] where cuBLASLt has none; [`CudaFailure::Call`].
    pub(crate) fn new(blas: &Rc<Blas>, spec: ProductSpec) -> Result<Self, CudaFailure> {
        blas.make_current()?;
        refuse_old_library(&spec)?;
        let description = Description::new()?;
        // A factor that lies along the contraction is A transposed, but B as it is: matrices are column by
        // column.
        description.transpose(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, spec.a.contiguous)?;
        description.transpose(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, !spec.b.contiguous)?;
        description.scale_mode(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, spec.a.scale)?;
        description.scale_mode(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, spec.b.scale)?;
        let scalars = if spec.a.scale == Scale::Lines16 { Some(Scalars::new(blas)?) } else { None };
        if scalars.is_some() {
            let mode = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, mode)?;
        }
        // Any scale will do to choose an algorithm.
        for (attribute, scale) in [(A_SCALE, spec.a.scale), (B_SCALE, spec.b.scale)] {
            if scale != Scale::None {
                description.pointer(attribute, blas.workspace().address())?;
            }
        }
        let layout = |factor: &Factor, outer: usize| match factor.contiguous {
            true => Layout::new(factor.element, spec.inner, outer, factor.pitch),
            false => Layout::new(factor.element, outer, spec.inner, factor.pitch),
        };
        let (a, b) = (layout(&spec.a, spec.rows)?, layout(&spec.b, spec.cols)?);
        let d = Layout::new(spec.d, spec.rows, spec.cols, spec.pitch)?;
        let (algorithm, workspace_bytes) = choose(blas, &spec, &description, [&a, &b, &d])?;
        Ok(Self { spec, description, a, b, d, scalars, algorithm, workspace_bytes, blas: Rc::clone(blas) })
    }

    /// Enqueues D = A · B, plus `addend`, which is laid out as D is. Allocates nothing and waits for nothing;
    /// while the stream is being captured, so is the product.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a stream of another GPU and an operand that is too short or misaligned.
    pub(crate) fn enqueue(
        &mut self,
        handles: &CudaHandles,
        a: Scaled<'_>,
        b: Scaled<'_>,
        addend: Option<Lent<'_>>,
        d: LentMut<'_>,
    ) -> Result<(), CudaFailure> {
        self.enqueue_weighted(handles, a, b, Weighted::plain(addend), d)
    }

    /// Like [`Product::enqueue`], with product and addend each multiplied by a number. Products of tensors whose block
    /// scales are relative to their amaxes are not multiplied by another.
    ///
    /// # Errors
    /// As [`Product::enqueue`].
    pub(crate) fn enqueue_weighted(
        &mut self,
        handles: &CudaHandles,
        a: Scaled<'_>,
        b: Scaled<'_>,
        weighted: Weighted<'_>,
        d: LentMut<'_>,
    ) -> Result<(), CudaFailure> {
        let spec = self.spec;
        let (beta, addend) = weighted.addend.unzip();
        self.blas.check(handles)?;
        check("the first factor", spec.factor_bytes(&spec.a, spec.rows), ALIGNMENT, a.values)?;
        check("the second factor", spec.factor_bytes(&spec.b, spec.cols), ALIGNMENT, b.values)?;
        let result = Lent::new(d.address(), d.bytes());
        check("the result", spec.result_bytes(), ALIGNMENT, result)?;
        check("the addend", spec.result_bytes(), ALIGNMENT, addend.unwrap_or(result))?;
        for (attribute, factor, outer, scale) in
            [(A_SCALE, spec.a, spec.rows, a.scale), (B_SCALE, spec.b, spec.cols, b.scale)]
        {
            if factor.scale == Scale::None {
                continue;
            }
            let alignment = if factor.scale == Scale::Whole { 4 } else { SCALE_ALIGNMENT };
            let scale =
                scale.ok_or_else(|| CudaFailure::Refused("a factor came without its scales".into()))?;
            check("the scales of a factor", factor.scale.bytes(outer, spec.inner), alignment, scale)?;
            let at = self.blas.aligned(handles, attribute == B_SCALE, scale.address())?;
            handles.driver(|| self.description.pointer(attribute, at))?;
        }
        let host = [weighted.product, beta.unwrap_or(0.0)];
        let [alpha, beta] = match &mut self.scalars {
            Some(_) if host[0] != 1.0 || beta.is_some_and(|beta| beta != 1.0) => {
                let what = "a product of NVFP4 takes its factor from amaxes, and none besides";
                return Err(CudaFailure::Refused(what.into()));
            }
            None => [&raw const host[0], &raw const host[1]],
            Some(scalars) => scalars
                .enqueue(handles, [a.amax, b.amax], addend.is_some())?
                .map(|address| address.number() as *const f32),
        };
        let c = addend.unwrap_or(result);
        let pointer = |address: DeviceAddress| address.number() as *mut c_void;
        let workspace = self.blas.workspace().address();
        // SAFETY: handle, description and layouts live as long as `self`. Every operand was checked above
        // against what the layouts touch; the workspace is this lane's and as large as the algorithm requested
        // . Alpha and beta are where the pointer mode says: on the host, read before the call returns, or
        // words of this product on the device, written before on the same stream.
        let multiply = || unsafe {
            result::matmul(
                self.blas.handle(),
                self.description.0,
                alpha.cast(),
                beta.cast(),
                pointer(a.values.address()),
                self.a.0,
                pointer(b.values.address()),
                self.b.0,
                pointer(c.address()),
                self.d.0,
                pointer(d.address()),
                self.d.0,
                &raw const self.algorithm,
                pointer(workspace),
                self.workspace_bytes,
                handles.stream().cast(),
            )
        };
        handles.driver(multiply).map_err(CudaFailure::products("cublasLtMatmul"))
    }
}

/// The last cuBLASLt that may choose the algorithm of FP8 with one scale for MXFP8 of the same shape: it keeps
/// what it chose without the scales (source: TransformerEngine's cublaslt_gemm.cu, which works around it).
const MIXES_UP_SCALES: usize = 120_803;

fn refuse_old_library(spec: &ProductSpec) -> Result<(), CudaFailure> {
    // SAFETY: the library was opened with the device, and the call takes nothing.
    let version = unsafe { sys::cublasLtGetVersion() };
    if spec.a.scale != Scale::Lines32 || version > MIXES_UP_SCALES {
        return Ok(());
    }
    Err(CudaFailure::Refused(format!(
        "cuBLASLt {version} may take a product of MXFP8 for one of FP8 with one scale; use one newer than \
         {MIXES_UP_SCALES} (12.8.3), or compute in bf16"
    )))
}

/// Refuses a range that is shorter than what is touched, or begins where the algorithm does not expect it.
fn check(what: &str, needed: usize, alignment: u64, lent: Lent<'_>) -> Result<(), CudaFailure> {
    if lent.bytes() < needed {
        return Err(CudaFailure::Refused(format!(
            "{what} of a product has {} bytes, and {needed} are needed",
            lent.bytes()
        )));
    }
    if lent.address().number().is_multiple_of(alignment) {
        return Ok(());
    }
    Err(CudaFailure::Refused(format!(
        "{what} of a product at {} does not begin at a multiple of {alignment} bytes",
        lent.address()
    )))
}

use sys::cublasLtMatmulDescAttributes_t as Attribute;
const A_SCALE: Attribute = Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
const B_SCALE: Attribute = Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;

/// Values of `cublasOperation_t`; the bindings of cuBLAS, which have these names, are otherwise not needed.
const CUBLAS_OP_N: u32 = 0;
const CUBLAS_OP_T: u32 = 1;

/// How a product is computed, except for shapes.
#[derive(Debug)]
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new() -> Result<Self, CudaFailure> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        result::create_matmul_desc(compute, Element::F32.cuda())
            .map(Self)
            .map_err(CudaFailure::products("cublasLtMatmulDescCreate"))
    }

    fn transpose(&self, attribute: Attribute, yes: bool) -> Result<(), CudaFailure> {
        self.set(attribute, if yes { CUBLAS_OP_T } else { CUBLAS_OP_N })
    }

    fn scale_mode(&self, attribute: Attribute, scale: Scale) -> Result<(), CudaFailure> {
        use sys::cublasLtMatmulMatrixScale_t as Mode;
        match scale {
            // cuBLASLt assumes one scale unless set otherwise, and so where it knows no other.
            Scale::None | Scale::Whole => Ok(()),
            Scale::Lines128 => self.set(attribute, Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F),
            Scale::Tiles128 => self.set(attribute, Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F),
            Scale::Lines32 => self.set(attribute, Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0),
            Scale::Lines16 => self.set(attribute, Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3),
        }
    }

    fn pointer(&self, attribute: Attribute, address: DeviceAddress) -> Result<(), CudaFailure> {
        self.set(attribute, address.number())
    }

    fn set<T: Copy>(&self, attribute: Attribute, value: T) -> Result<(), CudaFailure> {
        // SAFETY: the description lives; `value` is of the attribute's type and is copied before the call returns.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        }
        .map_err(CudaFailure::products("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made once in `new`, destroyed once here.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The shape of one matrix in memory.
#[derive(Debug)]
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(element: Element, rows: usize, cols: usize, pitch: usize) -> Result<Self, CudaFailure> {
        let pitch = i64::try_from(pitch)
            .map_err(|_| CudaFailure::Refused(format!("a matrix of {pitch} elements a line is too large")))?;
        result::create_matrix_layout(element.cuda(), rows as u64, cols as u64, pitch)
            .map(Self)
            .map_err(CudaFailure::products("cublasLtMatrixLayoutCreate"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made once in `new`, destroyed once here.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The preferences under which an algorithm is looked for.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made once in `choose`, destroyed once here.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// The algorithm that cuBLASLt considers fastest, and its workspace.
fn choose(
    blas: &Blas,
    spec: &ProductSpec,
    description: &Description,
    [a, b, d]: [&Layout; 3],
) -> Result<(sys::cublasLtMatmulAlgo_t, usize), CudaFailure> {
    let preference = result::create_matmul_pref()
        .map(Preference)
        .map_err(CudaFailure::products("cublasLtMatmulPreferenceCreate"))?;
    let bytes = blas.workspace().bytes();
    let limit = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    // SAFETY: the preference lives; the value is a size, as the attribute wants, and is copied.
    unsafe {
        result::set_matmul_pref_attribute(preference.0, limit, (&raw const bytes).cast(), size_of::<usize>())
    }
    .map_err(CudaFailure::products("cublasLtMatmulPreferenceSetAttribute"))?;
    if spec.d == Element::Bf16 {
        // Sums that are split are added as they are summed, in f32, and never as the result is written.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let schemes = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        // SAFETY: as above; the value is a mask of 32 bits.
        unsafe {
            result::set_matmul_pref_attribute(
                preference.0,
                schemes,
                (&raw const scheme).cast(),
                size_of::<u32>(),
            )
        }
        .map_err(CudaFailure::products("cublasLtMatmulPreferenceSetAttribute"))?;
    }
    let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    let mut count = 0;
    // SAFETY: all objects live; there is room for the one result that is requested.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            blas.handle(),
            description.0,
            a.0,
            b.0,
            d.0,
            d.0,
            preference.0,
            1,
            found.as_mut_ptr(),
            &raw mut count,
        )
    };
    let nothing = || {
        CudaFailure::Refused(format!(
            "cuBLASLt has no product of {spec} on a GPU of compute capability {} ({status:?}); update cuBLAS, change the shape, or compute in bf16",
            blas.capability()
        ))
    };
    if count < 1 || status.result().is_err() {
        return Err(nothing());
    }
    // SAFETY: cuBLASLt wrote one result; before, it was zeros, which are a value of every field.
    let found = unsafe { found.assume_init() };
    if found.state.result().is_err() || found.workspaceSize > bytes {
        return Err(nothing());
    }
    Ok((found.algo, found.workspaceSize))
}
