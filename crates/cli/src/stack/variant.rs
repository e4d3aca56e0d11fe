//! Variants of the sharded stack, and their names.

use std::fmt;
use std::path::PathBuf;

use warpweft_backend::Transport;
use warpweft_format::Format;
use warpweft_session::config::{Capture, Config, Prefetch, TraceOutput, Tune};

use super::StackOptions;

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

/// The unit of a call and of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// One weight; its gradient is one exchange.
    Weight,
    /// The four weights of a block, as one group: one gather, one exchange of their gradients, one sum.
    Block,
}

impl Unit {
    /// Its name in names of variants.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Block => "block",
        }
    }
}

/// The start of gathers: a prefetch depth, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// So many units ahead of their use; 0 is on demand.
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

/// The mode of a step: issued or captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Task by task.
    Eager,
    /// By replaying a capture of the whole step.
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

/// The ending of a step: the use of its gradients.
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
    pub(super) unit: Unit,
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
        let Self { format, unit, ahead, mode, .. } = self;
        write!(formatter, "{}/{}/{ahead}/{}/{transport}", format.name(), unit.name(), mode.name())
    }
}

impl Variant {
    pub(super) fn name(&self, ending: Ending) -> String {
        format!("{self}/{}", ending.name())
    }

    /// Unless asked otherwise, reductions may come as many calls later as gathers come ahead: a stack this deep into
    /// the future has the memory. They are at least as late as the configuration says.
    fn reduce_delay(&self, base: &Config, options: &StackOptions) -> u32 {
        match (options.reduce_delay, self.ahead) {
            (Some(reduce_delay), _) => reduce_delay,
            (None, Ahead::Depth(depth)) => depth.max(base.reduce_delay),
            (None, Ahead::Auto) => base.reduce_delay,
        }
    }

    /// The file of an ending's trace, if traces are requested.
    pub(super) fn trace_file(&self, options: &StackOptions, ending: Ending) -> Option<PathBuf> {
        let folder = options.traces.as_ref()?;
        Some(folder.join(format!("{}.json", self.name(ending).replace('/', "-"))))
    }

    /// The trace of a session of this ending alone, if one is requested: of the first two steps that count,
    /// or the one there is.
    pub(super) fn trace(&self, base: &Config, options: &StackOptions, ending: Ending) -> Option<TraceOutput> {
        let path = self.trace_file(options, ending)?.to_string_lossy().into_owned();
        let first_step = u32::try_from(options.warm).unwrap_or(u32::MAX);
        let steps = if options.steps > 1 { 2 } else { 1 };
        Some(TraceOutput { enabled: true, path, first_step, steps, device: base.trace.device })
    }

