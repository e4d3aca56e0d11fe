//! The placement of ranks: on the CPU, or each on a GPU.
//!
//! Law: decided once, from the flags and what the machine shows, before anything starts. `auto` never fails for
//! want of a GPU, but says why it took the CPU; who names GPUs gets them or an error.

use clap::ValueEnum;

/// Ranks on the CPU unless `--ranks` says otherwise, and at most so many GPUs.
const USUAL_RANKS: u32 = 4;

/// So many ranks on the CPU at most: each has several threads, and takes some 70 MiB of this model.
const MOST_RANKS: u32 = 64;

/// `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceKind {
    /// GPUs where there are enough, else the CPU.
    Auto,
    /// Threads of this machine.
    Cpu,
    /// One GPU per rank.
    Cuda,
}

/// What the flags request.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// `--device`.
    pub(crate) device: DeviceKind,
    /// `--ranks`.
    pub(crate) ranks: Option<u32>,
    /// `--devices`.
    pub(crate) gpus: Option<Vec<u32>>,
    /// The number of this process among those of its host, if it is one of several.
    pub(crate) process: Option<u32>,
}

/// Where the ranks of this process run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// So many threads; and, where GPUs were looked for, why none is used.
    Cpu {
        /// How many ranks.
        ranks: u32,
        /// Why not on GPUs.
        instead: Option<String>,
    },
    /// Rank `i` on the i-th of these GPUs.
    Cuda {
        /// Numbers of GPUs.
        gpus: Vec<u32>,
    },
}

/// Flags that cannot be followed on this machine.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PlacementError {
    /// `--devices` beside `--device cpu`.
    #[error("--devices names GPUs, but --device says cpu; leave one of them out")]
    GpusOnCpu,
    /// GPUs cannot be used at all.
    #[error("{flag} cannot be followed: {reason}")]
    NoCuda {
        /// The flag that requests them.
        flag: &'static str,
        /// Why none can be used.
        reason: String,
    },
    /// Ranks of several processes on the CPU.
    #[error("this is one of several processes, whose ranks meet on GPUs only, but {0}; {1}")]
    ProcessesOnCpu(String, &'static str),
    /// More ranks on the CPU than train.
    #[error(
        "--ranks {ranks}: each rank on the CPU has threads and memory of its own, and at most {MOST_RANKS} train; lower it, or see the plan alone with --plan"
    )]
    TooManyRanks {
        /// Ranks requested.
        ranks: u32,
    },
    /// A GPU this machine has not.
    #[error(
        "GPU {requested} was requested, but this machine shows {found}; see nvidia-smi -L and CUDA_VISIBLE_DEVICES"
    )]
    NoGpu {
        /// The number requested.
        requested: u32,
        /// How many there are.
        found: u32,
    },
    /// Fewer GPUs than ranks.
    #[error(
        "{ranks} ranks need {ranks} GPUs, but this machine shows {found}; lower --ranks, or let ranks share GPUs, as in --devices 0,0"
    )]
    TooFew {
        /// Ranks requested.
        ranks: u32,
        /// GPUs there are.
        found: u32,
    },
}

impl Placement {
    /// How many ranks this process has.
    pub(crate) fn ranks(&self) -> u32 {
        match self {
            Self::Cpu { ranks, .. } => *ranks,
            Self::Cuda { gpus } => u32::try_from(gpus.len()).unwrap_or(u32::MAX),
        }
    }

    /// Refuses more ranks than can be started. A plan alone may have more.
    pub(crate) fn check(&self) -> Result<(), PlacementError> {
        match self {
            Self::Cpu { ranks, .. } if *ranks > MOST_RANKS => {
                Err(PlacementError::TooManyRanks { ranks: *ranks })
            }
            Self::Cpu { .. } | Self::Cuda { .. } => Ok(()),
        }
    }
}

