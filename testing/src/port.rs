//! A TCP port of this machine that no other test takes, in this program or in another.
//!
//! Whoever requests a free port and lets it go again may see it taken by a test that asked at the same time.
//! So a port is claimed by a UDP socket of its number, which is in nobody's way, for as long as the test
//! needs it. Taken are ports that the system gives to no client, if it leaves any.

use std::net::{TcpStream, UdpSocket};
use std::ops::Range;

/// A claimed port.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    /// A port nobody listens on.
    pub fn claim() -> Self {
        let ports = ports_of_no_client();
        // Programs begin at different places, so that they seldom request what another one has.
        let begin = ports.start + (std::process::id() % u32::from(ports.end - ports.start)) as u16;
        let claim = |number: u16| {
            let _claim = UdpSocket::bind(("127.0.0.1", number)).ok()?;
            // Asked by knocking and not by listening: a child that another thread starts meanwhile would have
            // the listener too, and go on listening until it runs its own program.
            TcpStream::connect(("127.0.0.1", number)).is_err().then_some(Self { number, _claim })
        };
        (begin..ports.end).chain(ports.start..begin).find_map(claim).unwrap()
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Ports above or below those that the system gives to clients; where there are few of these, the usual ones.
fn ports_of_no_client() -> Range<u16> {
    let usual = 20_000..32_000;
    let told = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut told = told.split_whitespace().filter_map(|word| word.parse::<u16>().ok());
    let (Some(first), Some(last)) = (told.next(), told.next()) else { return usual };
    [usual.clone(), 10_000..first, last.saturating_add(1)..u16::MAX]
        .into_iter()
        .find(|ports| ports.len() > 1_000 && (ports.end <= first || ports.start > last))
        .unwrap_or(usual)
}
