//! Task times from CUPTI: activities of kernels, copies and memory sets, with begin and end.
//!
//! Laws:
//! - **CU-1** An activity belongs to at most one task: a replayed one by the node of the graph it ran as, an
//!   issued one by the call that enqueued it. What belongs to none (copies at a step boundary, work of others)
//!   is counted and left out.
//! - **CU-2** A task lasts from the begin of its first activity to the end of its last. A task without any,
//!   because it only waits or has nothing to do, is empty and lies where the task before it on its lane
//!   ended.
//! - **CU-3** One world of a process has CUPTI at a time. Another one gets an error, and times its tasks by
//!   events. Where a GPU was abandoned, CUPTI stays as it is to the end of the process.
//! - A lane waits for nothing because of a measurement: records are read when the step is over, once for all
//!   ranks of the process.
//!
//! An interval does not include how long a lane waits for a peer's word before or after its copies, because
//! that is no activity. Where a kernel waits for peers, it does.
//!
//! | file | idea |
//! |---|---|
//! | `place` | a task of a bound plan as one number |
//! | `record` | one activity record in our words |
//! | `attribution` | records to tasks, tasks to intervals; knows no device |
//! | `meeting` | where the ranks of a process wait until one of them has read what all of them did |
//! | `buffers` | memory that CUPTI fills, the only thing here that belongs to the whole process |
//! | `profiler` | the owner of CUPTI: subscribed, its activities on, and off again |
//! | `nodes` | which nodes of a capture a task added |
//! | `book` | what a bound plan needs of all this |

mod attribution;
mod book;
mod buffers;
mod meeting;
mod nodes;
mod place;
mod profiler;
mod record;

pub(crate) use book::Book;
pub(crate) use profiler::Profiler;
