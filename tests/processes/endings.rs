//! Worlds that end early, or never begin: within the deadline, and with the cause on every process (RV-2, RV-3).

use std::net::TcpListener;

use crate::crew::{BRIEF, Crew, Member, PATIENCE, SILENCE};
use crate::{Test, worlds};

/// Ends that come as soon as their cause does.
pub(crate) const AT_ONCE: &[Test] = &[
    ("a_killed_process_is_named_by_all_others", killed),
    ("a_killed_host_is_named_by_all_others", killed_host),
    ("a_rank_that_fails_tells_all_others_why", failed),
    ("a_process_that_came_twice_is_named_on_every_process", twice),
    ("of_two_processes_with_number_0_the_second_is_refused", two_hosts),
    ("another_world_size_is_named_on_every_process", contradiction),
    ("a_world_without_a_secret_is_refused", no_secret),
];

/// What only a wait brings about.
pub(crate) const AFTER_A_WAIT: &[Test] = &[
    ("the_host_may_come_after_another_program_left_its_port", worlds::late_after_another),
    ("a_stopped_process_is_named_by_all_others_within_the_deadline", stopped),
    ("a_stopped_host_is_named_by_all_others_within_the_deadline", stopped_host),
    ("a_rank_that_does_not_come_is_named_and_so_is_how_far_it_was", silent_rank),
    ("another_secret_is_named_on_every_process", wrong_secret),
    ("a_missing_process_is_named_on_every_process", missing),
    ("without_the_first_process_the_others_say_so", no_host),
    ("a_port_in_use_is_named_on_every_process", port_in_use),
    ("a_host_that_may_open_no_connection_says_so", no_files),
    ("a_process_that_dies_while_others_are_awaited_is_named", died_early),
];

/// Three processes that meet, the middle one with two ranks.
fn meeting(crew: &Crew) -> Vec<Member> {
    let mut members = crew.start_all(&[1, 2, 1]);
    members.iter_mut().for_each(|member| drop(member.hear("meeting")));
    members
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing: {error}");
    }
}

/// By its closed connection, and not by its silence: that has words of its own.
fn killed() {
    let mut members = meeting(&Crew::new("meet", 3));
    members[1].kill();
    for other in [0, 2] {
        says(&members[other].fails(), &["process 1 (rank 1 to rank 2", "killed or crashed"]);
    }
}

fn killed_host() {
    let mut members = meeting(&Crew::new("meet", 3));
    members[0].kill();
    for other in [1, 2] {
        says(&members[other].fails(), &["process 0 (rank 0", "killed or crashed"]);
    }
}

fn stopped() {
    let mut members = meeting(&Crew::brief("meet", 3));
    members[1].signal("STOP");
    for other in [0, 2] {
        says(
            &members[other].fails(),
            &["process 1 (rank 1 to rank 2", &format!("silent for {SILENCE:?}"), "stopped"],
        );
    }
    members[1].signal("CONT");
    // Who wakes up again finds out as well.
    members[1].fails();
}

fn stopped_host() {
    let mut members = meeting(&Crew::brief("meet", 3));
    members[0].signal("STOP");
    for other in [1, 2] {
        says(&members[other].fails(), &["process 0 (rank 0", &format!("silent for {SILENCE:?}")]);
    }
    members[0].signal("CONT");
    members[0].fails();
}

fn failed() {
    let mut members = Crew::new("fail", 3).start_all(&[1, 2, 1]);
    for member in &mut members {
        says(&member.fails(), &["rank 1, task 7: no such kernel"]);
    }
}

fn silent_rank() {
    let mut members = Crew::brief("silent rank", 3).start_all(&[1, 2, 1]);
    for member in &mut members {
        says(&member.hear("standing"), &["rank 1: last finished task 3"]);
        says(&member.fails(), &[&format!("rank 1 did not come within {BRIEF:?}")]);
    }
}

