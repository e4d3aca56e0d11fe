//! The borrower of memory: on whose behalf a surface lends it.
//!
//! Law: a borrower only gives names, for messages; what it may touch is its context's business.

use std::fmt;

use super::bound::BoundCall;
use crate::layout::Region;

/// A call or a part of a custom optimizer, as a surface names it in its errors.
pub trait Borrower: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What of it begins where `region` does, by name.
    fn name_at(&self, region: Region) -> String;
}

impl Borrower for BoundCall {
    fn name(&self) -> &str {
        &self.call.name
    }

    fn name_at(&self, region: Region) -> String {
        self.operand_at(region)
    }
}
