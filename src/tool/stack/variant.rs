//! What is varied between sessions, and its names.

use std::fmt;

use super::StackOptions;
use crate::config::{Capture, Config, Prefetch, TraceOutput, Transport};
use crate::format::Format;

/// Formats of the stack's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackFormat {
    /// bf16, multiplied as it was gathered.
    Bf16,
    /// FP8 in blocks of 128×128, multiplied as FP8 where the GPU can.
    Fp8Block,
    /// NVFP4 in tiles of 16×16 on the wire, dequantized to bf16 and multiplied so.
    Nvfp4,
}

impl StackFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8Block, Self::Nvfp4];

    /// Its name in names of variants.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8Block => "fp8_block",
            Self::Nvfp4 => "nvfp4",
        }
    }

    pub(super) const fn format(self) -> Format {
        match self {
            Self::Bf16 => Format::Bf16,
            Self::Fp8Block => Format::FP8_BLOCK128_POW2,
            Self::Nvfp4 => Format::NVFP4_2D,
        }
    }
}

/// When gathers start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// So many weights ahead of their use; 0 is on demand.
    Depth(u32),
    /// As the policy `auto` chooses, which counts with a cluster.
    Auto,
}

impl fmt::Display for Ahead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Depth(depth) => write!(formatter, "depth{depth}"),
            Self::Auto => formatter.write_str("auto"),
        }
    }
}

/// How a step is put on its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Task by task.
    Eager,
    /// By replaying a recording of the whole step.
    Graph,
}

impl Mode {
    /// Its name in names of variants.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Graph => "graph",
        }
    }
}

/// What becomes of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// They are reduced and added to the main grads.
    Gradients,
    /// And the optimizer rewrites the weights, at a learning rate of zero, and quantizes them anew.
    Training,
}

impl Ending {
    /// Its name in names of variants, and of its program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gradients => "gradients",
            Self::Training => "training",
        }
    }
}

/// One session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) format: StackFormat,
    pub(super) ahead: Ahead,
    pub(super) mode: Mode,
    pub(super) transport: Transport,
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Auto => "auto",
            Transport::Peer => "peer",
            Transport::Nccl => "nccl",
        };
        write!(formatter, "{}/{}/{}/{transport}", self.format.name(), self.ahead, self.mode.name())
    }
}

impl Variant {
    pub(super) fn name(&self, ending: Ending) -> String {
        format!("{self}/{}", ending.name())
    }

    /// Reductions may be as far behind as gathers are ahead: a stack this deep into the future has the memory.
    fn behind(&self, base: &Config) -> u32 {
        match self.ahead {
            Ahead::Depth(depth) => depth.max(base.reduce_behind),
            Ahead::Auto => base.reduce_behind,
        }
    }

    /// The configuration of its session.
    pub(super) fn config(&self, base: &Config, options: &StackOptions) -> Config {
        let cluster = base.prefetch.cluster.clone();
        let prefetch = match self.ahead {
            Ahead::Depth(depth) => Prefetch::depth(depth),
            Ahead::Auto => Prefetch::auto(),
        };
        let trace = options.traces.as_ref().map(|folder| {
            let file = format!("{}.json", self.to_string().replace('/', "-"));
            let path = folder.join(file).to_string_lossy().into_owned();
            // Counted over the whole session, whose first program's steps come first.
            let first_step = u32::try_from(options.warm).unwrap_or(u32::MAX);
            TraceOutput { enabled: true, path, first_step, steps: 2, device: base.trace.device }
        });
        let mut config = Config {
            reduce_behind: self.behind(base),
            prefetch: Prefetch { cluster, ..prefetch },
            transport: self.transport,
            reduce_dtype: options.reduce_dtype,
            capture: match self.mode {
                Mode::Eager => Capture::Off,
                Mode::Graph => Capture::Step,
            },
            trace: trace.unwrap_or_default(),
            ..base.clone()
        };
        // So that every step computes the same.
        config.optimizer.lr = 0.0;
        config.optimizer.weight_decay = 0.0;
        config
    }
}

/// A session and the endings that are measured in it.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) variant: Variant,
    pub(super) endings: Vec<Ending>,
}

/// What the options ask for and the patterns let through.
pub(super) fn select(options: &StackOptions) -> Vec<Selected> {
    let mut selected = Vec::new();
    for format in &options.formats {
        for transport in &options.transports {
            for mode in &options.modes {
                for ahead in &options.ahead {
                    let variant =
                        Variant { format: *format, ahead: *ahead, mode: *mode, transport: *transport };
                    let wanted = |ending: &&Ending| options.wants(&variant.name(**ending));
                    let endings: Vec<Ending> = options.endings.iter().filter(wanted).copied().collect();
                    if !endings.is_empty() {
                        selected.push(Selected { variant, endings });
                    }
                }
            }
        }
    }
    selected
}
