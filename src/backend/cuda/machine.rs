//! Which devices a world has and how bytes get from one to another: decided alike in every process.
//!
//! Laws:
//! - Every rank tells its host, its GPU and what its process was asked for; the decision is a function of what all told.
//! - Peers' memory is written inside of one host only. Over several hosts bytes go by NCCL.

use super::failure::CudaFailure;
use super::library::Library;
use super::options::{CudaOptions, Transport};
use crate::config::Reduce;
use crate::rendezvous::{HostName, Reader, Truncated, Writer};

/// What one rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) host: HostName,
    /// The driver's name of the GPU, the same in every process.
    pub(super) gpu: [u8; 16],
    pub(super) has_nccl: bool,
    /// Can its GPU reach every other that its process sees?
    pub(super) reaches: bool,
    /// Of the options: transport and how gradients are summed.
    pub(super) wish: (Option<Transport>, Reduce),
}

impl Seat {
    pub(super) fn new(options: &CudaOptions, gpu: [u8; 16], reaches: bool) -> Self {
        let has_nccl = Library::Nccl.open().is_ok();
        let wish = (options.transport, options.reduce);
        Self { host: HostName::of_this_process(), gpu, has_nccl, reaches, wish }
    }

    /// Are both on one GPU?
    pub(super) fn shares_gpu_with(&self, other: &Self) -> bool {
        self.gpu == other.gpu && self.host == other.host
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let transport = match self.wish.0 {
            None => 0,
            Some(Transport::Peer) => 1,
            Some(Transport::Nccl) => 2,
        };
        let mut writer = Writer::default();
        writer.raw(&self.gpu).byte(u8::from(self.has_nccl)).byte(u8::from(self.reaches)).byte(transport);
        writer.byte(u8::from(self.wish.1 == Reduce::Nccl)).raw(self.host.as_str().as_bytes()).take()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let gpu = reader.fixed()?;
        let (has_nccl, reaches) = (reader.byte()? != 0, reader.byte()? != 0);
        let transport = match reader.byte()? {
            0 => None,
            1 => Some(Transport::Peer),
            2 => Some(Transport::Nccl),
            _ => return Err(Truncated),
        };
        let reduce = if reader.byte()? == 0 { Reduce::Ordered } else { Reduce::Nccl };
        let host = HostName::new(&String::from_utf8_lossy(reader.rest()));
        Ok(Self { host, gpu, has_nccl, reaches, wish: (transport, reduce) })
    }
}

/// The way for a world of these seats. `reach` makes the GPUs of this process reach each other.
pub(super) fn transport(
    seats: &[Seat],
    reach: impl FnOnce() -> Result<(), CudaFailure>,
) -> Result<Transport, CudaFailure> {
    let refused = |words: &str| Err(CudaFailure::Refused(words.to_owned()));
    let Some(first) = seats.first() else { return refused("a world needs a rank") };
    if seats.iter().any(|seat| seat.wish != first.wish) {
        return refused("processes were configured with different transport or reduce; give all the same");
    }
    let alone = seats
        .iter()
        .enumerate()
        .all(|(position, seat)| !seats[..position].iter().any(|other| other.shares_gpu_with(seat)));
    let one_host = seats.iter().all(|seat| seat.host == first.host);
    let everywhere = seats.iter().all(|seat| seat.has_nccl);
    let nccl = || match Library::Nccl.open() {
        Ok(()) if !everywhere => refused("NCCL is not installed on every host; install it everywhere"),
        outcome => outcome.map(|()| Transport::Nccl),
    };
    match first.wish {
        (Some(Transport::Nccl), _) if !alone => refused(
            "NCCL needs a GPU of its own for each rank; name each GPU once, or set transport = \"peer\"",
        ),
        (Some(Transport::Nccl), _) => nccl(),
        (Some(Transport::Peer), Reduce::Nccl) => {
            refused("reduce = \"nccl\" and transport = \"peer\" exclude each other; set reduce = \"ordered\"")
        }
        (Some(Transport::Peer), _) if !one_host => refused(
            "transport = \"peer\" needs all ranks on one host, and these are on several; set transport = \"auto\" or \"nccl\" (hosts are told apart by name and boot, or by WARPWEFT_HOSTID or NCCL_HOSTID)",
        ),
        (None, Reduce::Nccl) => nccl(),
        (None, _) if !one_host && !alone => {
            refused("over several hosts each rank needs a GPU of its own; name each GPU once")
        }
        (None, _) if !one_host => nccl(),
        (None, _) if alone && everywhere && !seats.iter().all(|seat| seat.reaches) => nccl(),
        (Some(Transport::Peer) | None, _) => reach().map(|()| Transport::Peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(host: &str, gpu: u8, transport: Option<Transport>) -> Seat {
        Seat {
            host: HostName::new(host),
            gpu: [gpu; 16],
            has_nccl: false,
            reaches: true,
            wish: (transport, Reduce::Ordered),
        }
    }

    #[test]
    fn a_seat_is_read_as_it_was_told() {
        for transport in [None, Some(Transport::Peer), Some(Transport::Nccl)] {
            let seat = Seat { has_nccl: true, ..seat("node 7", 3, transport) };
            assert_eq!(Seat::decode(&seat.encode()), Ok(seat));
        }
        assert!(Seat::decode(&[0; 19]).is_err());
    }

    #[test]
    fn peers_are_reached_inside_of_a_host_alone() {
        let reached = || Ok(());
        let two = |other| [seat("a", 0, Some(Transport::Peer)), seat(other, 0, Some(Transport::Peer))];
        assert_eq!(transport(&two("a"), reached), Ok(Transport::Peer), "ranks may share a GPU");
        let error = transport(&two("b"), reached).unwrap_err().to_string();
        assert!(error.contains("several") && error.contains("NCCL_HOSTID"), "{error}");
        let error =
            transport(&[seat("a", 0, None), seat("a", 1, Some(Transport::Peer))], reached).unwrap_err();
        assert!(error.to_string().contains("different transport"), "{error}");
        let shared = [seat("a", 0, Some(Transport::Nccl)), seat("a", 0, Some(Transport::Nccl))];
        assert!(transport(&shared, reached).unwrap_err().to_string().contains("GPU of its own"));
        assert!(transport(&[], reached).is_err());
    }

    #[test]
    fn without_nccl_everywhere_one_host_takes_peers_and_several_are_refused() {
        let reached = || Ok(());
        let auto = |other| [seat("a", 0, None), Seat { has_nccl: true, ..seat(other, 1, None) }];
        assert_eq!(transport(&auto("a"), reached), Ok(Transport::Peer));
        assert!(transport(&auto("b"), reached).is_err());
        let unreachable = || Err(CudaFailure::Refused("GPU 0 cannot reach GPU 1".to_owned()));
        assert!(transport(&auto("a"), unreachable).unwrap_err().to_string().contains("GPU 1"));
        let apart = |gpu| Seat { reaches: false, ..seat("a", gpu, None) };
        assert!(transport(&[apart(0), apart(1)], unreachable).unwrap_err().to_string().contains("GPU 1"));
    }
}
