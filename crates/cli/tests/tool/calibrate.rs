//! Calibration in a closed loop (CL-2): a simulated cluster is measured, and its numbers come back. No clock
//! is read.

use std::sync::atomic::AtomicBool;

use warpweft_cli::{CalibrateDevice, CalibrateOptions, Calibration, MeasureError, calibrate_machine};
use warpweft_plan::cluster::{Cluster, Contention};
use warpweft_session::config::{ConfigError, Declared};

/// A cluster file; `jitter` is the mean delay.
fn file(contention: [f64; 5], jitter: f64) -> String {
    file_with(contention, jitter, 3.2)
}

fn file_with(contention: [f64; 5], jitter: f64, kernel_us: f64) -> String {
    let [of_compute, of_collective, of_both, beside_quantize, of_quantize] = contention;
    format!(
        "name = \"told\"\ngpus_per_node = 8\nalgorithm = \"direct\"\n\
         [gpu]\nmemory_bytes = 80_000_000_000\nhbm_bytes_per_s = 1.7e12\nkernel_us = {kernel_us}\nlaunch_us = 4.5\nreplay_us = 37\n\
         [gpu.flops_per_s]\nf32 = 3e13\nbf16 = 2.5e14\nfp8 = 6e14\nfp4 = 9e14\n\
         [inside]\nlatency_us = 14\nbytes_per_s = 8e10\n\
         [between]\nlatency_us = 9\nbytes_per_s = 1.5e10\n\
         [contention]\ncompute_beside_collective = {of_compute}\ncollective_beside_compute = {of_collective}\n\
         collective_beside_collective = {of_both}\ncompute_beside_quantize = {beside_quantize}\n\
         quantize_beside_compute = {of_quantize}\n\
         [jitter]\nseed = 3\nmean = {jitter}\n"
    )
}

/// What is given, and what calibration makes of it.
fn again(text: &str, change: impl FnOnce(&mut CalibrateOptions)) -> (Cluster, Calibration) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("told.toml");
    std::fs::write(&path, text).unwrap();
    let told = Cluster::load(&path).unwrap();
    let device = CalibrateDevice::Simulated(path.display().to_string());
    let mut options = CalibrateOptions::new(device, 4);
    change(&mut options);
    let found = calibrate_machine(&options, &AtomicBool::new(false), &mut |_, _, _| {}).unwrap();
    (told, found)
}

fn factors(contention: &Contention) -> [f64; 5] {
    let Contention {
        compute_beside_collective,
        collective_beside_compute,
        collective_beside_collective,
        compute_beside_quantize,
        quantize_beside_compute,
    } = *contention;
    [
        compute_beside_collective,
        collective_beside_compute,
        collective_beside_collective,
        compute_beside_quantize,
        quantize_beside_compute,
    ]
}

/// Are speeds, latencies and factors those that were given, within `share`?
fn assert_told(told: &Cluster, found: &Calibration, share: f64) {
    let of = |cluster: &Cluster| {
        let (gpu, flops) = (&cluster.gpu, cluster.gpu.flops_per_s);
        let numbers = [
            ("hbm", gpu.hbm_bytes_per_s),
            ("kernel", gpu.kernel_us),
            ("launch", gpu.launch_us),
            ("replay", gpu.replay_us),
            ("f32", flops.f32),
            ("bf16", flops.bf16),
            ("fp8", flops.fp8),
            ("fp4", flops.fp4),
            ("latency", cluster.inside.latency_us),
            ("bytes per second", cluster.inside.bytes_per_s),
        ];
        let names = ["c/l", "l/c", "l/l", "c/q", "q/c"];
        numbers.into_iter().chain(names.into_iter().zip(factors(&cluster.contention))).collect::<Vec<_>>()
    };
    for ((name, expected), (_, found_value)) in of(told).into_iter().zip(of(&found.cluster)) {
        assert!(
            (found_value / expected - 1.0).abs() <= share,
            "{name}: {found_value} is not {expected}\n{found}\n{}",
            found.file
        );
    }
}

/// CL-1, CL-2.
#[test]
fn a_simulated_cluster_gives_back_the_numbers_of_its_file() {
    for contention in [[1.0; 5], [1.1, 1.4, 2.0, 1.3, 1.6], [1.25, 1.05, 1.5, 1.8, 1.2]] {
        let (told, found) = again(&file(contention, 0.0), |_| {});
        assert_told(&told, &found, 0.02);
        assert!(found.cluster.jitter.mean < 1e-6, "{}", found.file);
    }
}

/// CL-1. Of a machine whose kernels take nothing beside their work that is said, and no number of it is another.
#[test]
fn kernels_that_take_no_time_are_not_seen() {
    let (told, found) = again(&file_with([1.0; 5], 0.0, 0.0), |_| {});
    assert_eq!(found.cluster.gpu.kernel_us, 0.0);
    assert!(found.file.contains("kernel_us = 0.0000  # not seen"), "{}", found.file);
    assert!((found.cluster.gpu.flops_per_s.bf16 / told.gpu.flops_per_s.bf16 - 1.0).abs() < 0.02);
}

