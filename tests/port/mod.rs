//! A TCP port of this machine that no other test takes, in this program or in another.
//!
//! Whoever asks for a free port and lets it go again may see it taken by a test that asked at the same time.
//! So a port is claimed by a UDP socket of its number, which is in nobody's way, for as long as the test
//! needs it.
#![allow(unreachable_pub, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{TcpStream, UdpSocket};

/// A claimed port.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UdpSocket,
}

impl Port {
    /// A port nobody listens on, outside of the range from which systems give ports to clients.
    pub fn claim() -> Self {
        // Programs begin at different places, so that they seldom ask for what another one has.
        let begin = 20_000 + (std::process::id() % 12_000) as u16;
        let claim = |number: u16| {
            let _claim = UdpSocket::bind(("127.0.0.1", number)).ok()?;
            // Asked by knocking and not by listening: a child that another thread starts meanwhile would have
            // the listener too, and go on listening until it runs its own program.
            TcpStream::connect(("127.0.0.1", number)).is_err().then_some(Self { number, _claim })
        };
        (begin..32_000).chain(20_000..begin).find_map(claim).unwrap()
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}
