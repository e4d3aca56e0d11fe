//! A row in the list of features: what a feature is called, and how it is found in a sample.

use warpweft_plan::plan::StepPlan;

use super::Sample;

/// Does a sample, or the plan of its step, have it?
pub(super) type Has = Box<dyn Fn(&Sample, &StepPlan) -> bool>;

/// A name, and what it names.
pub(super) type Feature = (String, Has);