/// CL-4. The held-out step has other depths, communicators and formats than what numbers were read from.
#[test]
fn the_step_that_was_held_out_is_predicted() {
    let (_, found) = again(&file([1.1, 1.4, 2.0, 1.3, 1.6], 0.0), |_| {});
    assert!(found.check.step.error().abs() < 0.01, "{found}");
    assert!(found.check.step.measured > 1e6);
    let counted: usize = found.check.ops.iter().map(|(_, compared)| compared.count).sum();
    assert!(counted > 50, "every task of the step is in the table\n{found}");
}

#[test]
fn delays_are_told_from_speed() {
    let (told, found) = again(&file([1.0; 5], 0.05), |options| options.repeats = 24);
    let mean = found.cluster.jitter.mean;
    assert!((mean / 0.05 - 1.0).abs() < 0.2, "{mean} is not 0.05");
    let (speed, expected) = (found.cluster.gpu.hbm_bytes_per_s, told.gpu.hbm_bytes_per_s);
    assert!((speed / expected - 1.0).abs() < 0.03, "{speed} is not {expected}");
    assert!(found.check.step.error().abs() < 0.05, "{found}");
}

/// CL-3.
#[test]
fn every_number_says_where_it_comes_from_and_the_file_is_read_back() {
    let (told, found) = again(&file([1.0; 5], 0.0), |options| {
        options.between = Some("h100x8-ib".to_owned());
        options.flops = vec![(warpweft_plan::model::Math::Fp4, 1.5e15)];
        options.name = "of \"ours\"".to_owned();
    });
    for line in found.file.lines().filter(|line| line.contains('=') && !line.starts_with('#')) {
        assert!(line.contains("  # ") || line.starts_with("name"), "{line}");
    }
    assert!(found.file.contains("not measured: that of `h100x8-ib`"), "{}", found.file);
    assert_eq!(found.cluster.gpu.flops_per_s.fp4, 1.5e15);
    assert!(found.file.contains("as declared by --flops"), "{}", found.file);
    assert_eq!(found.cluster.name, "of \"ours\"");
    assert_ne!(found.cluster.between, told.between);
    assert_eq!(Cluster::from_toml(&found.file, "again").unwrap(), found.cluster);
}

/// What a trainer's own products reach says nothing of those that the machine is measured with.
#[test]
fn a_declared_speed_is_in_the_file_and_in_no_measurement() {
    let text = file([1.1, 1.4, 2.0, 1.3, 1.6], 0.0);
    let (_, plain) = again(&text, |_| {});
    let (_, declared) =
        again(&text, |options| options.flops = vec![(warpweft_plan::model::Math::Bf16, 2e12)]);
    assert_eq!(declared.cluster.gpu.flops_per_s.bf16, 2e12);
    assert_eq!(declared.cluster.contention, plain.cluster.contention);
    assert_eq!(declared.check, plain.check);
    assert_eq!(declared.warnings, plain.warnings);
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_runs() {
    let refused = |device: CalibrateDevice, ranks: u32| {
        let options = CalibrateOptions::new(device, ranks);
        let never = &mut |_: usize, _: usize, what: &str| panic!("{what} was measured");
        calibrate_machine(&options, &AtomicBool::new(false), never).unwrap_err()
    };
    let alone = refused(CalibrateDevice::Cpu, 1);
    assert!(matches!(alone, MeasureError::Ranks { ranks: 1 }), "{alone}");
    let unknown = refused(CalibrateDevice::Simulated("h300".to_owned()), 2);
    assert!(matches!(unknown, MeasureError::Config(ConfigError::NoCluster { .. })), "{unknown}");
    let small = refused(CalibrateDevice::Simulated("h200x4".to_owned()), 5);
    assert!(small.to_string().contains("`h200x4` has 4 GPUs, not 5; lower --ranks"), "{small}");
}

#[test]
fn whoever_stops_it_gets_no_file() {
    let options = CalibrateOptions::new(CalibrateDevice::Simulated("h200x4".to_owned()), 4);
    let stopped = calibrate_machine(&options, &AtomicBool::new(true), &mut |_, _, _| {}).unwrap_err();
    assert!(matches!(stopped, MeasureError::Interrupted(_)), "{stopped}");
}

/// The same programs on the CPU backend. How long anything takes there is not this test's matter.
#[test]
fn the_cpu_backend_runs_every_program() {
    let mut options = CalibrateOptions::new(CalibrateDevice::Cpu, 2);
    (options.repeats, options.largest) = (3, Some(512 << 10));
    let mut seen = Vec::new();
    match calibrate_machine(&options, &AtomicBool::new(false), &mut |done, all, _| seen.push((done, all))) {
        Ok(found) => {
            assert!(found.cluster.inside.bytes_per_s > 0.0 && found.check.step.measured > 0.0, "{found}");
            assert!(seen.iter().all(|(done, all)| done < all), "{seen:?}");
            assert_eq!(seen.len(), seen[0].1, "as many programs as were announced");
        }
        // A machine that is busy with other tests may give times that no line goes through; then that is said.
        Err(MeasureError::Fit { source, .. }) => assert!(source.to_string().contains("--")),
        Err(other) => panic!("{other}"),
    }
}