    /// The configuration of its session, without a trace. Rules for weights are left out: they are for a
    /// trainer's own, and a variant's formats are its own. Tuning is left out too: a variant is measured as it
    /// is named, and not while others are tried.
    pub(super) fn config(&self, base: &Config, options: &StackOptions) -> Config {
        let prefetch = match self.ahead {
            Ahead::Depth(depth) => Prefetch::depth(depth),
            Ahead::Auto => Prefetch::auto(),
        };
        let mut config = Config {
            reduce_delay: self.reduce_delay(base, options),
            prefetch: base.prefetch.started_as(prefetch),
            transport: self.transport,
            reduce_dtype: options.reduce_dtype,
            capture: match self.mode {
                Mode::Eager => Capture::Off,
                Mode::Graph => Capture::Step,
            },
            tune: Tune::default(),
            trace: TraceOutput::default(),
            weights: Vec::new(),
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

/// What the options request and the patterns let through. What a list names twice is measured once.
pub(super) fn select(options: &StackOptions) -> Vec<Selected> {
    let mut selected = Vec::new();
    let endings = once(&options.endings);
    for format in once(&options.formats) {
        for transport in once(&options.transports) {
            for mode in once(&options.modes) {
                for unit in once(&options.units) {
                    for ahead in once(&options.ahead) {
                        let variant = Variant { format, unit, ahead, mode, transport };
                        let wanted = |ending: &&Ending| options.wants(&variant.name(**ending));
                        let endings: Vec<Ending> = endings.iter().filter(wanted).copied().collect();
                        if !endings.is_empty() {
                            selected.push(Selected { variant, endings });
                        }
                    }
                }
            }
        }
    }
    selected
}

/// The values of a list, each where it comes first.
fn once<T: Copy + PartialEq>(list: &[T]) -> Vec<T> {
    let first = |(place, value): &(usize, &T)| !list[..*place].contains(value);
    list.iter().enumerate().filter(first).map(|(_, value)| *value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StackShape;
    use warpweft_format::ElementType;
    use warpweft_plan::policy::{ByteSize, ReduceDtype};

    fn options() -> StackOptions {
        StackOptions {
            shape: StackShape { hidden: 128, ffn: 256, layers: 2, tokens: 32 },
            gpus: 4,
            steps: 1,
            warm: 3,
            formats: vec![StackFormat::Bf16],
            units: vec![Unit::Weight, Unit::Block],
            ahead: vec![Ahead::Depth(1), Ahead::Depth(7), Ahead::Auto],
            modes: vec![Mode::Eager, Mode::Graph],
            transports: vec![Transport::Peer],
            endings: vec![Ending::Gradients, Ending::Training],
            only: Vec::new(),
            gradients: ElementType::Bf16,
            reduce_dtype: ReduceDtype::Bf16,
            reduce_delay: None,
            config: None,
            cluster: None,
            traces: None,
        }
    }

    #[test]
    fn every_variant_has_a_name_of_its_own_which_says_its_unit() {
        let selected = select(&options());
        let mut names: Vec<String> =
            selected.iter().flat_map(|of| of.endings.iter().map(|ending| of.variant.name(*ending))).collect();
        assert_eq!(names.len(), 2 * 3 * 2 * 2);
        assert!(names.contains(&"bf16/block/depth1/graph/peer/gradients".to_owned()));
        assert!(names.contains(&"bf16/weight/auto/eager/peer/training".to_owned()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 2 * 3 * 2 * 2);
    }

    #[test]
    fn what_is_named_twice_is_measured_once_and_in_the_order_of_the_list() {
        let again = StackOptions {
            formats: vec![StackFormat::Nvfp4, StackFormat::Bf16, StackFormat::Nvfp4],
            units: vec![Unit::Block; 2],
            ahead: vec![Ahead::Depth(2), Ahead::Auto, Ahead::Depth(2), Ahead::Auto],
            modes: vec![Mode::Graph; 3],
            transports: vec![Transport::Peer, Transport::Nccl, Transport::Peer],
            endings: vec![Ending::Training, Ending::Gradients, Ending::Training],
            ..options()
        };
        let selected = select(&again);
        let names: Vec<String> = selected.iter().map(|of| of.variant.to_string()).collect();
        assert_eq!(names[..2], ["nvfp4/block/depth2/graph/peer", "nvfp4/block/auto/graph/peer"]);
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
        assert_eq!(names.len(), 2 * 2 * 2);
        assert!(selected.iter().all(|of| of.endings == [Ending::Training, Ending::Gradients]));
    }

    #[test]
    fn a_pattern_chooses_among_units() {
        let only = vec!["*/block/depth?/*/gradients".to_owned()];
        let selected = select(&StackOptions { only, ..options() });
        assert_eq!(selected.len(), 4);
        for Selected { variant, endings } in selected {
            assert_eq!((variant.unit, endings), (Unit::Block, vec![Ending::Gradients]));
        }
    }

    #[test]
    fn reductions_are_as_far_behind_as_gathers_are_ahead_unless_a_number_is_given() {
        let reduce_delay = |reduce_delay, options: &StackOptions| -> Vec<u32> {
            let base = Config { reduce_delay, ..Config::default() };
            let eager =
                StackOptions { modes: vec![Mode::Eager], units: vec![Unit::Block], ..options.clone() };
            let config = |of: &Selected| of.variant.config(&base, options).reduce_delay;
            select(&eager).iter().map(config).collect()
        };
        assert_eq!(reduce_delay(2, &options()), [2, 7, 2]);
        assert_eq!(reduce_delay(5, &options()), [5, 7, 5], "the configuration's is a floor");
        assert_eq!(reduce_delay(5, &StackOptions { reduce_delay: Some(2), ..options() }), [2, 2, 2]);
    }

    #[test]
    fn what_the_configuration_says_of_the_exchanging_kernel_holds_for_every_variant() {
        let kernel_exchange = Some(ByteSize::new(16 << 20));
        let base = Config { kernel_exchange, ..Config::default() };
        for Selected { variant, .. } in select(&options()) {
            assert_eq!(variant.config(&base, &options()).kernel_exchange, kernel_exchange, "{variant}");
        }
    }

    /// SK-1.
    #[test]
    fn no_session_tries_other_policies_than_its_own_whatever_the_configuration_says() {
        let base = Config { tune: Tune { steps: 8 }, ..Config::default() };
        for Selected { variant, .. } in select(&options()) {
            assert_eq!(variant.config(&base, &options()).tune, Tune::default(), "{variant}");
        }
    }

    #[test]
    fn every_ending_has_a_trace_of_its_own_of_steps_that_count() {
        let traces = Some(PathBuf::from("traces"));
        let of = |steps| {
            let options = StackOptions { traces: traces.clone(), steps, ..options() };
            let [first, ..] = &select(&options)[..] else { panic!("variants") };
            let trace = |ending: &Ending| first.variant.trace(&Config::default(), &options, *ending).unwrap();
            let traces: Vec<TraceOutput> = first.endings.iter().map(trace).collect();
            traces.into_iter().map(|trace| (trace.path, trace.first_step, trace.steps)).collect::<Vec<_>>()
        };
        for (steps, traced) in [(1, 1), (2, 2), (10, 2)] {
            let path = |ending| format!("traces/bf16-weight-depth1-eager-peer-{ending}.json");
            assert_eq!(of(steps), [(path("gradients"), 3, traced), (path("training"), 3, traced)]);
        }
        let of_none = |of: &Selected| of.variant.trace(&Config::default(), &options(), Ending::Training);
        assert!(select(&options()).iter().all(|of| of_none(of).is_none()));
    }

    #[test]
    fn chunks_and_the_machine_of_the_configuration_hold_for_every_variant() {
        let (chunk, cluster) = (Some(ByteSize::new(8 << 20)), "ours.toml".to_owned());
        let base = Config {
            prefetch: Prefetch { chunk, cluster: cluster.clone(), ..Prefetch::depth(3) },
            ..Config::default()
        };
        for Selected { variant, .. } in select(&options()) {
            let found = variant.config(&base, &options()).prefetch;
            assert_eq!((found.chunk, &found.cluster), (chunk, &cluster), "{variant}");
            let when = if variant.ahead == Ahead::Auto { Prefetch::auto() } else { Prefetch::depth(1) };
            assert_eq!(found.policy, when.policy, "{variant}");
        }
    }
}
