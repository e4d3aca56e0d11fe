//! A connection with a deadline.
//!
//! Law: **RV-2** the limit holds for everything that is read and written together. A time limit of the socket
//! begins anew with every byte that comes; here it is what is left, set before each read and each write.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A blocking connection, until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    pub(super) fn new(stream: &'a TcpStream, until: Instant) -> Self {
        Self { stream, until }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn is_late(error: &io::Error) -> bool {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    }

    /// RV-2.
    #[test]
    fn bytes_that_drip_do_not_put_the_limit_off() {
        let (mine, mut theirs) = pair();
        theirs.write_all(b"w").unwrap();
        // Until this end is closed.
        let drip = std::thread::spawn(move || {
            while theirs.write_all(b"w").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut bytes = [0; 5_000];
        let until = Instant::now() + Duration::from_secs(2);
        let error = Timed::new(&mine, until).read_exact(&mut bytes).unwrap_err();
        assert!(is_late(&error) && Instant::now() >= until, "{error}");
        assert!(bytes.starts_with(b"w") && bytes.ends_with(&[0]), "some came in time and some did not");
        drop(mine);
        drip.join().unwrap();
    }

    /// RV-2.
    #[test]
    fn who_takes_nothing_is_not_written_to_for_ever() {
        let (mine, _theirs) = pair();
        let mut timed = Timed::new(&mine, Instant::now() + Duration::from_millis(200));
        let error = timed.write_all(&vec![1; 64 << 20]).unwrap_err();
        assert!(is_late(&error), "{error}");
    }
}
