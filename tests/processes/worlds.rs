//! Worlds that begin and end without a fault.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::Test;
use crate::crew::{Crew, PATIENCE};

pub(crate) const ALL: &[Test] = &[
    ("ranks_of_several_processes_agree_whatever_their_number", ranks_agree),
    ("a_process_may_come_much_later_than_another", late_comers),
    ("strangers_at_the_port_are_ignored", strangers),
    ("strangers_who_drip_bytes_and_come_again_keep_nobody_out", dripping),
    ("silent_strangers_who_come_again_keep_nobody_out", crate::strangers::silent),
    ("who_closes_first_takes_nothing_from_the_others", quit_early),
    ("a_world_of_one_process_needs_no_secret_and_no_port", alone),
];

/// RV-1.
fn ranks_agree() {
    for ranks in [&[1, 1][..], &[2, 2], &[1, 3, 2]] {
        let crew = Crew::new("agree", ranks.len() as u32);
        let mut members = crew.start_all(ranks);
        let mut begin = 0;
        let all: u32 = ranks.iter().sum();
        for (member, ranks) in members.iter_mut().zip(ranks) {
            let place = member.hear("joined as");
            assert_eq!(place, format!("{begin}..{} of {all}", begin + ranks));
            begin += ranks;
        }
        for member in &mut members {
            member.hear("done");
            assert!(member.ends().success());
        }
    }
}

fn late_comers() {
    let crew = Crew::new("agree", 2);
    let mut member = crew.start(1, 1);
    member.hear("begins");
    // Long enough for many tries; how many does not matter.
    std::thread::sleep(Duration::from_millis(700));
    let mut host = crew.start(0, 1);
    host.hear("done");
    member.hear("done");
}

/// As a launcher does when it looks for a free port. No haste afterwards, because nobody listens any more.
pub(crate) fn late_after_another() {
    let crew = Crew::new("agree", 2);
    let other = TcpListener::bind(("127.0.0.1", crew.port.number())).unwrap();
    let mut member = crew.start(1, 1);
    let (stream, _) = other.accept().unwrap();
    drop((other, stream));
    // Longer than one waits who is hung up on by somebody who goes on listening.
    std::thread::sleep(Duration::from_secs(8));
    let mut host = crew.start(0, 1);
    host.hear("done");
    member.hear("done");
}

/// RV-4.
fn strangers() {
    let crew = Crew::new("agree", 2);
    let mut host = crew.start(0, 1);
    let until = Instant::now() + PATIENCE;
    let knock = || loop {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", crew.port.number())) {
            return stream;
        }
        assert!(Instant::now() < until, "nobody listens");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut silent: Vec<_> = (0..20).map(|_| knock()).collect();
    for stranger in &mut silent[..10] {
        let _ = stranger.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    }
    for length in [1, 8, 30, 200, 70_000] {
        let mut bytes = b"warpweft".to_vec();
        bytes.resize(length, 1);
        let _ = knock().write_all(&bytes);
    }
    let mut member = crew.start(1, 1);
    host.hear("done");
    member.hear("done");
}

/// RV-2, RV-4: more of them than there are handshakes at a time, and none is ever silent for long.
fn dripping() {
    let crew = Crew::new("agree", 3);
    let mut host = crew.start(0, 1);
    let place = SocketAddr::from(([127, 0, 0, 1], crew.port.number()));
    let until = Instant::now() + PATIENCE;
    let knock = move || TcpStream::connect_timeout(&place, Duration::from_secs(1));
    let mut strangers: Vec<TcpStream> = Vec::new();
    while strangers.len() < 150 {
        assert!(Instant::now() < until, "{} came", strangers.len());
        match knock() {
            Ok(stranger) => strangers.push(stranger),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let (tell, dripped) = mpsc::channel();
    let dripping = std::thread::spawn(move || {
        for byte in b"warpweft".iter().chain(std::iter::repeat(&0)) {
            for stranger in &mut strangers {
                if stranger.write_all(&[*byte]).is_err() {
                    match knock() {
                        Ok(again) => *stranger = again,
                        // When nobody listens any more, the world is whole.
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
                        Err(_) => {}
                    }
                }
            }
            // The first rounds are waited for.
            let _ = tell.send(());
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    dripped.iter().take(3).for_each(drop);
    let mut members = [crew.start(1, 1), crew.start(2, 1)];
    for member in &mut members {
        member.hear("done");
    }
    host.hear("done");
    dripping.join().unwrap();
}

/// RV-3.
fn quit_early() {
    let mut members = Crew::new("quit early", 3).start_all(&[1, 1, 1]);
    members[0].hear("done");
    assert!(members[0].ends().success());
    for member in &mut members[1..] {
        let error = member.fails();
        assert!(error.contains("process 0 (rank 0") && error.contains("has closed its session"), "{error}");
    }
}

fn alone() {
    let mut alone = Crew::new("agree", 1).start_with(0, 3, &[("WARPWEFT_SECRET", ""), ("MASTER_PORT", "1")]);
    assert_eq!(alone.hear("joined as"), "0..3 of 3");
    alone.hear("done");
}
