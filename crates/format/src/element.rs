//! The Rust type of an element.
//!
//! Law: every [`ElementType`] has exactly one Rust type here, of its size and alignment. Memory that was
//! declared to hold one element type is lent and copied as that type, or as bytes where a function says
//! bytes. The trait is sealed, so that a type of one size cannot pass for another of that size. A user's
//! own type, such as `#[repr(transparent)] struct Token(u32)`, is cast with `bytemuck::cast_slice`.

use bytemuck::Pod;
use half::bf16;

use super::shape::ElementType;

mod sealed {
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
}

/// A Rust type whose values are the elements of a buffer: `f32`, [`half::bf16`], `u8` or `u32`.
pub trait Element: Pod + sealed::Sealed {
    /// The element type that it is.
    const TYPE: ElementType;
}

impl Element for f32 {
    const TYPE: ElementType = ElementType::F32;
}

impl Element for bf16 {
    const TYPE: ElementType = ElementType::Bf16;
}

impl Element for u8 {
    const TYPE: ElementType = ElementType::U8;
}

impl Element for u32 {
    const TYPE: ElementType = ElementType::U32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_type_is_as_large_as_its_element_type_and_named_like_it() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T>(), T::TYPE.bytes());
            assert!(std::any::type_name::<T>().ends_with(&T::TYPE.to_string()), "{}", T::TYPE);
        }
        check::<f32>();
        check::<bf16>();
        check::<u8>();
        check::<u32>();
    }
}
