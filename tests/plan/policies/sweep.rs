//! `auto` against an exhaustive sweep, one weight ahead and one layer ahead, under one cost model.

use std::sync::Arc;

use rayon::prelude::*;
use warpweft_base::id::CallId;
use warpweft_plan::layout::Weights;
use warpweft_plan::model::{Mesh, Placement, StepProgram};
use warpweft_plan::plan::{Costs, Forecast, Policy, ResidentLayout, StepPlan};
use warpweft_plan::policy::ByteSize;
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, Prefetch};
use warpweft_session::session::{costs_of, plan_program_on};

use super::shapes::{SHAPES, TOKENS, config, program};

const CLUSTER: &str = "h100x8-ib";

struct Bench {
    program: StepProgram,
    ranks: u32,
    costs: Costs,
}

struct Point {
    policy: String,
    bytes: usize,
    live: usize,
    forecast: Forecast,
}

impl Bench {
    fn point(&self, prefetch: Prefetch, budget: Option<usize>) -> Option<Point> {
        let mut config = Config { prefetch: prefetch.clone(), ..config() };
        config.memory.budget = budget.map(|bytes| ByteSize::new(bytes as u64));
        let cluster = preset(CLUSTER).unwrap().unwrap();
        let plan: Arc<StepPlan> = plan_program_on(&self.program, &config, &cluster, self.ranks).ok()?;
        Some(self.of(&plan, prefetch.to_string()))
    }

    fn of(&self, plan: &StepPlan, policy: String) -> Point {
        let forecast = plan.forecast(&self.costs);
        Point { policy, bytes: plan.bounds.transient_bytes, live: plan.bounds.live_bytes, forecast }
    }

    /// All gathers of a block's calls at the beginning of the block before, as FSDP2 issues them.
    fn layer_ahead(&self) -> Point {
        let program = &self.program;
        let block = |call: usize| {
            let name = &program.calls()[call].name;
            let words: Vec<&str> = name.split('.').collect();
            let direction = words[words.len() - 1].to_owned();
            let block = words[..words.len() - 1].iter().take(if words.contains(&"replay") { 4 } else { 2 });
            (block.copied().collect::<Vec<_>>().join("."), direction)
        };
        let calls = program.calls().len();
        let mut begins = vec![0; calls];
        for call in 1..calls {
            begins[call] = if block(call) == block(call - 1) { begins[call - 1] } else { call };
        }
        let ahead = |call: usize| begins[call].checked_sub(1).map_or(0, |before| begins[before]);
        let mut issues = Vec::new();
        for (number, call) in program.calls().iter().enumerate() {
            for usage in &call.uses {
                if program.model().weight(usage.weight).unwrap().placement == Placement::Sharded {
                    issues.push(CallId::at(ahead(number)));
                }
            }
        }
        let weights = Weights::new(program.model().weights(), Mesh::new(self.ranks).unwrap());
        let resident = ResidentLayout::new(&weights, &[program]).unwrap();
        let policy = Policy::from(&config());
        let plan = StepPlan::by_hand(program, &weights, &resident, &policy, &issues).unwrap();
        self.of(&plan, "one layer ahead".into())
    }

    fn sweep(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for depth in (0..=6).chain([8, 12, 16, 24, 32]) {
            points.extend(self.point(Prefetch::depth(depth), None));
        }
        let smallest = 16 << 20;
        let mut bytes = smallest as f64;
        while bytes < 64e9 {
            points.extend(self.point(Prefetch::bytes(ByteSize::new(bytes as u64)), None));
            bytes *= 2.0;
        }
        points
    }
}

fn ms(point: &Point) -> f64 {
    point.forecast.step as f64 / 1e6
}

fn gib(point: &Point) -> f64 {
    point.bytes as f64 / f64::from(1u32 << 30)
}

/// Checks one row and returns it.
fn compare(name: &str, tokens: usize, bench: &Bench) -> String {
    let sweep = bench.sweep();
    let best = sweep.iter().min_by_key(|point| (point.forecast.step, point.bytes)).unwrap();
    let auto = bench.point(Prefetch::auto(), Some(best.bytes)).unwrap();
    let (one, layer) = (bench.point(Prefetch::depth(1), None).unwrap(), bench.layer_ahead());
    let beside = bench.point(Prefetch::auto(), Some(layer.bytes)).unwrap();
    let points = || sweep.iter().chain([&auto, &one, &layer, &beside]);
    let bound = points().map(|point| point.forecast.step_bound).min().unwrap();
    let row = format!(
        "| {name} | {tokens} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.3} |",
        bound as f64 / 1e6,
        ms(best),
        ms(&auto),
        gib(&auto),
        ms(&one),
        gib(&one),
        ms(&layer),
        gib(&layer),
        ms(&beside),
        auto.bytes as f64 / auto.live as f64,
    );
    let (found, swept) = (auto.forecast.step as f64, best.forecast.step as f64);
    assert!(auto.bytes <= best.bytes, "{name}, {tokens}: more memory than {}", best.policy);
    assert!(found <= 1.02 * swept, "{name}, {tokens}: slower than {}, {}: {row}", best.policy, gib(best));
    assert!(
        beside.bytes <= layer.bytes && beside.forecast.step as f64 <= 1.02 * layer.forecast.step as f64,
        "{name}, {tokens}"
    );
    let reachable = 1.05 * bound as f64;
    assert!(
        swept > reachable || found <= reachable,
        "{name}, {tokens}: {} comes closer to the bound",
        best.policy
    );
    for point in points() {
        // A gather on demand may begin while gradients that are about to be reduced still lie there. What is chosen
        // for its time in as much memory as it likes holds more than lives.
        let most = match &point.policy {
            policy if *policy == Prefetch::depth(0).to_string() => 1.15,
            policy if *policy == Prefetch::auto().to_string() => 1.1,
            _ => 1.05,
        };
        let over = point.bytes as f64 / point.live as f64;
        assert!(over <= most, "{name}, {tokens}, {}: the arena is {over} times the live bytes", point.policy);
        assert!(point.forecast.step >= point.forecast.step_bound, "{name}, {tokens}, {}", point.policy);
    }
    row
}

/// PL-6 as well: sharing bytes costs at most 5 % over the bound that no layout can beat.
#[test]
fn auto_is_as_good_as_the_best_of_an_exhaustive_sweep_at_no_more_memory() {
    println!("times in ms, transient memory in GiB");
    println!(
        "| decoder | tokens | bound | best of the sweep | auto | GiB | one weight ahead | GiB | one layer ahead | GiB | auto in as much | arena / live |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    // Of the first shape all numbers of tokens; of the others by turns the last, where products hide most, and the
    // first.
    let all = |number: usize, at: usize| number == 0 || at == [0, TOKENS.len() - 1][number % 2];
    let of = |(number, shape)| {
        TOKENS
            .into_iter()
            .enumerate()
            .filter(move |(at, _)| all(number, *at))
            .map(move |(_, tokens)| (shape, tokens))
    };
    let points: Vec<_> = SHAPES.iter().enumerate().flat_map(of).collect();
    // The shapes of most slots take longest, and come one by one to whoever is free.
    let rows: Vec<String> = points
        .into_par_iter()
        .with_max_len(1)
        .map(|((name, ranks, sizes), tokens)| {
            let program = program(name, sizes, tokens);
            let costs = costs_of(&config(), &preset(CLUSTER).unwrap().unwrap(), *ranks).unwrap();
            compare(name, tokens, &Bench { program, ranks: *ranks, costs })
        })
        .collect();
    rows.iter().for_each(|row| println!("{row}"));
}
