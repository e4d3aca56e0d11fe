//! Pictures of timelines that were made up, and of what is left out of them.

use super::super::LaneKind;
use super::super::timeline::tests::{lane, slice};
use super::*;

/// The limit is there to end searches that grow with the square of the ranks: those take many minutes.
#[test]
fn a_hundred_thousand_ranks_are_written_and_summed_up_and_drawn_one_at_a_time() {
    const RANKS: u32 = 100_000;
    let timeline = Timeline {
        lanes: (0..RANKS).map(|rank| lane(rank, 0, "compute", LaneKind::Compute)).collect(),
        slices: (0..RANKS).map(|rank| slice([rank, 0, 1], ["a", "x"], [0, 5])).collect(),
        ..Timeline::default()
    };
    let begun = std::time::Instant::now();
    crate::trace::write_trace(&timeline, None, std::io::sink()).unwrap();
    let summary = crate::trace::Summary::of(&timeline);
    assert!(summary.lanes.len() == 100_000 && summary.lanes.iter().all(|lane| lane.slices == 1));
    let error = TimelinePicture::default().render(&timeline).unwrap_err();
    assert!(matches!(error, TraceError::Ranks { ranks: 100_000, most: MOST_RANKS }), "{error}");
    let one = TimelinePicture { rank: Some(RankId::new(77)), ..TimelinePicture::default() };
    assert!(one.render(&timeline).unwrap().contains(">rank 77<"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(100), "{:?}", begun.elapsed());
}

#[test]
fn labels_of_different_slices_stay_different_where_there_is_little_room() {
    let name = "compute blocks.12.fc1 forward";
    let at = |width| label(name, "compute", width);
    assert_eq!(at(500.0), name);
    assert_eq!(at(150.0), "blocks.12.fc1 forward");
    assert_eq!(at(90.0), "12.fc1 forward");
    assert_eq!(at(60.0), "12.fc1 fwd");
    assert_eq!(at(40.0), "12.…wd");
    assert_eq!(at(10.0), "");
    let narrow = ["blocks.0.attention.qkv", "blocks.0.attention.output", "blocks.1.attention.qkv", "head"]
        .map(|subject| label(&format!("dequantize {subject}"), "dequantize", 50.0));
    assert_eq!(label("adam bucket 2", "adam", 60.0), "bucket 2");
    assert_eq!(label("compute 0.mlp.backward", "compute", 55.0), "0.mlp.bwd");
    assert_eq!(narrow, ["0.at…qkv", "0.at…put", "1.at…qkv", "head"]);
}

#[test]
fn a_step_that_is_shown_in_part_says_so_and_what_the_whole_takes() {
    let mut timeline = timeline();
    let part = TimelinePicture { window: Some(Interval::new(0, 9_000_000)), ..TimelinePicture::default() };
    assert!(part.render(&timeline).unwrap().contains(">part of step 0 (10.00 ms)<"));
    timeline.programs.insert(0, "train".to_owned());
    assert!(part.render(&timeline).unwrap().contains(">part of train step 0 (10.00 ms)<"));
    assert!(TimelinePicture::default().render(&timeline).unwrap().contains(">train step 0, 10.00 ms<"));
}

fn timeline() -> Timeline {
    Timeline {
        lanes: vec![
            lane(0, 0, "compute", LaneKind::Compute),
            lane(0, 1, "communicator <0>", LaneKind::Communication),
        ],
        slices: vec![
            slice([0, 1, 1], ["gather w", "all_gather"], [0, 4_000_000]),
            slice([0, 0, 2], ["forward", "compute"], [3_000_000, 10_000_000]),
        ],
        ..Timeline::default()
    }
}

/// Left edges and widths of the rectangles of a colour, legend squares left out.
fn rects(svg: &str, colour: &str) -> Vec<(f64, f64)> {
    let number = |line: &str, name: &str| -> f64 {
        let rest = line.split(&format!(" {name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let lines = svg.lines().filter(|line| line.contains(&format!("fill=\"{colour}\"")));
    let places = lines.map(|line| (number(line, "x"), number(line, "width")));
    places.filter(|&(_, width)| width != 12.0).collect()
}

#[test]
fn the_shaded_width_is_the_exposed_share_of_the_step() {
    let svg = TimelinePicture::default().render(&timeline()).unwrap();
    let [(begin, width)] = rects(&svg, EXPOSED)[..] else {
        panic!("one exposed part: {svg}");
    };
    let forward = rects(&svg, &coloured(["compute"].into())["compute"])[0];
    let scale = (forward.0 + forward.1 + 0.5 - begin) / 10.0;
    assert!((width / scale - 3.0).abs() < 0.01, "{width} of {scale} a millisecond");
    assert!(svg.contains("30.0 % exposed") && svg.contains("&lt;0&gt;"), "{svg}");
}

/// TR-2: the other rank arrives 2 ms later, so of the 3 ms that the gather is in the open 1 ms is exposed.
#[test]
fn tr2_a_picture_of_one_rank_knows_when_the_others_arrived() {
    let mut both = timeline();
    both.lanes.push(lane(1, 1, "communicator of the other", LaneKind::Communication));
    both.slices.push(slice([1, 1, 1], ["gather w", "all_gather"], [2_000_000, 4_000_000]));
    for slice in both.slices.iter_mut().filter(|slice| slice.category == "all_gather") {
        slice.collective = Some(RankId::new(0));
    }
    let alone = TimelinePicture { rank: Some(RankId::new(0)), ..TimelinePicture::default() };
    let svg = alone.render(&both).unwrap();
    assert!(svg.contains("10.0 % exposed") && svg.contains("10.0 % of step time"), "{svg}");
    assert!(svg.contains("waiting for the last rank") && !svg.contains("of the other"), "{svg}");
    let window = Some(Interval::new(0, 9_000_000));
    let part = TimelinePicture { window, ..alone }.render(&both).unwrap();
    assert!(part.contains("10.0 % of the whole step's time"), "{part}");
}

#[test]
fn of_one_step_the_axis_counts_from_its_begin() {
    let mut late = timeline();
    for slice in &mut late.slices {
        (slice.begin, slice.end) =
            [slice.begin, slice.end].map(|at| at.saturating_add(Nanoseconds::new(5_000_000_000))).into();
    }
    let svg = TimelinePicture::default().render(&late).unwrap();
    assert!(svg.contains("time since the step began, ms") && !svg.contains(">5000"), "{svg}");
    late.slices[0].step = 1;
    let svg = TimelinePicture::default().render(&late).unwrap();
    assert!(svg.contains("time since the origin, ms") && svg.contains(">5000"), "{svg}");
}

#[test]
fn only_what_lies_in_the_window_is_drawn() {
    let picture =
        TimelinePicture { window: Some(Interval::new(5_000_000, 6_000_000)), ..TimelinePicture::default() };
    let svg = picture.render(&timeline()).unwrap();
    assert!(rects(&svg, EXPOSED).is_empty());
    assert!(!svg.contains("gather w") && svg.contains("forward"));
}

#[test]
fn a_long_run_makes_no_larger_picture_than_its_pixels_hold() {
    let mut long = timeline();
    long.slices = (0..50_000)
        .map(|n| slice([0, n % 2, n], ["x", ["a", "b", "c"][n as usize % 3]], [n.into(), u64::from(n) + 1]))
        .collect();
    let svg = TimelinePicture::default().render(&long).unwrap();
    assert!(svg.len() < 1_000_000, "{} bytes", svg.len());
}

#[test]
fn a_timeline_of_nothing_is_a_picture_and_an_unsound_one_an_error() {
    let empty = TimelinePicture::default().render(&Timeline::default()).unwrap();
    assert!(empty.starts_with("<svg") && empty.ends_with("</svg>\n"));
    let mut invalid = timeline();
    invalid.lanes.clear();
    assert!(TimelinePicture::default().render(&invalid).is_err());
}
