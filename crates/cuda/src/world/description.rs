//! Describes a world in words: what a session says it runs on.

use crate::options::Transport;
use crate::world::World;
use warpweft_backend::SignalBy;

impl World {
    /// The ranks, on GPUs of this name, and how they reach each other.
    pub(crate) fn describe(&self, gpu: &str) -> String {
        let (ranks, hosts) = (self.mesh.ranks(), self.network.hosts.count());
        let replicas = match self.mesh.replicas() {
            1 => String::new(),
            replicas => format!(" in {replicas} replicas"),
        };
        let tensor = match self.mesh.tensor() {
            1 => String::new(),
            tensor => format!(" with tensor-parallel groups of {tensor}"),
        };
        let experts = match self.mesh.expert() {
            1 => String::new(),
            ep => format!(" with expert-parallel groups of {ep}"),
        };
        let by_copies = match self.options.signal_by {
            SignalBy::Copy => ", signalled by copies",
            SignalBy::Auto | SignalBy::Stream => "",
        };
        let transport = match (ranks, self.network.transport) {
            (1, _) => "one rank".to_owned(),
            (_, Transport::Peer) if hosts == 1 => format!(
                "peers' memory written by copy engines, and by kernels where little is sent{by_copies}"
            ),
            (_, Transport::Peer) => format!(
                "peers' memory written by copy engines or kernels inside of {hosts} hosts, NCCL between them{by_copies}"
            ),
            (_, Transport::Nccl) => "collectives by NCCL".to_owned(),
        };
        let times = self.times.as_ref().map(|times| format!(", {times}")).unwrap_or_default();
        format!("cuda, {ranks} × {gpu}{replicas}{tensor}{experts}, {transport}{times}")
    }
}
