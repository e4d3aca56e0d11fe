//! One activity record of CUPTI.
//!
//! Law: a record is read field by field, so that a library whose records grew at their end is read as well.
//! Its first field says what it is; other libraries' numbers are never taken for variants of ours.

use std::ffi::c_void;

use cudarc::cupti::sys;

use super::place::Place;

/// What a buffer of CUPTI reports, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Something that ran on a device.
    Activity(Activity),
    /// A call of the driver that was made for a task.
    Call {
        /// The call, as its activities name it.
        correlation: u32,
        /// The task.
        place: Place,
    },
}

/// Something that ran on a device, in nanoseconds of CUPTI's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Activity {
    /// The node of a graph that it ran as; 0 if it was issued.
    pub(super) node: u64,
    /// The call that enqueued it, or launched its graph.
    pub(super) correlation: u32,
    /// When it began; 0 where CUPTI does not know.
    pub(super) begin: u64,
    /// When it had ended; 0 if it has not.
    pub(super) end: u64,
}

/// The fields of an activity, whatever the type of its record.
macro_rules! activity {
    ($record:expr, $type:ty) => {{
        let record = $record.cast::<$type>();
        // SAFETY: the caller passes a whole record of this kind, whose first fields these are in every
        // version of the library.
        unsafe {
            Record::Activity(Activity {
                node: (&raw const (*record).graphNodeId).read_unaligned(),
                correlation: (&raw const (*record).correlationId).read_unaligned(),
                begin: (&raw const (*record).start).read_unaligned(),
                end: (&raw const (*record).end).read_unaligned(),
            })
        }
    }};
}

impl Record {
    /// Reads a record; `None` for one that does not matter here.
    ///
    /// # Safety
    /// `record` points to a whole record, as CUPTI writes them, of a library for CUDA 12 or later.
    pub(super) unsafe fn read(record: *const c_void) -> Option<Self> {
        use sys::CUpti_ActivityKind as Kind;
        const KERNEL: u32 = Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL as u32;
        const COPY: u32 = Kind::CUPTI_ACTIVITY_KIND_MEMCPY as u32;
        const PEER_COPY: u32 = Kind::CUPTI_ACTIVITY_KIND_MEMCPY2 as u32;
        const SET: u32 = Kind::CUPTI_ACTIVITY_KIND_MEMSET as u32;
        const CORRELATION: u32 = Kind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION as u32;
        // SAFETY: every record begins with its kind, a number of 32 bits.
        match unsafe { record.cast::<u32>().read_unaligned() } {
            KERNEL => Some(activity!(record, sys::CUpti_ActivityKernel9)),
            COPY => Some(activity!(record, sys::CUpti_ActivityMemcpy6)),
            PEER_COPY => Some(activity!(record, sys::CUpti_ActivityMemcpyPtoP4)),
            SET => Some(activity!(record, sys::CUpti_ActivityMemset4)),
            // SAFETY: as above.
            CORRELATION => unsafe { call(record.cast()) },
            _ => None,
        }
    }
}

/// The call of a task; `None` for ids that other code pushed.
///
/// # Safety
/// `record` points to a whole record of an external correlation.
unsafe fn call(record: *const sys::CUpti_ActivityExternalCorrelation) -> Option<Record> {
    // SAFETY: the caller passes a whole record; its kind of correlation is a number of 32 bits.
    let (whose, id, correlation) = unsafe {
        (
            (&raw const (*record).externalKind).cast::<u32>().read_unaligned(),
            (&raw const (*record).externalId).read_unaligned(),
            (&raw const (*record).correlationId).read_unaligned(),
        )
    };
    (whose == WHOSE as u32).then(|| Record::Call { correlation, place: Place::from_id(id) })
}

/// The kind under which ids of tasks are pushed.
pub(super) const WHOSE: sys::CUpti_ExternalCorrelationKind =
    sys::CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use sys::CUpti_ActivityKind as Kind;

    use super::*;
    use warpweft_base::id::TaskId;

    fn read<T>(record: &T) -> Option<Record> {
        // SAFETY: the tests pass whole records.
        unsafe { Record::read((&raw const *record).cast()) }
    }

    #[test]
    fn kernels_copies_and_sets_say_when_they_ran_and_as_which_node() {
        // SAFETY: all fields of these records are numbers and pointers.
        let mut kernel: sys::CUpti_ActivityKernel9 = unsafe { zeroed() };
        (kernel.kind, kernel.graphNodeId, kernel.correlationId) =
            (Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 1 << 40, 7);
        (kernel.start, kernel.end) = (u64::MAX - 2, u64::MAX - 1);
        let ran = |node, correlation, begin, end| {
            Some(Record::Activity(Activity { node, correlation, begin, end }))
        };
        assert_eq!(read(&kernel), ran(1 << 40, 7, u64::MAX - 2, u64::MAX - 1));
        // SAFETY: as above.
        let mut copy: sys::CUpti_ActivityMemcpy6 = unsafe { zeroed() };
        copy.kind = Kind::CUPTI_ACTIVITY_KIND_MEMCPY;
        (copy.graphNodeId, copy.correlationId, copy.start, copy.end) = (3, 8, 10, 20);
        assert_eq!(read(&copy), ran(3, 8, 10, 20));
        // SAFETY: as above.
        let mut peer: sys::CUpti_ActivityMemcpyPtoP4 = unsafe { zeroed() };
        peer.kind = Kind::CUPTI_ACTIVITY_KIND_MEMCPY2;
        (peer.graphNodeId, peer.correlationId, peer.start, peer.end) = (4, 9, 11, 21);
        assert_eq!(read(&peer), ran(4, 9, 11, 21));
        // SAFETY: as above.
        let mut set: sys::CUpti_ActivityMemset4 = unsafe { zeroed() };
        set.kind = Kind::CUPTI_ACTIVITY_KIND_MEMSET;
        (set.graphNodeId, set.correlationId, set.start, set.end) = (0, 10, 12, 22);
        assert_eq!(read(&set), ran(0, 10, 12, 22));
    }

    #[test]
    fn a_call_of_a_task_is_told_from_ids_that_others_pushed() {
        let place = Place { book: 3, task: TaskId::new(41) };
        let mut record = sys::CUpti_ActivityExternalCorrelation {
            kind: Kind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
            externalKind: WHOSE,
            externalId: place.id(),
            correlationId: 12,
            reserved: 0,
        };
        assert_eq!(read(&record), Some(Record::Call { correlation: 12, place }));
        record.externalKind = sys::CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;
        assert_eq!(read(&record), None);
    }

    #[test]
    fn records_of_other_kinds_and_of_kinds_to_come_are_passed_over() {
        assert_eq!(read(&[Kind::CUPTI_ACTIVITY_KIND_DRIVER as u32, 0]), None);
        assert_eq!(read(&[9_999_u32, 0]), None);
    }
}
