//! The kernel benchmark: its cases, the sizes they run on, and one row of times for each.

mod cases;
mod table;

use warpweft_format::Shape;

use crate::cuda_device::Device;
use cases::{CASES, Case};
use table::{Row, print};

/// Weights that one launch works on.
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) shapes: Vec<Shape>,
}

impl Size {
    pub(crate) fn elements(&self) -> usize {
        self.shapes.iter().map(|shape| shape.elements()).sum()
    }
}

fn one(name: &'static str, rows: usize, cols: usize) -> Size {
    Size { name, shapes: vec![Shape::new(rows, cols)] }
}

/// 16 layers of 12288×4096, 4096×4096, 16384×4096 and 4096×16384; of each the rows of one rank among `ranks`.
fn model(name: &'static str, ranks: usize) -> Size {
    let layer = [(12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)];
    let shapes = (0..16).flat_map(|_| layer.map(|(rows, cols)| Shape::new(rows / ranks, cols)));
    Size { name, shapes: shapes.collect() }
}

pub(crate) fn run(device: &Device) {
    let sizes = [
        one("4096x1024", 4096, 1024),
        one("4096x4096", 4096, 4096),
        one("16384x4096", 16384, 4096),
        model("64 weights", 1),
        model("quarter", 4),
    ];
    let filter = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let mut rows = Vec::new();
    for case in CASES.iter().filter(|case| {
        filter.as_ref().is_none_or(|parts| parts.split(',').any(|part| case.name.contains(part)))
    }) {
        let times: Vec<_> = sizes.iter().map(|size| measure(device, case, size)).collect();
        rows.push(Row { case, times });
    }
    print(&device.name, &sizes, &rows);
}

/// What a launch took on weights of a size, in microseconds.
pub(crate) struct Times {
    pub(crate) kernel: f64,
    /// The driver's copy of as many bytes, half of them read and half written.
    pub(crate) copy: f64,
    /// A kernel that reads and writes what this one must, and computes nothing.
    pub(crate) plain: f64,
    pub(crate) bytes: usize,
}

/// `None` when the memory does not suffice.
fn measure(device: &Device, case: &Case, size: &Size) -> Option<Times> {
    device.clear();
    let launches = (case.launches)(device, size)?;
    let [reads, writes] = case.moves.map(|bytes| (bytes * size.elements() as f64) as usize);
    let bytes = reads + writes;
    let runs = if bytes > 1 << 30 { 5 } else { 15 };
    Some(Times {
        kernel: device.time(&launches, runs),
        copy: device.time_of_copy(bytes, runs),
        plain: device.time_of_plain(reads, writes, runs),
        bytes,
    })
}
