//! What is measured: every way, at every size, in one table.

#![allow(unsafe_code, reason = "driver calls, on memory that the benchmark owns")]

mod barrier;
mod graph;
mod guard;
mod job;
mod machine;
mod one;
mod options;
mod per_rank;
mod table;
mod words;
mod work;

use cudarc::driver::result;

use job::Job;
use machine::Machine;
use options::{Asked, Options};
use per_rank::PerRank;
use table::Row;

/// How the work is handed to the driver.
#[derive(Clone, Copy)]
enum Way {
    One,
    PerRank(PerRank),
}

/// Under the names they have in the table.
const WAYS: [(&str, Way); 3] = [
    ("one graph", Way::One),
    ("per rank", Way::PerRank(PerRank { recorded: true })),
    ("anew", Way::PerRank(PerRank { recorded: false })),
];

pub(crate) fn run() {
    let options = match Options::of_the_command_line() {
        Ok(Asked::Measure(options)) => options,
        Ok(Asked::Help) => return print!("{}", options::HELP),
        Err(words) => {
            eprintln!("{words}; `--help` lists what can be set");
            std::process::exit(2);
        }
    };
    match Machine::open(&options) {
        Ok(machine) => {
            guard::stand();
            measure(&machine, &options);
        }
        Err(reason) => eprintln!("skipped: graphs over several GPUs are not measured: {reason}"),
    }
}

fn measure(machine: &Machine, options: &Options) {
    table::head(machine, options);
    for bytes in options.bytes.iter().copied() {
        let job = Job { machine, rounds: options.rounds, bytes };
        job.reset().unwrap();
        job.warm().unwrap();
        let alone = job.alone().unwrap();
        println!(
            "\n{bytes} bytes a pull: a kernel alone {:.1} us, a pull alone {:.1} us; \
             so a step takes about {:.0} us or more",
            alone.kernel_us,
            alone.pull_us,
            options.rounds as f64 * alone.kernel_us.max(alone.pull_us * (machine.ranks.len() - 1) as f64),
        );
        table::columns();
        for (name, way) in WAYS {
            job.reset().unwrap();
            let times = match way {
                Way::One => one::measure(&job, options),
                Way::PerRank(way) => Ok(per_rank::measure(&job, way, options)),
            };
            if times.is_ok() {
                job.check(options.replays());
            }
            table::print(&Row { name, rounds: options.rounds, times });
            guard::alive();
        }
    }
}

/// A driver's error, with the name of the call.
fn at(call: &'static str) -> impl FnOnce(result::DriverError) -> String {
    move |error| format!("{call}: {error:?}")
}