fn wrong_secret() {
    let crew = Crew::brief("meet", 3);
    // Its time runs from its own start, which is the first.
    let patient = Crew { deadline: PATIENCE, ..crew.clone() };
    let mut other = patient.start_with(2, 1, &[("WARPWEFT_SECRET", "the secret of another job")]);
    other.hear("begins");
    let mut members = crew.start_all(&[1, 1]);
    says(&other.fails(), &["holds another secret", "WARPWEFT_SECRET"]);
    for member in &mut members {
        let error = member.fails();
        says(
            &error,
            &[
                &format!("process 2 did not come within {BRIEF:?}"),
                "claims to be process 2 and holds another secret",
            ],
        );
    }
}

fn missing() {
    let mut members = Crew::brief("meet", 4).start_all(&[1, 1, 1]);
    for member in &mut members {
        says(&member.fails(), &[&format!("process 3 did not come within {BRIEF:?}")]);
    }
}

/// Nobody listens.
fn no_host() {
    let mut alone = Crew::brief("meet", 2).start(1, 1);
    says(&alone.fails(), &["rank 0 did not answer at 127.0.0.1", "MASTER_ADDR"]);
}

fn twice() {
    let crew = Crew::new("meet", 3);
    let mut members = vec![crew.start(0, 1), crew.start(1, 1), crew.start(1, 1)];
    for member in &mut members {
        says(&member.fails(), &["process 1 came twice", "RANK must differ"]);
    }
}

fn port_in_use() {
    let crew = Crew::brief("meet", 2);
    let _squatter = TcpListener::bind(("127.0.0.1", crew.port.number())).unwrap();
    let mut members = crew.start_all(&[1, 1]);
    says(&members[0].fails(), &["cannot listen on 127.0.0.1", "in use", "MASTER_PORT"]);
    says(&members[1].fails(), &["is not warpweft", "in use by another program"]);
}

/// The standard streams and the listener are all it may have.
fn no_files() {
    let crew = Crew::brief("meet", 2);
    let mut member = crew.start(1, 1);
    member.hear("begins");
    let mut host = crew.start_with_files(0, 1, 4);
    says(
        &host.fails(),
        &[
            &format!("process 1 did not come within {BRIEF:?}"),
            "refused to accept a connection",
            "open files",
        ],
    );
    member.fails();
}

fn two_hosts() {
    let crew = Crew::new("meet", 2);
    let mut hosts = [crew.start(0, 1), crew.start(0, 1)];
    // Which of them is the second is for the system to say.
    let (second, error) = Member::first_to_fail(&mut hosts);
    says(&error, &["in use", "started as number 0"]);
    // The first is not disturbed.
    let mut member = crew.start(1, 1);
    hosts[1 - second].hear("meeting");
    member.hear("meeting");
}

fn contradiction() {
    let crew = Crew::new("meet", 2);
    let mut host = crew.start(0, 1);
    let mut member = Crew { processes: 3, ..crew }.start(1, 1);
    for member in [&mut host, &mut member] {
        says(&member.fails(), &["given 3 processes and process 0 of 2", "WORLD_SIZE"]);
    }
}

fn died_early() {
    let crew = Crew::brief("meet", 3);
    let mut members = crew.start_all(&[1, 1]);
    let mut dies = crew.start(2, 1);
    // Who is let in before the kill is chance; the world may even have begun.
    dies.hear("begins");
    dies.kill();
    says(&members[0].fails(), &["process 2"]);
    // The other may come when the host has got word of it and is about to go, or gone.
    let heard = members[1].fails();
    let late = ["rank 0 did not answer", "it hung up"].iter().any(|words| heard.contains(words));
    assert!(heard.contains("process 2") || late, "{heard}");
}

fn no_secret() {
    let crew = Crew::new("meet", 2);
    let mut member = crew.start_with(1, 1, &[("WARPWEFT_SECRET", "")]);
    says(&member.fails(), &["no secret", "WARPWEFT_SECRET", "openssl rand"]);
    let mut member = crew.start_with(1, 1, &[("WARPWEFT_SECRET", "short")]);
    says(&member.fails(), &["5 bytes", "WARPWEFT_SECRET"]);
}