/// Places the ranks. `look` counts the GPUs that can be used, or says why none can; it is called only if the
/// answer matters.
pub(crate) fn place(
    wish: &Wish,
    look: impl FnOnce() -> Result<u32, String>,
) -> Result<Placement, PlacementError> {
    let on_cpu = |instead: Option<String>| match wish.process {
        None => Ok(Placement::Cpu { ranks: wish.ranks.unwrap_or(USUAL_RANKS), instead }),
        Some(_) => Err(match instead {
            None => PlacementError::ProcessesOnCpu(
                "--device says cpu".to_owned(),
                "use --device cuda, or start one process",
            ),
            Some(reason) => {
                // What the reason advises is for one process.
                let fact = reason.split_once(';').map_or(reason.as_str(), |(fact, _)| fact).to_owned();
                PlacementError::ProcessesOnCpu(fact, "start one process to train on the CPU")
            }
        }),
    };
    let named = wish.gpus.is_some();
    match wish.device {
        DeviceKind::Cpu if named => Err(PlacementError::GpusOnCpu),
        DeviceKind::Cpu => on_cpu(None),
        DeviceKind::Cuda => on_gpus(wish, look()),
        DeviceKind::Auto if named => on_gpus(wish, look()),
        DeviceKind::Auto => match (look(), wish.ranks) {
            (Err(reason), _) => on_cpu(Some(reason)),
            (Ok(0), _) => on_cpu(Some("this machine shows no GPU".into())),
            (Ok(found), Some(ranks)) if ranks > found => {
                on_cpu(Some(format!("{ranks} ranks were requested, and this machine shows {found} GPUs")))
            }
            (found, _) => on_gpus(wish, found),
        },
    }
}

