//! Rows up to counts by one kernel, and the check of counts. The laws are those of `kernels/dispatch.cu`.
//!
//! Every launch runs several times, with other counts: whatever it left in its gate, or kept of the counts before,
//! would show.

use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{CountsOperand, GivenOperand, Mark, SlotShape};

use super::values::Random;
use crate::gpu::Gpu;

const EMPTY: u8 = 0xEE;

/// One slot of some bytes, more slots than a block looks at once, and slots of several pieces; wherever they
/// begin.
#[test]
fn of_every_slot_the_filled_rows_arrive_and_nothing_after_them_by_the_counts_of_each_run() {
    let Some(gpu) = Gpu::open("a dispatch without partners") else { return };
    let shapes = [(1, 1, 5, 3), (3, 300, 3, 48), (2, 257, 2, 13), (2, 2, 4, 20_000), (1, 3, 70, 1_001)];
    for ((takers, slots, capacity, row), shift) in
        shapes.into_iter().flat_map(|shape| [0, 1, 4].map(|shift| (shape, shift)))
    {
        let mut random = Random::new((slots + shift) as u64);
        let (places, slot) = (takers * slots, capacity * row);
        let source: Vec<u8> = (0..places * slot).map(|_| random.bits() as u8).collect();
        let from = gpu.buffer_at(&source, shift);
        let to = gpu.buffer_at(&vec![EMPTY; source.len()], shift);
        let (counts, taken) = (gpu.buffer(&vec![0_u32; places]), gpu.buffer(&vec![0_u32; places]));
        let progress = gpu.buffer(&[0_u32]);
        let given = |knows: bool| -> Vec<GivenOperand> {
            (0..takers)
                .map(|taker| GivenOperand {
                    from: from.address().plus(taker * slots * slot),
                    to: to.address().plus(taker * slots * slot),
                    counts: counts.address().plus(4 * taker * slots),
                    taken: match knows {
                        true => DeviceAddress::NULL,
                        false => taken.address().plus(4 * taker * slots),
                    },
                })
                .collect()
        };
        let mark = Some(Mark { word: progress.address(), number: 7 });
        for knows in [false, true] {
            let shape = SlotShape { slots, capacity, row };
            let launch = gpu.kernels.dispatch(&given(knows), shape, &[], mark).unwrap();
            for run in 0..4 {
                let count = |place: usize| match run {
                    0 => (7 * place + 3) % (capacity + 1),
                    1 => 0,
                    2 => capacity,
                    // More than there is room for.
                    _ => {
                        if place % 3 == 1 {
                            u32::MAX as usize
                        } else {
                            place % 2
                        }
                    }
                };
                let written: Vec<u32> = (0..places).map(|place| count(place) as u32).collect();
                counts.write(&written);
                taken.write(&vec![99; places]);
                to.write(&vec![EMPTY; source.len()]);
                progress.write(&[0]);
                gpu.run(Ok(launch.clone()));
                let moved: Vec<u32> = written.iter().map(|count| (*count).min(capacity as u32)).collect();
                let mut expected = vec![EMPTY; source.len()];
                for (place, rows) in moved.iter().enumerate() {
                    let bytes = place * slot..place * slot + *rows as usize * row;
                    expected[bytes.clone()].copy_from_slice(&source[bytes]);
                }
                let what = format!("{takers} times {slots} slots of {row} bytes, shift {shift}, run {run}");
                assert!(to.read() == expected, "{what}");
                assert_eq!(taken.read(), if knows { vec![99; places] } else { moved }, "{what}");
                assert_eq!(counts.read(), written, "{what}");
                assert_eq!(progress.read(), [7], "{what}");
            }
        }
    }
}

/// The first in order stands, and no fault that is there is replaced.
#[test]
fn a_count_above_its_capacity_is_a_fault_that_names_it_and_is_lowered() {
    let Some(gpu) = Gpu::open("checking counts") else { return };
    let none = [0, 0, 0];
    // Slots of the first operand that are above, of the second, the fault before; then the fault after, and what a
    // report names.
    let cases = [
        (&[][..], &[][..], 0, 0, none),
        (&[700, 299][..], &[][..], 0, 41, [5, 299, 10]),
        (&[][..], &[3][..], 0, 41, [6, 3, 12]),
        (&[0][..], &[0][..], 0, 41, [5, 0, 10]),
        (&[12][..], &[1][..], 9, 9, none),
    ];
    for (first, second, before, after, named) in cases {
        // At their capacities, elsewhere.
        let counts = |slots: usize, above: &[usize], capacity: u32, by: u32| -> Vec<u32> {
            (0..slots).map(|slot| if above.contains(&slot) { capacity + by } else { capacity }).collect()
        };
        let written = [counts(701, first, 8, 2), counts(4, second, 7, 5)];
        let on_device = [gpu.buffer(&written[0]), gpu.buffer(&written[1])];
        let (fault, overflow) = (gpu.buffer(&[before]), gpu.buffer(&none));
        let operand = |at: usize, capacity: usize| CountsOperand {
            counts: on_device[at].address(),
            slots: written[at].len(),
            capacity,
            number: 5 + at as u32,
        };
        let operands = [operand(0, 8), operand(1, 7)];
        gpu.run(gpu.kernels.count_check(&operands, (fault.address(), 41), overflow.address()));
        let what = format!("{first:?} and {second:?}, {before} before");
        assert_eq!((fault.read(), overflow.read()), (vec![after], named.to_vec()), "{what}");
        assert_eq!(on_device.map(|counts| counts.read()), [vec![8; 701], vec![7; 4]], "{what}");
    }
}

/// Any number may come of a rank whose call failed.
#[test]
fn counts_that_came_as_they_were_are_lowered_to_what_a_slot_has_room_for() {
    let Some(gpu) = Gpu::open("lowering counts") else { return };
    let counts: Vec<u32> =
        (0..701).map(|slot| if slot % 3 == 0 { u32::MAX - slot } else { slot % 10 }).collect();
    let on_device = gpu.buffer(&counts);
    gpu.run(gpu.kernels.lower_counts(on_device.address(), counts.len(), 8));
    let lowered: Vec<u32> = counts.iter().map(|count| (*count).min(8)).collect();
    assert_eq!(on_device.read(), lowered);
    assert!(gpu.kernels.lower_counts(DeviceAddress::NULL, 1, 8).is_err());
}
