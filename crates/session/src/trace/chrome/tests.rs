//! Traces as they are written: sound JSON whatever names say, or an error.

use super::*;
use serde_json::{Value, json};
use std::io;

const TRACK: Track = Track { process: 1, thread: 9 };

fn written(write: impl FnOnce(&mut ChromeWriter<Vec<u8>>)) -> Value {
    let mut writer = ChromeWriter::start(Vec::new()).unwrap();
    write(&mut writer);
    let (bytes, _) = writer.finish(&json!({"notes": []})).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn an_empty_trace_is_sound_json() {
    assert_eq!(
        written(|_| ()),
        json!({"displayTimeUnit": "ms", "traceEvents": [], "otherData": {"notes": []}})
    );
}

#[test]
fn nanoseconds_survive_as_fractions_of_a_microsecond() {
    let trace = written(|w| {
        w.complete(&CompleteEvent {
            track: TRACK,
            interval: Interval::new(1_234_567_890_123_457, 1_234_567_890_123_459),
            name: "a",
            category: "b",
            arguments: &[],
        })
        .unwrap();
    });
    let event = &trace["traceEvents"][0];
    assert_eq!(
        *event,
        json!({"ph": "X", "pid": 1, "tid": 9, "ts": 1_234_567_890_123.457, "dur": 0.002,
               "name": "a", "cat": "b"})
    );
}

#[test]
fn any_name_is_escaped() {
    let name = "quote \" backslash \\ newline \n null \0 emoji 🧵 </script>";
    let trace = written(|w| {
        w.process(1, name, 0, &[]).unwrap();
        w.instant(TRACK, Nanoseconds::ZERO, name, name, &[(name, Argument::Text(name))]).unwrap();
    });
    assert_eq!(trace["traceEvents"][0]["args"]["name"], name);
    assert_eq!(trace["traceEvents"][2]["args"][name], name);
}

#[test]
fn a_flow_is_a_start_and_a_finish_bound_to_the_enclosing_slice() {
    let point = |at| FlowPoint {
        track: TRACK,
        at: Nanoseconds::new(at),
        id: 7,
        name: "fills",
        category: "arrow",
        arguments: &[],
    };
    let trace = written(|w| w.flow(&point(1000), &point(2000)).unwrap());
    let events = &trace["traceEvents"];
    assert_eq!((&events[0]["ph"], &events[0]["id"]), (&json!("s"), &json!(7)));
    assert_eq!((&events[1]["ph"], &events[1]["bp"]), (&json!("f"), &json!("e")));
}

#[test]
fn a_failing_writer_is_an_error_and_never_a_panic() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(ChromeWriter::start(Full), Err(TraceError::Write(_))));
    let mut late = ChromeWriter { out: Full, events: 0 };
    assert!(matches!(late.process(1, "rank 0", 0, &[]), Err(TraceError::Write(_))));
}