fn on_gpus(wish: &Wish, found: Result<u32, String>) -> Result<Placement, PlacementError> {
    let flag = if wish.device == DeviceKind::Cuda { "--device cuda" } else { "--devices" };
    let found = found.map_err(|reason| PlacementError::NoCuda { flag, reason })?;
    let gpus = match &wish.gpus {
        Some(gpus) => gpus.clone(),
        // Each process of a host has as many GPUs, one after the other.
        None if wish.process.is_some() => {
            let (process, ranks) = (wish.process.unwrap_or(0), wish.ranks.unwrap_or(1));
            (process * ranks..(process + 1) * ranks).collect()
        }
        None => {
            let ranks = wish.ranks.unwrap_or(found.clamp(1, USUAL_RANKS));
            if ranks > found {
                return Err(PlacementError::TooFew { ranks, found });
            }
            (0..ranks).collect()
        }
    };
    match gpus.iter().find(|gpu| **gpu >= found) {
        Some(&requested) => Err(PlacementError::NoGpu { requested, found }),
        None => Ok(Placement::Cuda { gpus }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(device: DeviceKind, ranks: Option<u32>, gpus: Option<&[u32]>) -> Wish {
        Wish { device, ranks, gpus: gpus.map(<[u32]>::to_vec), process: None }
    }

    fn cuda(gpus: &[u32]) -> Result<Placement, PlacementError> {
        Ok(Placement::Cuda { gpus: gpus.to_vec() })
    }

    #[test]
    fn auto_takes_gpus_where_there_are_enough_and_says_why_it_took_the_cpu() {
        let auto = |ranks, found| place(&wish(DeviceKind::Auto, ranks, None), || found);
        assert_eq!(auto(None, Ok(8)), cuda(&[0, 1, 2, 3]));
        assert_eq!(auto(None, Ok(2)), cuda(&[0, 1]));
        assert_eq!(auto(Some(3), Ok(4)), cuda(&[0, 1, 2]));
        for (ranks, found, expected, word) in [
            (None, Err("no libcuda".to_owned()), 4, "libcuda"),
            (Some(2), Ok(0), 2, "no GPU"),
            (Some(2), Ok(1), 2, "2 ranks"),
        ] {
            let Ok(Placement::Cpu { ranks, instead: Some(reason) }) = auto(ranks, found) else {
                panic!("the CPU, with a reason")
            };
            assert_eq!(ranks, expected);
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn who_names_gpus_gets_them_or_an_error() {
        let named = |device, gpus: &[u32], found| place(&wish(device, None, Some(gpus)), || found);
        assert_eq!(named(DeviceKind::Auto, &[3, 1], Ok(4)), cuda(&[3, 1]));
        assert_eq!(named(DeviceKind::Cuda, &[0, 0], Ok(1)), cuda(&[0, 0]), "ranks may share a GPU");
        assert_eq!(
            named(DeviceKind::Auto, &[0, 4], Ok(4)),
            Err(PlacementError::NoGpu { requested: 4, found: 4 })
        );
        assert_eq!(named(DeviceKind::Cpu, &[0], Ok(4)), Err(PlacementError::GpusOnCpu));
        let missing = || Err("no libcuda".to_owned());
        assert_eq!(
            named(DeviceKind::Auto, &[0], missing()),
            Err(PlacementError::NoCuda { flag: "--devices", reason: "no libcuda".into() })
        );
        let ranks = |ranks, found| place(&wish(DeviceKind::Cuda, ranks, None), || found);
        assert_eq!(ranks(Some(2), Ok(1)), Err(PlacementError::TooFew { ranks: 2, found: 1 }));
        assert_eq!(ranks(None, Ok(0)), Err(PlacementError::TooFew { ranks: 1, found: 0 }));
        let refused = PlacementError::NoCuda { flag: "--device cuda", reason: "no libcuda".into() };
        assert_eq!(ranks(None, missing()), Err(refused));
    }

    #[test]
    fn a_process_among_several_takes_the_gpus_after_those_of_the_ones_before_it() {
        let of = |process, ranks, gpus: Option<&[u32]>, found| {
            let process = Some(process);
            place(&Wish { process, ..wish(DeviceKind::Cuda, ranks, gpus) }, || found)
        };
        assert_eq!(of(3, None, None, Ok(4)), cuda(&[3]));
        assert_eq!(of(1, Some(2), None, Ok(4)), cuda(&[2, 3]));
        assert_eq!(of(1, None, Some(&[0, 2]), Ok(4)), cuda(&[0, 2]));
        assert_eq!(of(1, None, None, Ok(1)), Err(PlacementError::NoGpu { requested: 1, found: 1 }));
        for (device, word) in [(DeviceKind::Cpu, "says cpu"), (DeviceKind::Auto, "no GPU")] {
            let process = Some(0);
            let refused = place(&Wish { process, ..wish(device, None, None) }, || Ok(0)).unwrap_err();
            assert!(refused.to_string().contains(word), "{refused}");
        }
        let process = Some(0);
        let without = || Err("libcuda is missing; say --device cpu".to_owned());
        let refused = place(&Wish { process, ..wish(DeviceKind::Auto, None, None) }, without).unwrap_err();
        let said = refused.to_string();
        assert!(said.ends_with("libcuda is missing; start one process to train on the CPU"), "{said}");
    }

    #[test]
    fn more_ranks_than_train_on_the_cpu_are_refused_before_they_start() {
        let cpu = |ranks| Placement::Cpu { ranks, instead: None };
        assert_eq!(cpu(MOST_RANKS).check(), Ok(()));
        assert_eq!(cpu(65).check(), Err(PlacementError::TooManyRanks { ranks: 65 }));
        assert_eq!(cpu(65536).ranks(), 65536, "a plan alone may have them");
    }

    #[test]
    fn who_wants_the_cpu_is_not_kept_waiting_for_a_driver() {
        let placement =
            place(&wish(DeviceKind::Cpu, None, None), || panic!("nobody looks for GPUs")).unwrap();
        assert_eq!(placement, Placement::Cpu { ranks: 4, instead: None });
    }
}
